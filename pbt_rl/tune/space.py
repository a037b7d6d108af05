"""What a user wants tuned, in plain Python, as a table of values; and the controller of those who name none.

{"lr": (1e-5, 1e-1), "layers": (1, 4), "momentum": (0.0, 0.99), "optimiser": ["sgd", "adam"]}
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pbt_rl.errors import require
from pbt_rl.pbt.controllers import PbtController
from pbt_rl.pbt.exploit import Gap, Truncation
from pbt_rl.pbt.explore import PerturbFactors
from pbt_rl.pbt.hypers import HyperSpec, Scale, choice_spec
from pbt_rl.pbt.ready import Synchronous

LOG_RATIO = 100.0
"""Of the ends of a range: from here on it is tuned on a logarithmic scale."""
COMPARISONS = 10
"""In a run, if the user names no controller."""
FRACTION = 0.25
COLUMNS = ("member", "generation", "step", "objective")
"""Of `Result.rows`, beside the values."""

Space = Mapping[str, Any]


def table_of(space: Space) -> dict[str, HyperSpec]:
    """Return the table of a space. All values are drawn at the start but those of member 0, which has the middle.

    A tuple (low, high) of whole numbers is tuned as integers, another one on a logarithmic scale if its ends are
    positive and far apart, else linearly. A list holds choices of any kind. A HyperSpec is taken as it is.
    Raises ConfigError.
    """
    require(bool(space), "space", "{}", "name at least one value")
    for name in space:
        require(
            name not in COLUMNS,
            "space",
            name,
            "name it otherwise: rows of a result have a column of this name",
        )
    return {name: _spec(name, value) for name, value in space.items()}


def default_controller(table: Mapping[str, HyperSpec], steps: int, seed: int) -> PbtController:
    """Return PBT with ten comparisons: the worst quarter copies the best, values move by 1.2 or 0.8."""
    return PbtController(
        table,
        seed,
        ready=Synchronous(max(1, steps // COMPARISONS), 0, 1),
        exploit=Truncation(FRACTION, Gap(0, 0), others_mutate=False),
        explore=PerturbFactors({name: spec for name, spec in table.items() if spec.tuned}),
    )


def _spec(name: str, value: Any) -> HyperSpec:
    if isinstance(value, HyperSpec):
        return value
    if isinstance(value, list):
        require(len(value) > 1, f"space {name}", value, "give two choices or more")
        return choice_spec(name, tuple(value), value[0])
    pair = isinstance(value, tuple) and len(value) == 2 and all(type(end) in (int, float) for end in value)
    remedy = "give (low, high), a list of choices, or a HyperSpec; a constant belongs into the member"
    require(pair, f"space {name}", repr(value), remedy)
    low, high = map(float, value)
    ordered = math.isfinite(low) and math.isfinite(high) and low < high
    require(ordered, f"space {name}", repr(value), "give two finite numbers, the lower one first")
    scale, middle = _scale(value)
    return HyperSpec(name, middle, low, high, scale, tuned=True)


def _scale(ends: tuple[float, float]) -> tuple[Scale, float]:
    low, high = ends
    if type(low) is int and type(high) is int:
        return "integer", float((low + high) // 2)
    if low > 0 and high / low >= LOG_RATIO:
        return "log", math.sqrt(low * high)
    return "linear", (low + high) / 2
