"""Options of MF-PBT, beside those of PBT."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pbt_rl.options import option


@dataclass(frozen=True)
class MfPbtOptions:
    """Groups of members that are compared at different frequencies."""

    frequencies: tuple[int, ...] = option((), at_least=1, distinct=True, empty=True)
    """mf-pbt: one group of members for each of these, compared every n-th period. Empty: 1 10 for at most 16 members,
    else 1 10 25 50 (Doulazmi et al. 2025)."""
    migrant_hypers: Literal["own", "best"] = "own"
    """mf-pbt: a member that takes the weights of a faster group keeps its `own` values or takes those of the `best`
    member of its group."""
