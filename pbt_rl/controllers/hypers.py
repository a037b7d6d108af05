"""Specs of the values (hyperparameters and shaping) of a member. The *table* maps the name of each value to its spec.

Hyperparameters are declared in `pbt_rl/algos/hypers.py`, or by a custom algorithm. A declaration becomes an option
(`--hypers.learning-rate`). If the run's algorithm reads the hyperparameter, it also becomes a `[P]` tensor on the
device (P: policies of the device), and a row of this table. A value has three ranges:

    legal     range that the algorithm accepts, for tuned and for other values
    bounds    range of mutations of a tuned value
    prior     distribution of the start values of a population or a search

`controllers.tuning` applies the user's bounds and priors. The table also contains the environment's reward shaping, as
`shaping.NAME`. In `tune.run`, the table comes from the user's space (`tune.space`) or from the argument `table`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

from pbt_rl.controllers.records import LARGEST_VALUE
from pbt_rl.errors import ConfigError
from pbt_rl.options.declare import table
from pbt_rl.options.names import meant

Scale = Literal["linear", "log", "one_minus", "integer", "choice"]
Range = tuple[float, float]
"""(lowest, highest) value, both inclusive."""
Values = dict[str, float]
"""A member's values: name of a hyperparameter or `shaping.NAME` -> number."""

SHAPING = "shaping."
ANYTHING: Range = (-LARGEST_VALUE, LARGEST_VALUE)
OFF = 1e9
"""Value that disables a limit, such as `--hypers.clip-value off`. JSON requires a finite number."""


@dataclass(frozen=True)
class Prior:
    """Distribution of start values: uniform on a scale from `low` to `high`, or over `choices` (ascending)."""

    low: float
    high: float
    scale: Scale
    choices: tuple[float, ...] = ()

    def __str__(self) -> str:
        """Return the prior in the syntax of `--pbt.prior`, such as `0.1:1:log` or `1,2,4`."""
        if self.choices:
            return ",".join(f"{choice:g}" for choice in self.choices)
        word = {"one_minus": "one-minus", "integer": "int"}.get(self.scale, self.scale)
        return f"{self.low:g}:{self.high:g}:{word}"


@dataclass(frozen=True)
class HyperSpec:
    """Specification of one value: its ranges, scale and prior.

    low, high: bounds of mutations.
    legal: range of the values that the user may type, for tuned and for other values. None: the bounds.
    scale: effect of a factor in a mutation. `linear`, `log`: multiply the value. `one_minus`: multiply 1 - value
    (gamma, betas). `integer`: multiply and round, but change by at least 1. `choice`: the value is an index into
    `choices` (`choice_spec`).
    tuned: True if PBT or a search chooses the value.
    choices: possible values, if the scale is `choice`. Neighbouring choices should be similar, because mutations may
    move to a neighbour.
    prior: distribution of start values. None: uniform on the scale, within the bounds.
    drawn: True if every built-in explore rule draws the start value from the prior. False: `Perturb` starts near
    the default instead.
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
        """Distribution of the start value. If `prior` is None: uniform within the bounds."""
        return self.prior or Prior(self.low, self.high, self.scale)

    @property
    def limits(self) -> Range:
        """Legal range. If `legal` is None: the bounds."""
        return self.legal or (self.low, self.high)

    @property
    def starts_outside(self) -> bool:
        """True if the value is tuned and its default is out of bounds."""
        return self.tuned and not self.low <= self.default <= self.high

    def text(self, value: float) -> str:
        """Format a value for users. An index into `choices` is formatted as the choice."""
        if not self.choices:
            return f"{value:.4g}"
        return meaning(self.choices[min(max(round(value), 0), len(self.choices) - 1)])

    def clamp(self, value: float) -> float:
        """Clip a number to the bounds, and round it on the scales `integer` and `choice`.

        Raises ValueError for NaN, because min and max do not clip NaN.
        """
        return self._within(value, (self.low, self.high))

    def clamp_legal(self, value: float) -> float:
        """Return the nearest legal value. Raises ValueError for NaN."""
        return self._within(value, self.limits)

    def hold(self, value: float) -> float:
        """Clip a number to the bounds if the value is tuned. Otherwise, clip to the legal range."""
        return self.clamp(value) if self.tuned else self.clamp_legal(value)

    def _within(self, value: float, ends: Range) -> float:
        low, high = ends
        if math.isnan(value):
            raise ValueError(f"{self.name} is NaN: give a number within {low:g}..{high:g}")
        if self.scale in ("integer", "choice"):
            low, high = (
                end if math.isinf(end) else near(end) for end, near in ((low, math.ceil), (high, math.floor))
            )
            return float(round(min(max(value, low), high)))
        return min(max(value, low), high)


def meaning(choice: object) -> str:
    """Format one of the choices of a value as a short text."""
    name = getattr(choice, "__name__", None)
    return name if isinstance(name, str) else f"{choice!s:.40}"


def same_choice(one: Any, other: Any) -> bool:
    """Check whether two choices are equal. True and 1 are different. An array of several numbers only equals itself."""
    try:
        return one is other or (type(one) is type(other) and bool(one == other))
    except (ValueError, RuntimeError):  # arrays and tensors of several numbers
        return False


def choice_spec(name: str, choices: tuple[Any, ...], default: Any, *, tuned: bool = True) -> HyperSpec:
    """Build the spec of a choice. Raises ConfigError if `choices` does not contain the default."""
    found = [i for i, choice in enumerate(choices) if same_choice(choice, default)]
    if not found:
        raise ConfigError(f"{name}: the default {default!r} is not one of the choices {choices!r}")
    return HyperSpec(name, float(found[0]), 0.0, len(choices) - 1.0, "choice", tuned, choices)


def sample_prior(spec: HyperSpec, rng: Random) -> float:
    """Draw a value from its prior: uniform on the scale, or one of the choices.

    `log`: uniform in log(|x|). `one_minus`: uniform in log(1 - x). Jaderberg et al. (2017), section 4.1.1, draw the
    learning rate and the entropy cost log-uniformly, and the unroll length as an integer. The result is clipped to the
    bounds. Raises ConfigError if the logarithm is undefined within the range.
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
            f"{spec.name}={prior.low:g}:{prior.high:g} cannot be drawn on the scale {prior.scale}: "
            f"give {'ends on one side of 0' if prior.scale == 'log' else 'an upper end below 1'}, or the scale linear"
        )
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def scale_within(scale: Scale, low: float, high: float) -> Scale:
    """Return the scale, or `linear` if its logarithm is undefined within the range."""
    endless = (scale == "log" and low <= 0 <= high) or (scale == "one_minus" and high >= 1)
    return "linear" if endless else scale


