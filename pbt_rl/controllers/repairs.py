"""Repairs of members that cannot learn any more, as Orion's PBT repairs broken trials. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from pbt_rl.controllers.changes import Change
from pbt_rl.controllers.decisions import Decision, MemberReport, Replace, Restart, StateKey
from pbt_rl.controllers.exploit import score
from pbt_rl.controllers.hypers import Values

_WHY = "its weights are not finite"


@dataclass(frozen=True)
class _Dropped:
    """The state that a member gave up to become a copy."""

    generation: int
    fork: int
    """The member's generation as that copy."""
    values: Values


@dataclass
class Broken:
    """Repairs of members that are broken: their weights are not finite.

    - At the start, before a member was ever found healthy at a comparison: it begins again with values drawn as at
      the start of the run (Orion: a trial broken at the lowest fidelity is ignored and another is sampled).
    - A copy that breaks before it was found healthy: the member falls back to the state it was dropped for
      (Orion: a broken fork backtracks to the trial that was dropped for it). That state is kept in memory until the
      copy was found healthy at a comparison.
    - Else the rule of selection decides as usual (Orion: a broken promotion is examined again); if it names no
      donor for a member with broken weights, that member begins again, for it can never recover.

    They are known at once, and repaired at once if no comparison is needed. An objective that is not finite is for the
    rule of selection, which ranks it last: weights do not make it.
    """

    initial: Callable[[Random], Values]
    """Draws the values of a member that begins again."""
    _proven: set[int] = field(default_factory=set, init=False)
    """Members that were found healthy with the weights they have, or with ancestors of those."""
    _dropped: dict[int, _Dropped] = field(default_factory=dict, init=False)

    def repairs(self, members: Sequence[MemberReport], rng: Random) -> list[Decision]:
        """Return what can be done at once for members that are broken."""
        decisions: list[Decision] = []
        for m in members:
            if m.member in self._dropped and self._dropped[m.member].fork == m.generation:
                old = self._dropped[m.member]
                reason = f"{_WHY}; back to the state of generation {old.generation}, dropped for this copy"
                decisions.append(
                    Replace(m.member, m.member, "both", dict(old.values), reason, old.generation)
                )
            elif m.member not in self._proven:
                decisions.append(self.restart(m, rng))
        return decisions

    def restart(self, m: MemberReport, rng: Random) -> Restart:
        """Return the decision that the member begins again."""
        return Restart(m.member, self.initial(rng), f"{_WHY}; begins again")

    def compared(self, members: Sequence[MemberReport], changes: Sequence[Change]) -> None:
        """Note who was healthy, and which states were dropped for copies. changes: of these members."""
        for m in members:
            if not math.isnan(score(m)):
                self._proven.add(m.member)
                self._dropped.pop(m.member, None)
        by_member = {m.member: m for m in members}
        for change in changes:
            if change.weights == "fresh":
                self._proven.discard(change.member)
            if change.weights == "fresh" or change.source is not None:
                self._dropped.pop(change.member, None)
            m = by_member[change.member]
            copied = change.weights == "copy" and not change.remembered
            if copied and not math.isnan(score(m)):
                self._dropped[m.member] = _Dropped(m.generation, change.generation, dict(m.values))

    def remembers(self) -> frozenset[StateKey]:
        """Return the states that were dropped for copies not yet found healthy."""
        return frozenset((member, d.generation) for member, d in self._dropped.items())
