"""The table of the values of a member, which controllers change.

A hyper is declared once, by the algorithm that reads it (`pbt_rl/algos/hypers.py`): the declaration is an option
(`--hypers.learning-rate`), a `[P]` tensor on the device, and a line of this table. Three ranges belong to a value:

    legal     what the algorithm can bear; every value keeps to it, tuned or not
    bounds    what mutations of a tuned value keep to
    prior     where a population or a search starts a tuned value

`controllers.tuning` has the user's bounds and priors. Reward shaping is the table's other half: its names come from the
environment and are written `shaping.NAME`. Anything else that trains declares its own table.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

from pbt_rl.errors import ConfigError
from pbt_rl.options.declare import table
from pbt_rl.options.names import meant

Scale = Literal["linear", "log", "one_minus", "integer", "choice"]
Range = tuple[float, float]
"""Lowest and highest value, both included."""
Values = dict[str, float]
"""A member's values: the name of a hyper or `shaping.NAME` -> number."""

SHAPING = "shaping."
ANYTHING: Range = (-math.inf, math.inf)
OFF = 1e9
"""A limit that nothing reaches: `--hypers.clip-value off`. Finite, so that JSON can hold it."""


@dataclass(frozen=True)
class Prior:
    """Where a value starts: uniform on a scale from `low` to `high`, or evenly one of `choices` (rising)."""

    low: float
    high: float
    scale: Scale
    choices: tuple[float, ...] = ()

    def __str__(self) -> str:
        """Return the form that `--pbt.prior` reads."""
        if self.choices:
            return ",".join(f"{choice:g}" for choice in self.choices)
        word = {"one_minus": "one-minus", "integer": "int"}.get(self.scale, self.scale)
        return f"{self.low:g}:{self.high:g}:{word}"


@dataclass(frozen=True)
class HyperSpec:
    """How one value may change.

    low, high: the bounds of mutations. legal: what any value must keep to, also one that is not
    tuned; None: the bounds.
    scale: what a factor acts on. `linear` and `log` (bounds on one side of 0): the value; `one_minus`: 1 - value
    (gamma, betas); `integer`: the value, rounded, and it always moves by at least one; `choice`: nothing, the value
    is an index into `choices` (`choice_spec`).
    tuned: whether a controller changes it by default.
    choices: the meanings of the index of a `choice`; neighbours should be alike, if there is such an order.
    prior: None: uniform on the scale within the bounds. drawn: every rule draws the start from the prior, also one
    that would start around the default.
    """

    name: str
    default: float
    low: float
    high: float
    scale: Scale
    tuned: bool
    choices: tuple[Any, ...] = ()
    legal: Range | None = None
    prior: Prior | None = None
    drawn: bool = False

    def __post_init__(self) -> None:
        assert (self.scale == "choice") == bool(self.choices), "choices belong to the scale `choice`"

    @property
    def start(self) -> Prior:
        """The prior; that of the bounds if none of its own is given."""
        return self.prior or Prior(self.low, self.high, self.scale)

    @property
    def limits(self) -> Range:
        """What any value must keep to."""
        return self.legal or (self.low, self.high)

    @property
    def starts_outside(self) -> bool:
        """Whether the value is tuned and its default lies outside of the bounds."""
        return self.tuned and not self.low <= self.default <= self.high

    def text(self, value: float) -> str:
        """Return a value as people read it: of a choice its meaning."""
        if not self.choices:
            return f"{value:.4g}"
        return meaning(self.choices[min(max(round(value), 0), len(self.choices) - 1)])

    def clamp(self, value: float) -> float:
        """Return the nearest value within the bounds; on the `integer` and `choice` scales a whole number.

        NaN raises ValueError: it would pass through min and max.
        """
        return self._within(value, (self.low, self.high))

    def clamp_legal(self, value: float) -> float:
        """Return the nearest legal value. NaN raises ValueError."""
        return self._within(value, self.limits)

    def hold(self, value: float) -> float:
        """Return the nearest value that the spec allows: within the bounds if it is tuned, else a legal one."""
        return self.clamp(value) if self.tuned else self.clamp_legal(value)

    def _within(self, value: float, ends: Range) -> float:
        low, high = ends
        if math.isnan(value):
            raise ValueError(f"{self.name} is NaN; it must be within {low:g}..{high:g}")
        if self.scale in ("integer", "choice"):
            low, high = (
                end if math.isinf(end) else near(end) for end, near in ((low, math.ceil), (high, math.floor))
            )
            return float(round(min(max(value, low), high)))
        return min(max(value, low), high)


def meaning(choice: object) -> str:
    """Return a choice as one short text."""
    name = getattr(choice, "__name__", None)
    return name if isinstance(name, str) else f"{choice!s:.40}"


def choice_spec(name: str, choices: tuple[Any, ...], default: Any, *, tuned: bool = True) -> HyperSpec:
    """Return the spec of a choice. Raises ConfigError if the default is not one of the choices."""
    # `in` and `index` would take True for 1.
    found = [i for i, c in enumerate(choices) if c is default or (type(c), c) == (type(default), default)]
    if not found:
        raise ConfigError(f"{name}: the default {default!r} is not one of the choices {choices!r}")
    return HyperSpec(name, float(found[0]), 0.0, len(choices) - 1.0, "choice", tuned, choices)


