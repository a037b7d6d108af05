"""Orion's two rules of selection: truncation by quantile, and backtracking to an elite of the past."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

from pbt_rl.pbt.decisions import Key, MemberReport
from pbt_rl.pbt.hypers import Values
from pbt_rl.pbt.selection import Fate, decides, describe_shortfall, rank, score


@dataclass(frozen=True)
class QuantileTruncation:
    """Orion's `TruncateExploit`: below a quantile, fork a uniformly drawn one of the best.

    quantile: members from this share of the ranking on are replaced. pool: share of the population that may be
    forked (rounded down). With fewer than `min_population` members, or an empty pool, the rule says "later".
    Ours: a member never forks one that is no better than itself, nor one without a finite objective.
    """

    min_population: int = 5
    quantile: float = 0.8
    pool: float = 0.2

    def fates(
        self, members: Sequence[MemberReport], rng: Random, deciding: Collection[int] | None = None
    ) -> list[Fate]:
        """Fates in order of `members`."""
        scores = {m.member: score(m) for m in members}
        asked = [m for m in scores if decides(m, deciding)]
        pool_size = int(self.pool * len(scores) + 1e-9)
        if len(scores) < self.min_population or not pool_size:
            return [_later(m, len(scores)) for m in asked]
        ranking = rank(scores, rng)
        place = {m: i for i, m in enumerate(ranking)}
        pool = [m for m in ranking[:pool_size] if not math.isnan(scores[m])]
        fates = []
        for member in asked:
            donor = rng.choice(pool) if pool and place[member] >= int(self.quantile * len(scores)) else None
            if donor is None or scores[member] >= scores[donor]:
                reason = f"objective {scores[member]:.4g} is at place {place[member] + 1} of {len(scores)}"
                fates.append(Fate(member, None, mutate=False, reason=reason))
            else:
                reason = describe_shortfall(scores[member], scores[donor])
                fates.append(Fate(member, donor, mutate=True, reason=reason))
        return fates


@dataclass(frozen=True)
class Elite:
    """A state worth returning to. depth: how many comparisons its member had taken part in, this one included."""

    member: int
    generation: int
    depth: int
    objective: float
    values: Values

    @property
    def key(self) -> Key:
        """(member, generation)"""
        return self.member, self.generation


class Backtrack:
    """Orion's `BacktrackExploit` (after Zhang et al. 2021): below a quantile, fork an elite of any time.

    The elites are the best state of each member over all its comparisons, at or below the depth of the member that
    is judged. If its objective is at or beyond the quantile of elites and itself, it becomes a copy of one of the
    best `pool` of them, drawn uniformly: of another member, or of its own past. In Orion's default pipeline the
    quantile is 0.9.

    The states are kept in memory (`remembers`): a member's best one, and older ones only while a member of lesser
    depth may still need them. A member whose present state becomes an elite begins a new generation, since a
    generation stands for one remembered state; in Orion, too, a promotion is a new trial.
    """

    def __init__(self, min_population: int = 5, quantile: float = 0.9, pool: float = 0.2) -> None:
        self.min_population = min_population
        self.quantile = quantile
        self.pool = pool
        self._elites: dict[int, list[Elite]] = {}
        """By member: better and better with depth."""
        self._depth: dict[int, int] = {}

    def fates(
        self, members: Sequence[MemberReport], rng: Random, deciding: Collection[int] | None = None
    ) -> list[Fate]:
        """Record the deciding members' present states, then judge them against the elites."""
        asked = [m for m in members if decides(m.member, deciding)]
        renewed = {m.member for m in asked if self._record(m)}
        present = {m.member: m.generation for m in members}
        standings: dict[int, _Standing] = {}
        fates = []
        for m in asked:
            depth = self._depth[m.member]
            if depth not in standings:
                standings[depth] = _Standing(self._elites, depth)
            fates.append(self._fate(m, standings[depth], present, rng, renew=m.member in renewed))
        self._forget({m.member for m in members})
        return fates

    def _record(self, m: MemberReport) -> bool:
        """Count the comparison; whether the present state is the member's new elite."""
        depth = self._depth[m.member] = self._depth.get(m.member, 0) + 1
        objective = score(m)
        elites = self._elites.setdefault(m.member, [])
        if math.isnan(objective) or (elites and elites[-1].objective >= objective):
            return False
        elites.append(Elite(m.member, m.generation, depth, objective, dict(m.values)))
        return True

    def _fate(
        self, m: MemberReport, standing: _Standing, present: dict[int, int], rng: Random, *, renew: bool
    ) -> Fate:
        elites, own = standing.elites, score(m)
        total = len(elites) + 1
        pool_size = int(self.pool * total + 1e-9)
        if total < self.min_population or not pool_size:
            return _later(m.member, total, renew=renew)
        worse_than = standing.better_than(own)
        if worse_than >= int(self.quantile * total):
            elite = elites[rng.randrange(min(pool_size, len(elites)))]
            if math.isnan(own) or elite.objective > own:
                now = present.get(elite.member) == elite.generation
                reason = f"{describe_shortfall(own, elite.objective)}, an elite of depth {elite.depth}"
                generation = None if now else elite.generation
                return Fate(m.member, elite.member, True, reason, generation, base=elite.values)
        reason = f"objective {own:.4g} is behind {worse_than} of {len(elites)} elites"
        return Fate(m.member, None, mutate=False, reason=reason, renew=renew)

    def _forget(self, alive: set[int]) -> None:
        """Drop the elites that a better one of no greater depth than any member's replaces."""
        least = min((self._depth.get(m, 0) for m in alive), default=0)
        for elites in self._elites.values():
            while len(elites) > 1 and elites[1].depth <= least:
                del elites[0]

    def remembers(self) -> frozenset[Key]:
        """The states of all elites."""
        return frozenset(e.key for elites in self._elites.values() for e in elites)

    def state_dict(self) -> dict[str, Any]:
        """Elites and depths of the members."""
        return {
            "depth": {str(m): depth for m, depth in self._depth.items()},
            "elites": {str(m): [asdict(e) for e in elites] for m, elites in self._elites.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken."""
        self._depth = {int(m): int(depth) for m, depth in state["depth"].items()}
        self._elites = {int(m): [Elite(**e) for e in elites] for m, elites in state["elites"].items()}


class _Standing:
    """The elites at or below one depth, best first."""

    def __init__(self, by_member: dict[int, list[Elite]], depth: int) -> None:
        reached = ([e for e in elites if e.depth <= depth] for elites in by_member.values())
        self.elites = sorted((e[-1] for e in reached if e), key=lambda e: -e.objective)
        self._negated = [-e.objective for e in self.elites]

    def better_than(self, objective: float) -> int:
        """How many elites are better; all of them than NaN."""
        if math.isnan(objective):
            return len(self.elites)
        return bisect_left(self._negated, -objective)


def _later(member: int, known: int, *, renew: bool = False) -> Fate:
    reason = f"too few to judge: {known}"
    return Fate(member, None, mutate=False, reason=reason, renew=renew, later=True)
