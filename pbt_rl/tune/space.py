"""Search spaces of `tune.run` in plain Python, and the default controller.

Example: {"lr": (1e-5, 1e-1), "layers": (1, 4), "momentum": (0.0, 0.99), "optimiser": ["sgd", "adam"]}
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from numbers import Real
from random import Random
from typing import Any, TypeGuard, get_args

from pbt_rl.controllers.controllers import PbtController
from pbt_rl.controllers.exploit import Gap, Truncation
from pbt_rl.controllers.explore import Explore, PerturbFactors
from pbt_rl.controllers.hypers import HyperSpec, Scale, Values, choice_spec, meaning, same_choice
from pbt_rl.controllers.own import CustomExplore
from pbt_rl.controllers.ready import Synchronous
from pbt_rl.controllers.settings import named
from pbt_rl.envs.user_values import number_of
from pbt_rl.errors import ConfigError

LOG_RATIO = 100.0
"""Minimum high / low at which a range of floats has a logarithmic scale by default."""
COMPARISONS = 10
"""Default number of comparisons in a run."""
FRACTION = 0.25
COLUMNS = ("member", "generation", "step", "objective")
"""Columns of `Result.rows` that are not values."""

Space = Mapping[str, Any]


def table_of(space: Space) -> dict[str, HyperSpec]:
    """Convert a space to a table of name -> HyperSpec. Raises ConfigError for a name or range that cannot be used.

    - A tuple (low, high) of integers is a range of integers.
    - Any other tuple (low, high) is a range of floats. The scale is logarithmic if both ends are positive and
      high / low is at least LOG_RATIO. Otherwise the scale is linear.
    - A list contains choices of any type.
    - A HyperSpec is used with its name replaced by the name in the space.

    Member 0 begins with the middle of each range (on the scale of the range), the first choice, or the default of a
    HyperSpec. The other members begin with random values, except for a HyperSpec that is not tuned.
    """
    needs(bool(space), "space", {}, "name at least one value")
    taken = "use another name, because rows of a result have a column of this name"
    for name in space:
        needs(isinstance(name, str), "space", name, "give each value a name, which is a text")
        inner = [other for other in space if str(other).startswith(f"{name}.")]
        needs(
            not inner,
            "space",
            inner,
            f"rename {name!r}: a dot means a value inside a dict, but {name!r} is a value",
        )
        needs(name not in COLUMNS, f"space[{name!r}]", space[name], taken)
    return {name: _spec(name, value) for name, value in space.items()}


def loguniform(low: float, high: float) -> HyperSpec:
    """Return a range of floats with a logarithmic scale, as a value in a space.

    Raises ConfigError unless 0 < low < high < infinity.
    """
    remedy = "give two positive numbers, the lower one first"
    needs(is_number(low) and is_number(high) and 0 < low < high, "loguniform", (low, high), remedy)
    return HyperSpec("", math.sqrt(low * high), low, high, "log", tuned=True)


@dataclass(frozen=True)
class Rules:
    """Options of the default controller. The fields are named like the arguments of `tune.run`."""

    period: int | None = None
    quantile: float = FRACTION
    factors: Sequence[float] = (1.2, 0.8)
    explore: Callable[..., Mapping[str, Any]] | None = None

    def __post_init__(self) -> None:
        if self.period is not None:
            whole("period", self.period, 1)
        shares = is_number(self.quantile) and 0 <= self.quantile <= 0.5
        needs(shares, "quantile", self.quantile, "give 0 to 0.5")
        good = isinstance(self.factors, Sequence) and len(self.factors) > 0
        good = good and all(is_number(factor) and factor > 0 for factor in self.factors)
        needs(good, "factors", self.factors, "give positive numbers, such as (1.2, 0.8)")
        needs(self.explore is None or callable(self.explore), "explore", self.explore, "give a function")


def space_controller(table: Mapping[str, HyperSpec], steps: int, seed: int, rules: Rules) -> PbtController:
    """Return the default controller: synchronous PBT with truncation selection and perturbation by factors.

    table: name -> HyperSpec. steps, seed: arguments of `tune.run`.
    """
    explore: Explore = PerturbFactors(
        {n: spec for n, spec in table.items() if spec.tuned}, tuple(rules.factors)
    )
    if rules.explore is not None:
        explore = CustomExplore(_of_meanings(rules.explore, table), table, explore)
    return PbtController(
        table,
        seed,
        ready=Synchronous(int(rules.period or max(1, steps // COMPARISONS)), 0, 1),
        exploit=Truncation(rules.quantile, Gap(0, 0), others_mutate=False),
        explore=explore,
    )


def never_compared(count: int, steps: int, evaluate_every: int, rules: Rules) -> str:
    """Return the argument of `tune.run` that prevents all comparisons before the last step, with a remedy.

    Return "" without such an argument. count: number of members.
    """
    if count == 1:
        return "num_members=1: give 2 or more"
    for name, value in (("period", rules.period or 0), ("evaluate_every", evaluate_every)):
        if value >= steps > 1:
            return f"{name}={value}, but the run has {steps} steps: give less"
    return ""


def choices_of(table: Mapping[str, HyperSpec] | None) -> dict[str, list[str]]:
    """Return name -> texts of the choices, for the journal. Values without choices are left out."""
    return {name: [*map(meaning, spec.choices)] for name, spec in (table or {}).items() if spec.choices}


def table_of_texts(table: Mapping[str, HyperSpec] | None) -> dict[str, HyperSpec]:
    """Copy a table with texts as choices, for the journal, because choices may be objects of any type."""
    return {
        name: replace(spec, choices=(*map(meaning, spec.choices),)) for name, spec in (table or {}).items()
    }


def is_number(value: object) -> TypeGuard[float]:
    """True for a finite Python or NumPy number (not a bool) that a float can represent."""
    try:
        return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(float(value))
    except OverflowError:
        return False


def whole(name: str, value: object, least: int) -> int:
    """Convert an argument such as 5 or 1e6 to an integer. Raises ConfigError unless it is whole and >= `least`."""
    if is_number(value) and value >= least and float(value).is_integer():
        return int(value)
    raise ConfigError(f"{name}={value!r:.200} cannot be used: give a whole number, {least} or more")


def needs(condition: bool, name: str, value: object, remedy: str) -> None:
    """Raise ConfigError with name, value and remedy if `condition` is False."""
    if not condition:
        raise ConfigError(f"{name}={value!r:.200} cannot be used: {remedy}")


def _of_meanings(
    function: Callable[..., Mapping[str, Any]], table: Mapping[str, HyperSpec]
) -> Callable[[Values, Random], Values]:
    """Wrap a user's explore function, which takes decoded values, as a function of floats and a random generator."""
    who = f"explore={meaning(function)}"
    try:
        takes_rng = len(signature(function).parameters) > 1
    except (TypeError, ValueError):  # a function implemented in C
        takes_rng = False

    def moved(values: Values, rng: Random) -> Values:
        known = decode(table, values)
        with named(who):
            answer = function(dict(known), rng) if takes_rng else function(dict(known))
        if not isinstance(answer, Mapping) or answer.keys() != known.keys():
            what = f"it must return a value for each of {list(known)}"
            raise ConfigError(f"{who} returned {answer!r:.200}: {what}")
        return {name: _number(who, spec, _entry(who, answer, name)) for name, spec in table.items()}

    return moved


