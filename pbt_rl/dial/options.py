"""The option `--hours`."""

from __future__ import annotations

from dataclasses import dataclass

from pbt_rl.options import option


@dataclass(frozen=True)
class HoursOption:
    """The time of a run, from which the rest of its options follows."""

    hours: float | None = option(None, above=0, at_most=10_000, common=True)
    """Train for so many hours (0.5 is allowed), and choose what else depends on it: members, environments, when members
    are compared (about 37 times) and by how many episodes. A trial of some seconds before, also with --show, measures
    the speed and how long an episode is. What you give yourself stays as you give it."""
