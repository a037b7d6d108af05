"""The table of hyperparameters: each is declared once, here, with all that anyone needs to know of it.

The same declaration is a field of the command line (`--hypers.learning-rate`), a `[P]` tensor on the device,
and what a controller may mutate. Reward shaping is the table's other half: its names come from the
environment and are written `shaping.NAME`. Anything else that trains declares its own table, from specs that
may be nested (`flatten`, `decode`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from random import Random
from typing import Any, Literal

from pbt_rl.errors import ConfigError
from pbt_rl.options import option

Scale = Literal["linear", "log", "one_minus", "integer", "choice"]
Values = dict[str, float]
"""A member's values: the name of a hyper or `shaping.NAME` -> number."""

SHAPING = "shaping."


@dataclass(frozen=True)
class HyperSpec:
    """How one value may change.

    scale: what a factor acts on. `linear` and `log` (bounds on one side of 0): the value; `one_minus`: 1 - value
    (gamma, betas); `integer`: the value, rounded, and it always moves by at least one; `choice`: nothing, the value
    is an index into `choices` (`choice_spec`, `boolean_spec`). Priors are uniform on the scale (`sample_prior`).
    tuned: whether a controller changes it unless the user says otherwise.
    choices: what the index of a `choice` stands for, in an order in which neighbours are alike where there is one.
    """

    name: str
    default: float
    low: float
    high: float
    scale: Scale
    tuned: bool
    choices: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        assert (self.scale == "choice") == bool(self.choices), "choices belong to the scale `choice`"

    def clamp(self, value: float) -> float:
        """Nearest allowed value; on the `integer` and `choice` scales a whole number.

        NaN raises ValueError: it would pass through min and max.
        """
        if math.isnan(value):
            raise ValueError(f"{self.name} is NaN; it must be within {self.low:g}..{self.high:g}")
        if self.scale in ("integer", "choice"):
            return float(round(min(max(value, math.ceil(self.low)), math.floor(self.high))))
        return min(max(value, self.low), self.high)


def choice_spec(name: str, choices: tuple[Any, ...], default: Any, *, tuned: bool = True) -> HyperSpec:
    """Spec of one of several things. ConfigError if the default is not among them."""
    # `in` and `index` would take True for 1.
    places = [i for i, c in enumerate(choices) if c is default or (type(c), c) == (type(default), default)]
    if not places:
        raise ConfigError(f"{name}: the default {default!r} is not one of the choices {choices!r}")
    return HyperSpec(name, float(places[0]), 0.0, len(choices) - 1.0, "choice", tuned, choices)


def boolean_spec(name: str, default: bool, *, tuned: bool = True) -> HyperSpec:
    """Spec of a switch; a perturbation flips it."""
    return choice_spec(name, (False, True), default, tuned=tuned)


def sample_prior(spec: HyperSpec, rng: Random) -> float:
    """Draw a value uniformly on its scale: `log` in log(|x|), `one_minus` in log(1 - x), the others evenly.

    The priors of Jaderberg et al. (2017), section 4.1.1 (learning rate and entropy cost log-uniform, unroll an
    integer). Raises ConfigError where a logarithm does not exist within the bounds.
    """
    if spec.scale == "log":
        sign = -1 if spec.high < 0 else 1
        low, high = sorted((sign * spec.low, sign * spec.high))
        return spec.clamp(sign * _log_uniform(spec, low, high, rng))
    if spec.scale == "one_minus":
        return spec.clamp(1 - _log_uniform(spec, 1 - spec.high, 1 - spec.low, rng))
    if spec.scale == "linear":
        return spec.clamp(rng.uniform(spec.low, spec.high))
    return float(rng.randint(math.ceil(spec.low), math.floor(spec.high)))


def _log_uniform(spec: HyperSpec, low: float, high: float, rng: Random) -> float:
    if low <= 0:
        raise ConfigError(
            f"{spec.name} {spec.low:g}..{spec.high:g} has no prior on the scale {spec.scale}: "
            f"give {'bounds on one side of 0' if spec.scale == 'log' else 'an upper bound below 1'}"
        )
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def flatten(nested: Any, prefix: str = "") -> dict[str, Any]:
    """Name -> leaf of nested mappings, tuples and lists: `outer.inner`, `name.0`, `name.1`."""
    if isinstance(nested, Mapping):
        items = nested.items()
    elif isinstance(nested, tuple | list):
        items = dict(enumerate(nested)).items()
    else:
        return {prefix: nested}
    flat: dict[str, Any] = {}
    for key, value in items:
        flat |= flatten(value, f"{prefix}.{key}" if prefix else str(key))
    return flat


