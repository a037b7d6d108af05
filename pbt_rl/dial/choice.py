"""Members, environments and comparisons from a time, a speed and the length of episodes. Pure.

A member can be compared once each of its environments has ended an episode that began after the member's last change:
up to two episodes after it. With N members of E environments each, S steps/s of all members and episodes of L steps,
that takes 2 L N E / S seconds. It has to fit into a period with room to spare, as episodes become longer while
members learn, and the speed of a trial is not that of the run:

    N E <= ROOM * S * period / (2 L)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

PERIODS = 40
"""In the whole time: with the first comparison after `BURN_IN` of it there are 37."""
BURN_IN = 0.1
ROOM = 0.7
"""Share of a period in which members can be compared if speed and episodes are as measured."""
MEMBERS = (16, 12, 8, 6, 4, 3, 2)
USUAL_MEMBERS = 4
"""Fewer only if episodes are too long for a population of so many."""
LONGER, MUCH_LONGER = 4.0, 16.0
"""Episodes may become so many times as long (CartPole's: 20), if their limit allows it: the first for the usual
population, the second for a larger one."""
LEAST_ENVIRONMENTS = 2
"""Of a member: an actor steps one while the other waits."""
ENOUGH_ENVIRONMENTS = 8
"""There are rather fewer members, down to the usual ones, than fewer environments of each."""
STEPS_OF_NUMBERS, STEPS_OF_IMAGES = 200_000, 1_000_000
"""More than the usual members only if each can train on so many steps."""
LONGEST_ROLLOUT = 128
LEAST_SECONDS = 30.0
"""Below, processes start for as long as they train."""


class TooShortError(Exception):
    """The time is too short for any comparison. seconds: that would suffice."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


@dataclass(frozen=True)
class Measured:
    """What a trial has shown."""

    steps_per_second: float
    """Of all members."""
    episode_steps: float
    """Of a usual episode."""
    longest_steps: float
    """Of the longest one; at least so many, if none has ended."""
    limit_steps: int | None = None
    """That no episode exceeds, if the environment says so."""
    images: bool = False


@dataclass(frozen=True)
class Choice:
    """What follows."""

    members: int
    environments: int
    """Of each member; as many as wanted, or fewer."""
    period_seconds: float
    start_seconds: float
    min_episodes: int
    window: int
    """Episodes that an objective is the mean of, at most."""


def capacity(seconds: float, measured: Measured, steps: float) -> float:
    """Return how many environments of all members can end episodes of so many steps in time for a comparison."""
    return ROOM * measured.steps_per_second * seconds / PERIODS / (2 * max(1.0, steps))


def _safe(seconds: float, measured: Measured) -> float:
    """Return a capacity for episodes that become longer: as many environments as usual, or such as allow for more."""
    longest, limit = measured.longest_steps, measured.limit_steps or math.inf
    much, some = min(limit, MUCH_LONGER * longest), min(limit, LONGER * longest)
    usual = USUAL_MEMBERS * ENOUGH_ENVIRONMENTS
    return max(capacity(seconds, measured, much), min(usual, capacity(seconds, measured, some)))


def chosen(
    seconds: float,
    measured: Measured,
    wanted: int,
    members: int | None = None,
    everyone: Callable[[int], int] = lambda count: count,
) -> Choice:
    """Choose. wanted: environments of a member if nothing limits them. members: as the user gives them.

    everyone: members of the population -> all that train beside them, themselves included. Raises TooShortError if not
    even two members with two environments each can be compared.
    """
    least_each = min(LEAST_ENVIRONMENTS, wanted)
    least = everyone(members or MEMBERS[-1]) * least_each
    most = capacity(seconds, measured, measured.longest_steps)
    if most < least or seconds < LEAST_SECONDS:
        raise TooShortError(max(LEAST_SECONDS, seconds * least / most))
    safe = _safe(seconds, measured)
    population = members or _members(seconds, measured, wanted, (safe, most), everyone)
    count = everyone(population)
    environments = min(wanted, int(most / count), max(least_each, int(safe / count)))
    period = seconds / PERIODS
    ended = measured.steps_per_second * period / count / max(1.0, measured.episode_steps)
    return Choice(
        members=population,
        environments=environments,
        period_seconds=_rounded(period),
        start_seconds=_rounded(BURN_IN * seconds),
        min_episodes=max(2, min(5, environments)),
        window=max(10, environments, min(100, round(ended / 2))),
    )


def _members(
    seconds: float,
    measured: Measured,
    wanted: int,
    room: tuple[float, float],
    everyone: Callable[[int], int],
) -> int:
    """Return the largest population of which each member has enough steps and environments.

    room: environments of all members, with episodes that become longer, and with those that were measured.
    """
    steps, (safe, most) = STEPS_OF_IMAGES if measured.images else STEPS_OF_NUMBERS, room
    for population in MEMBERS:
        count = everyone(population)
        if population > USUAL_MEMBERS:
            trained = measured.steps_per_second * seconds / count
            fits = trained >= steps and count * min(wanted, ENOUGH_ENVIRONMENTS) <= safe
        else:
            fits = count * min(wanted, LEAST_ENVIRONMENTS) <= most
        if fits:
            return population
    raise AssertionError("two members fit")


def _rounded(seconds: float) -> float:
    """Round to three digits."""
    return round(seconds, 2 - math.floor(math.log10(seconds)))
