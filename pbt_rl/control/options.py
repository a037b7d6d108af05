"""Options of the control group."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from pbt_rl.errors import require
from pbt_rl.options import option


def number_of_controls(control: float, population: int) -> int:
    """Return the members of the control group. control: their number, or below 1 a share of the population."""
    return math.ceil(control * population) if control < 1 else int(control)


@dataclass(frozen=True)
class ControlOptions:
    """Members that no controller sees."""

    control: float = option(0.0, at_least=0, at_most=100_000, zero="none", common=True)
    """A control group, to see whether the population does better than its draws left alone: so many more members, or
    below 1 that share of --num-policies (rounded up). Control i begins as member i does and trains on as many frames;
    it is never compared, changed or copied. All members play the final games, and `report` compares both groups."""

    def check_whole(self, config: Any) -> None:
        """Raise ConfigError for a broken number of members."""
        control = config.control
        require(
            control < 1 or control == int(control),
            "control",
            control,
            "give a number of members, or a share of --num-policies below 1",
        )