def flat_table(nested: Mapping[str, Any]) -> dict[str, HyperSpec]:
    """Table of nested specs. Each spec is renamed to its flattened name."""
    return {name: replace(spec, name=name) for name, spec in flatten(nested).items()}


def decode(table: Mapping[str, HyperSpec], values: Mapping[str, float]) -> dict[str, Any]:
    """Values as their user wrote them: integers as int, choices as themselves, `.` as nesting.

    `name.0`, `name.1`, ... become a tuple; `shaping.NAME` becomes a dictionary under `shaping`.
    """
    tree: dict[str, Any] = {}
    for name, value in values.items():
        *path, last = name.split(".")
        branch = tree
        for key in path:
            branch = branch.setdefault(key, {})
        branch[last] = _decoded(table[name], value)
    return {name: _tuples(branch) for name, branch in tree.items()}


def _decoded(spec: HyperSpec, value: float) -> Any:
    if spec.scale == "choice":
        return spec.choices[int(spec.clamp(value))]
    return int(spec.clamp(value)) if spec.scale == "integer" else value


def _tuples(branch: Any) -> Any:
    if not isinstance(branch, dict):
        return branch
    inner = {key: _tuples(value) for key, value in branch.items()}
    if all(key.isdigit() for key in inner):
        return tuple(inner[str(i)] for i in range(len(inner)))
    return inner


def _hyper(default: float, low: float, high: float, scale: Scale, *, tuned: bool, **more: Any) -> Any:
    return option(default, at_least=low, at_most=high, scale=scale, tuned=tuned, **more)


@dataclass(frozen=True)
class Hypers:
    """Hyperparameters that PBT may change: the initial values of member 0."""

    learning_rate: float = _hyper(2.5e-4, 1e-6, 1e-2, "log", tuned=True, common=True)
    """Step size of the optimiser."""
    entropy_coef: float = _hyper(0.01, 1e-5, 0.3, "log", tuned=True, common=True)
    """Weight of the entropy bonus."""
    value_coef: float = _hyper(0.5, 0.05, 5.0, "log", tuned=True)
    """Weight of the value loss."""
    clip_ratio: float = _hyper(0.1, 0.01, 0.5, "log", tuned=True)
    """PPO: clip the probability ratio to 1 +- this."""
    clip_value: float = _hyper(1.0, 0.01, 10.0, "log", tuned=True)
    """PPO: clip the change of the (normalised) value to +- this."""
    max_grad_norm: float = _hyper(0.5, 0.01, 100.0, "log", tuned=True)
    """Limit of the gradient's norm."""
    gamma: float = _hyper(0.99, 0.8, 0.9999, "one_minus", tuned=False, common=True)
    """Discount per step."""
    gae_lambda: float = _hyper(0.95, 0.5, 0.9999, "one_minus", tuned=False)
    """Lambda of GAE and of V-trace."""
    adam_beta1: float = _hyper(0.9, 0.5, 0.99, "one_minus", tuned=False)
    """Adam: decay of the mean."""
    adam_beta2: float = _hyper(0.999, 0.9, 0.99999, "one_minus", tuned=False)
    """Adam: decay of the square."""
    rmsprop_alpha: float = _hyper(0.99, 0.8, 0.9999, "one_minus", tuned=False)
    """RMSProp (a3c): decay of the square."""
    vtrace_rho: float = _hyper(1.0, 0.1, 10.0, "linear", tuned=False)
    """V-trace: limit of the importance weight of the error."""
    vtrace_c: float = _hyper(1.0, 0.1, 10.0, "linear", tuned=False)
    """V-trace: limit of the weight of the trace."""
    unroll: int = _hyper(32, 2, 1024, "integer", tuned=False, common=True)
    """Steps that a return looks ahead, at most --learner.rollout."""


def hyper_table(hypers: Hypers) -> dict[str, HyperSpec]:
    """Name -> spec of every hyper, with the values of `hypers` as defaults."""
    table = {}
    for f in fields(hypers):
        low, high = f.metadata["at_least"], f.metadata["at_most"]
        value = float(getattr(hypers, f.name))
        table[f.name] = HyperSpec(f.name, value, low, high, f.metadata["scale"], f.metadata["tuned"])
    return table


def shaping_table(defaults: Mapping[str, float]) -> dict[str, HyperSpec]:
    """`shaping.NAME` -> spec of an environment's shaping. All of it is tuned; it may move a hundredfold.

    A factor never turns a sign, so the bounds keep the sign of the default; a default of 0 may leave it in
    either direction, up to 1.
    """
    table = {}
    for name, value in defaults.items():
        ends = (value / 100, value * 100) if value else (-1.0, 1.0)
        key = SHAPING + name
        scale: Scale = "log" if value else "linear"
        table[key] = HyperSpec(key, float(value), min(ends), max(ends), scale, tuned=True)
    return table
