"""Orion's rules of selection: a quantile, and a return to elites of the past; several rules as one."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from pbt_rl.controllers.decisions import MemberReport, StateKey
from pbt_rl.controllers.exploit import (
    Exploit,
    ExploitRule,
    Remembering,
    Selection,
    decides,
    describe_shortfall,
    rank,
    score,
)
from pbt_rl.controllers.hypers import Values
from pbt_rl.options import option


def too_few(member: int, known: int, *, renew: bool = False) -> Selection:
    """Return the selection of a member that cannot be judged yet."""
    reason = f"too few to judge: {known}"
    return Selection(member, None, mutate=False, reason=reason, renew=renew, later=True)


@dataclass(frozen=True)
class ExploitPipeline:
    """Rules in turn: the first that cannot judge yet or copies a donor decides; else the last one does.

    Orion's `PipelineExploit`; its default is `(Backtrack(), QuantileTruncation())`. Without a copy a
    member mutates if the last rule has it mutate.
    """

    rules: tuple[Exploit, ...]

    def select(
        self, members: Sequence[MemberReport], rng: Random, deciding: Collection[int] | None = None
    ) -> list[Selection]:
        """Judge the members by every rule, and take the first verdict that decides."""
        verdicts = [rule.select(members, rng, deciding) for rule in self.rules]
        return [_deciding(selections) for selections in zip(*verdicts, strict=True)]

    def remembers(self) -> frozenset[StateKey]:
        """Return what any of the rules remembers."""
        return frozenset().union(*(r.remembers() for r in self.rules if isinstance(r, Remembering)))


def _deciding(selections: Sequence[Selection]) -> Selection:
    renew = any(s.renew for s in selections)
    for selection in selections:
        if selection.later or selection.donor is not None:
            return replace(selection, renew=renew)
    return replace(selections[-1], renew=renew)


@dataclass(frozen=True)
class QuantileTruncation:
    """Orion's `TruncateExploit`: below a quantile, fork a uniformly drawn one of the best.

    quantile: members from this share of the ranking on are replaced. pool: share of the population that may be
    forked (rounded down). With fewer than `min_population` members, or an empty pool, the comparison stays due.
    Ours: a member never forks one that is no better than itself, nor one without a finite objective.
    """

    min_population: int = option(5, at_least=1)
    quantile: float = option(0.8, at_least=0, at_most=1)
    pool: float = option(0.2, at_least=0, at_most=1)

    def select(
        self, members: Sequence[MemberReport], rng: Random, deciding: Collection[int] | None = None
    ) -> list[Selection]:
        """Judge the members in their order."""
        scores = {m.member: score(m) for m in members}
        judged = [m for m in scores if decides(m, deciding)]
        pool_size = int(self.pool * len(scores) + 1e-9)
        if len(scores) < self.min_population or not pool_size:
            return [too_few(m, len(scores)) for m in judged]
        ranking = rank(scores, rng)
        rank_of = {m: i for i, m in enumerate(ranking)}
        pool = [m for m in ranking[:pool_size] if not math.isnan(scores[m])]
        selections = []
        for member in judged:
            donor = rng.choice(pool) if pool and rank_of[member] >= int(self.quantile * len(scores)) else None
            if donor is None or scores[member] >= scores[donor]:
                reason = f"objective {scores[member]:.4g} is at place {rank_of[member] + 1} of {len(scores)}"
                selections.append(Selection(member, None, mutate=False, reason=reason))
            else:
                reason = describe_shortfall(scores[member], scores[donor])
                selections.append(Selection(member, donor, mutate=True, reason=reason))
        return selections


MOST_LAG = 10
"""A member that took part in fewer comparisons than this less than another is judged as one that lags by so many."""


@dataclass(frozen=True)
class Elite:
    """A state worth returning to. depth: how many comparisons its member had taken part in, this one included."""

    member: int
    generation: int
    depth: int
    objective: float
    values: Values

    @property
    def key(self) -> StateKey:
        """(member, generation)"""
        return self.member, self.generation


@dataclass
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

    min_population: int = option(5, at_least=1)
    quantile: float = option(0.9, at_least=0, at_most=1)
    pool: float = option(0.2, at_least=0, at_most=1)
    _elites: dict[int, list[Elite]] = field(default_factory=dict, init=False)
    """By member: better and better with depth."""
    _depth: dict[int, int] = field(default_factory=dict, init=False)
    """Comparisons that a member has taken part in."""

    def select(
        self, members: Sequence[MemberReport], rng: Random, deciding: Collection[int] | None = None
    ) -> list[Selection]:
        """Record the deciding members' present states, then judge them against the elites."""
        judged = [m for m in members if decides(m.member, deciding)]
        renewed = {m.member for m in judged if self._record(m)}
        present = {m.member: m.generation for m in members}
        standings: dict[int, _Standing] = {}
        selections = []
        floor = max(self._depth.values(), default=0) - MOST_LAG
        for m in judged:
            depth = max(self._depth[m.member], floor)
            if depth not in standings:
                standings[depth] = _Standing(self._elites, depth)
            selections.append(self._selection(m, standings[depth], present, rng, renew=m.member in renewed))
        self._forget({m.member for m in members}, floor)
        return selections

    def _record(self, m: MemberReport) -> bool:
        """Count the comparison; return whether the present state is the member's new elite."""
        depth = self._depth[m.member] = self._depth.get(m.member, 0) + 1
        objective = score(m)
        elites = self._elites.setdefault(m.member, [])
        if math.isnan(objective) or (elites and elites[-1].objective >= objective):
            return False
        elites.append(Elite(m.member, m.generation, depth, objective, dict(m.values)))
        return True

    def _selection(
        self, m: MemberReport, standing: _Standing, present: dict[int, int], rng: Random, *, renew: bool
    ) -> Selection:
        elites, own = standing.elites, score(m)
        total = len(elites) + 1
        pool_size = int(self.pool * total + 1e-9)
        if total < self.min_population or not pool_size:
            return too_few(m.member, total, renew=renew)
        worse_than = standing.better_than(own)
        if worse_than >= int(self.quantile * total):
            elite = elites[rng.randrange(min(pool_size, len(elites)))]
            if math.isnan(own) or elite.objective > own:
                now = present.get(elite.member) == elite.generation
                reason = f"{describe_shortfall(own, elite.objective)}, an elite of depth {elite.depth}"
                generation = None if now else elite.generation
                return Selection(m.member, elite.member, True, reason, generation, base=elite.values)
        reason = f"objective {own:.4g} is behind {worse_than} of {len(elites)} elites"
        return Selection(m.member, None, mutate=False, reason=reason, renew=renew)

    def _forget(self, alive: set[int], floor: int) -> None:
        """Drop every elite that is followed by a better one which all members have reached the depth of."""
        least = max(floor, min((self._depth.get(m, 0) for m in alive), default=0))
        for elites in self._elites.values():
            while len(elites) > 1 and elites[1].depth <= least:
                del elites[0]

    def remembers(self) -> frozenset[StateKey]:
        """Return the states of all elites."""
        return frozenset(e.key for elites in self._elites.values() for e in elites)


class _Standing:
    """The elites at or below one depth, best first."""

    def __init__(self, by_member: dict[int, list[Elite]], depth: int) -> None:
        reached = ([e for e in elites if e.depth <= depth] for elites in by_member.values())
        self.elites = sorted((e[-1] for e in reached if e), key=lambda e: -e.objective)
        self._negated = [-e.objective for e in self.elites]

    def better_than(self, objective: float) -> int:
        """Return how many elites are better; all are better than NaN."""
        if math.isnan(objective):
            return len(self.elites)
        return bisect_left(self._negated, -objective)


QUANTILE = ExploitRule(
    lambda _: QuantileTruncation(),
    least_members=5,
    help="the worst fifth copies one of the best fifth (Orion).",
)
BACKTRACK = ExploitRule(
    lambda _: ExploitPipeline((Backtrack(), QuantileTruncation())),
    least_members=5,
    help="the worst return to an elite of any time, kept in memory; else as `quantile` (Orion's default).",
)
