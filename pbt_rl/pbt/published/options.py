"""Options of rules of other systems and papers, beside those of PBT."""

from __future__ import annotations

from dataclasses import dataclass

from pbt_rl.options import option


@dataclass(frozen=True)
class PublishedOptions:
    """What these rules read besides the options of the others."""

    ready_fraction: float = option(0.8, above=0, at_most=1)
    """partially-synchronous: share of the members that must have arrived."""
    t_test_level: float = option(0.05, at_least=0, at_most=1)
    """t-test: level of the two-sided Welch test on the last 10 episodes."""
