"""Repair of members that cannot learn any more, as in Orion's PBT. Pure."""

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
    """State that a member gave up to become a copy."""

    generation: int
    fork: int
    """Generation of the member as that copy."""
    values: Values


@dataclass
class Broken:
    """Repair of broken members: those whose weights are not finite.

    - A member that was never found healthy at a comparison restarts with newly drawn values. (Orion ignores a trial
      that is broken at the lowest fidelity, and samples another.)
    - A copy that breaks before it was found healthy returns to the state that the member had dropped for it. (Orion: a
      broken fork backtracks to the dropped trial.) That state stays in memory until the copy is found healthy at a
      comparison.
    - Otherwise the exploit rule decides as usual. (Orion re-examines a broken promotion.) If it selects no donor for a
      member with broken weights, the member restarts, because it can never recover.

    The first two repairs happen at once, without a comparison. An objective that is not finite does not make a member
    broken, because weights do not cause it. The exploit rule ranks it last.
    """

    initial: Callable[[Random], Values]
    """Draws the values of a restarted member."""
    _proven: set[int] = field(default_factory=set, init=False)
    """Members found healthy with their present weights or with ancestors of them."""
    _dropped: dict[int, _Dropped] = field(default_factory=dict, init=False)

    def repairs(self, members: Sequence[MemberReport], rng: Random) -> list[Decision]:
        """Return the repairs of broken members that need no comparison."""
        decisions: list[Decision] = []
        for m in members:
            if m.member in self._dropped and self._dropped[m.member].fork == m.generation:
                old = self._dropped[m.member]
                reason = f"{_WHY}; returns to generation {old.generation}, which it dropped for this copy"
                decisions.append(
                    Replace(m.member, m.member, "both", dict(old.values), reason, old.generation)
                )
            elif m.member not in self._proven:
                decisions.append(self.restart(m, rng))
        return decisions

    def restart(self, m: MemberReport, rng: Random) -> Restart:
        """Return the decision to restart a member."""
        return Restart(m.member, self.initial(rng), f"{_WHY}; restarts")

    def compared(self, members: Sequence[MemberReport], changes: Sequence[Change]) -> None:
        """Record healthy members and the states dropped for copies. changes: of these members."""
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
        """Return the states that members dropped for a copy, until the copy is found healthy."""
        return frozenset((member, d.generation) for member, d in self._dropped.items())