def _entry(who: str, answer: Mapping[str, Any], name: str) -> Any:
    """Return the value `name` of decoded values, the inverse of `decode`. Raises ConfigError if it is missing.

    who: name of the function that returned `answer`, for the message.
    """
    entry: Any = answer
    for key in name.split("."):
        try:
            entry = entry[int(key) if isinstance(entry, tuple | list) else key]
        except (KeyError, IndexError, TypeError, ValueError):
            raise ConfigError(f"{who} returned {answer!r:.200}: {name} is missing") from None
    return entry


def _number(who: str, spec: HyperSpec, value: Any) -> float:
    if not spec.choices:
        try:
            number = number_of(value)
        except (TypeError, ValueError):
            number = math.nan
        if math.isnan(number):
            raise ConfigError(f"{who} returned {spec.name}={value!r:.80}: give a number")
        return number
    for i, one in enumerate(spec.choices):
        if same_choice(one, value):
            return float(i)
    choices = f"{list(spec.choices)!r:.200}"
    raise ConfigError(f"{who} returned {spec.name}={value!r:.80}: give one of {choices}")


def _spec(name: str, value: Any) -> HyperSpec:
    if isinstance(value, HyperSpec):
        needs(value.scale in get_args(Scale), f"space[{name!r}]", value, f"give a scale of {get_args(Scale)}")
        needs(not value.starts_outside, f"space[{name!r}]", value, "give a default within low and high")
        return replace(value, name=name)
    if isinstance(value, list):
        needs(len(value) > 1, f"space[{name!r}]", value, "give two choices or more")
        return choice_spec(name, tuple(value), value[0])
    if isinstance(value, tuple):
        value = tuple(end.item() if hasattr(end, "item") else end for end in value)  # NumPy scalars
    pair = isinstance(value, tuple) and len(value) == 2 and all(type(end) in (int, float) for end in value)
    remedy = "give (low, high), a list of choices, or a HyperSpec; set constants in the member"
    needs(pair, f"space[{name!r}]", value, remedy)
    low, high = map(float, value)
    ordered = math.isfinite(low) and math.isfinite(high) and low < high
    needs(ordered, f"space[{name!r}]", value, "give two finite numbers, the lower one first")
    scale, middle = _scale(value)
    return HyperSpec(name, middle, low, high, scale, tuned=True)


def _scale(ends: tuple[float, float]) -> tuple[Scale, float]:
    low, high = ends
    if type(low) is int and type(high) is int:
        return "integer", float((low + high) // 2)
    if low > 0 and high / low >= LOG_RATIO:
        return "log", math.sqrt(low * high)
    return "linear", (low + high) / 2


def decode(table: Mapping[str, HyperSpec], values: Mapping[str, float]) -> dict[str, Any]:
    """Convert the floats of a controller to the values that `step` receives: floats, integers, choices.

    `name.0`, `name.1`, ... become the tuple `name`. `shaping.NAME` becomes an entry of the dictionary `shaping`.
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
    places = [str(i) for i in range(len(inner))]
    return tuple(inner[i] for i in places) if inner.keys() == {*places} else inner