def sample_prior(spec: HyperSpec, rng: Random) -> float:
    """Draw a value from the prior: evenly on its scale (`log` in log(|x|), `one_minus` in log(1 - x)), or a choice.

    The priors of Jaderberg et al. (2017), section 4.1.1 (learning rate and entropy cost log-uniform, unroll an
    integer). Raises ConfigError if a logarithm does not exist within the ends.
    """
    prior = spec.start
    if prior.choices:
        return spec.clamp(rng.choice(prior.choices))
    if prior.scale == "log":
        sign = -1 if prior.high < 0 else 1
        low, high = sorted((sign * prior.low, sign * prior.high))
        return spec.clamp(sign * _log_uniform(spec, low, high, rng))
    if prior.scale == "one_minus":
        return spec.clamp(1 - _log_uniform(spec, 1 - prior.high, 1 - prior.low, rng))
    if prior.scale == "linear":
        return spec.clamp(rng.uniform(prior.low, prior.high))
    return spec.clamp(float(rng.randint(math.ceil(prior.low), math.floor(prior.high))))


def _log_uniform(spec: HyperSpec, low: float, high: float, rng: Random) -> float:
    if low <= 0:
        prior = spec.start
        raise ConfigError(
            f"{spec.name} {prior.low:g}..{prior.high:g} has no prior on the scale {prior.scale}: "
            f"give {'ends on one side of 0' if prior.scale == 'log' else 'an upper end below 1'}, or the scale linear"
        )
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def scale_within(scale: Scale, low: float, high: float) -> Scale:
    """Return the scale, or `linear` where its logarithm does not exist somewhere within the ends."""
    endless = (scale == "log" and low <= 0 <= high) or (scale == "one_minus" and high >= 1)
    return "linear" if endless else scale


def hyper_table(hypers: Any) -> dict[str, HyperSpec]:
    """Return name -> spec of every hyper, with the values of `hypers` as defaults.

    hypers: a dataclass object whose fields say in their metadata `bounds`, `scale`, whether they are `tuned`, and what
    is legal (`at_least`, `at_most`).
    """
    specs = {}
    for option in table(hypers).values():
        declared = option.metadata
        legal = float(declared["at_least"]), float(declared["at_most"])
        low, high = declared["bounds"]
        scale, tuned, value = declared["scale"], declared["tuned"], float(option.of(hypers))
        specs[option.field] = HyperSpec(option.field, value, low, high, scale, tuned, legal=legal)
    return specs


UNTUNED = frozenset({"score_scale"})
"""Shaping that is tuned only if --pbt.tune names it. A factor on every reward changes nothing of a policy whose
advantages are normalised, and multiplies the value loss by its square: members would differ by their units alone."""
EITHER_SIGN = frozenset({"life_loss_penalty"})
"""Shaping that is tuned although it begins at 0: a value of either sign may help."""


def shaping_given(entries: Iterable[str]) -> dict[str, float]:
    """Return the values of NAME=VALUE entries. Raises ConfigError."""
    found: dict[str, float] = {}
    for entry in entries:
        name, _, text = entry.rpartition("=")
        try:
            found[name] = float(text)
        except ValueError:
            found[name] = math.nan
        if not name or not math.isfinite(found[name]):
            raise ConfigError(
                f"--shaping {entry:.200} cannot be used: give NAME=VALUE, or --shaping.NAME VALUE"
            )
    return found


def with_shaping(defaults: Mapping[str, float], entries: Iterable[str]) -> dict[str, float]:
    """Return the defaults of an environment's shaping with those that are given. Raises ConfigError."""
    given: dict[str, float] = {}
    for name, value in shaping_given(entries).items():
        known = name if name in defaults else name.replace("-", "_")
        if known not in defaults:
            there = f"'s are {', '.join(sorted(defaults))}" if defaults else " has none"
            hint = meant(SHAPING, known, defaults)
            raise ConfigError(f"--{SHAPING}{name} cannot be used: {hint}the environment{there}")
        given[known] = value
    return {**defaults, **given}


def shaping_table(defaults: Mapping[str, float]) -> dict[str, HyperSpec]:
    """Return `shaping.NAME` -> spec of an environment's shaping. It may move a hundredfold; all but UNTUNED is tuned.

    A factor never turns a sign, so the bounds keep the sign of the default. One of 0 has none, and is not tuned unless
    it is given a range or is of EITHER_SIGN, which may leave it in both directions, up to 1.
    """
    table = {}
    for name, value in defaults.items():
        low, high = sorted((value / 100, value * 100)) if value else (-1.0, 1.0)
        key = SHAPING + name
        scale: Scale = "log" if value else "linear"
        tuned = name not in UNTUNED and (value != 0 or name in EITHER_SIGN)
        table[key] = HyperSpec(key, float(value), low, high, scale, tuned, legal=ANYTHING)
    return table