def hyper_table(hypers: Any) -> dict[str, HyperSpec]:
    """Return name -> spec of each hyperparameter, with the values of `hypers` as defaults.

    hypers: dataclass object. The metadata of each field contain `bounds`, `scale`, `tuned`, and the ends of the legal
    range, `at_least` and `at_most`.
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
"""Reward shaping that is only tuned if --pbt.tune lists it. With normalised advantages, a common factor of all rewards
does not change the policy loss. Without normalised returns, the value loss changes by the square of the factor."""
EITHER_SIGN = frozenset({"life_loss_penalty"})
"""Reward shaping that is tuned although its default is 0, because positive and negative values may help."""


def shaping_given(entries: Iterable[str]) -> dict[str, float]:
    """Return name -> value of the NAME=VALUE entries of --shaping.

    Raises ConfigError for an entry without a name, or without a number of at most `LARGEST_VALUE`.
    """
    found: dict[str, float] = {}
    for entry in entries:
        name, _, text = entry.rpartition("=")
        try:
            found[name] = float(text)
        except ValueError:
            found[name] = math.nan
        if not name or not abs(found[name]) <= LARGEST_VALUE:
            raise ConfigError(
                f"--shaping {entry:.200} cannot be used: give NAME=VALUE, or --shaping.NAME VALUE "
                f"(-{LARGEST_VALUE:g} to {LARGEST_VALUE:g})"
            )
    return found


def with_shaping(defaults: Mapping[str, float], entries: Iterable[str]) -> dict[str, float]:
    """Return the default shaping of an environment (name -> value), updated by NAME=VALUE entries.

    Raises ConfigError for an invalid entry, and for a name that is not in the default shaping.
    """
    given: dict[str, float] = {}
    for name, value in shaping_given(entries).items():
        known = name if name in defaults else name.replace("-", "_")
        if known not in defaults:
            there = f"'s shaping is {', '.join(sorted(defaults))}" if defaults else " has no shaping"
            hint = meant(SHAPING, known, defaults)
            raise ConfigError(f"--{SHAPING}{name} cannot be used: {hint}the environment{there}")
        given[known] = value
    return {**defaults, **given}


def shaping_table(defaults: Mapping[str, float]) -> dict[str, HyperSpec]:
    """Return `shaping.NAME` -> spec for the default shaping of an environment.

    Bounds: 1/100 to 100 times the default. Mutations multiply a value, and therefore keep its sign. Values in `UNTUNED`
    are not tuned. A value with the default 0 has the bounds -1..1. `EITHER_SIGN` contains the values with the default 0
    that are tuned without a user-defined range.
    """
    table = {}
    for name, value in defaults.items():
        low, high = sorted((value / 100, value * 100)) if value else (-1.0, 1.0)
        low, high = max(low, -LARGEST_VALUE), min(high, LARGEST_VALUE)
        key = SHAPING + name
        scale: Scale = "log" if value else "linear"
        tuned = name not in UNTUNED and (value != 0 or name in EITHER_SIGN)
        table[key] = HyperSpec(key, float(value), low, high, scale, tuned, legal=ANYTHING)
    return table
