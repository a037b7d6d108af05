"""What every rule of selection shares: its answer, its protocol, ranking, gaps, and the words for them."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol, runtime_checkable

from pbt_rl.pbt.decisions import CopyWhat, Key, MemberReport
from pbt_rl.pbt.hypers import Values


@dataclass(frozen=True)
class Fate:
    """What a comparison means for one member.

    donor: the member to become a copy of; None keeps the own weights.
    mutate: whether the values change (the donor's where there is one, else the member's own).
    donor_generation: None for the donor as it is; else a remembered state of it (`Remembering`).
    copy: what the rule takes from the donor. `weights`: the member goes on from its own values.
    base: values to go on from, where they are neither the donor's present ones nor the member's own.
    renew: begin a new generation though nothing changes, so that the state until now can be remembered.
    later: the rule could not judge yet; nothing happens. If it says so of every member, the comparison stays due.
    """

    member: int
    donor: int | None
    mutate: bool
    reason: str
    donor_generation: int | None = None
    copy: CopyWhat = "both"
    base: Values | None = None
    renew: bool = False
    later: bool = False


class Exploit(Protocol):
    """A rule of selection. One that keeps state between comparisons is also `Stateful`."""

    def fates(
        self, members: Sequence[MemberReport], rng: Random, deciding: Collection[int] | None = None
    ) -> list[Fate]:
        """One fate for each of the `deciding` members (None: for all), in the order of `members`.

        members: all that may be compared; the others of them are only donors and measures.
        """


@runtime_checkable
class Stateful(Protocol):
    """A rule that learns from one comparison for the next."""

    def state_dict(self) -> dict[str, Any]:
        """All state, as JSON types."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken."""


@runtime_checkable
class Remembering(Stateful, Protocol):
    """A rule that brings back states of the past."""

    def remembers(self) -> frozenset[Key]:
        """See `Controller.remembers`."""


@dataclass(frozen=True)
class Gap:
    """How much better a donor must be: by `relative` of the larger magnitude *and* by `absolute`.

    Sample Factory's two gaps. The larger of the two magnitudes, and not the member's objective, makes the rule
    mean the same for negative objectives; the absolute part keeps noise around 0 from counting.
    """

    relative: float
    absolute: float

    def exceeded(self, member: float, donor: float) -> bool:
        """Whether a member with this objective may be replaced. A member without a finite one always may."""
        if math.isnan(member):
            return True
        lead = donor - member
        return lead > self.relative * max(abs(donor), abs(member)) and lead > self.absolute


def score(member: MemberReport) -> float:
    """Mean objective; NaN for a member that is broken (it then has no use for an objective)."""
    return math.nan if member.broken or not member.objectives else mean_objective(member.objectives)


def mean_objective(objectives: Collection[float]) -> float:
    """Mean, or NaN as soon as one of the objectives is NaN or infinite (or their sum overflows).

    +inf counts as broken too: it is an environment's mistake, and as a donor it would take over.
    """
    assert objectives, "a member was compared without an objective"
    if not all(map(math.isfinite, objectives)):
        return math.nan
    try:
        return math.fsum(objectives) / len(objectives)
    except OverflowError:
        return math.nan


def rank(score: dict[int, float], rng: Random) -> list[int]:
    """Members from best to worst; NaN last; ties in an order drawn from `rng`."""
    members = list(score)
    rng.shuffle(members)
    return sorted(members, key=lambda m: math.inf if math.isnan(score[m]) else -score[m])


def band_size(fraction: float, members: int) -> int:
    """K: how many are best and how many worst. The epsilon keeps ceil(0.07 * 100) at 7."""
    return min(math.ceil(fraction * members - 1e-9), members // 2)


def describe_shortfall(member: float, donor: float) -> str:
    """Say how far an objective is below the donor's, in words, relative to the larger magnitude."""
    if math.isnan(member):
        return f"objective is not finite, the donor's is {donor:.4g}"
    magnitude = max(abs(member), abs(donor))
    share = (donor - member) / magnitude if magnitude else 0.0
    return f"objective {member:.4g} is {100 * share:.0f} % below the donor's {donor:.4g}"


def decides(member: int, deciding: Collection[int] | None) -> bool:
    """Whether a fate of this member is asked for."""
    return deciding is None or member in deciding
