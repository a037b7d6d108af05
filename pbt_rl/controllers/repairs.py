"""Repair of broken members, as in Orion's PBT. Pure: without processes, files or torch."""

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
    """State of a member before a replacement changed the member into a copy."""

    generation: int
    fork: int
    """Generation of the copy."""
    values: Values


@dataclass
class Broken:
    """Repair of broken members (`MemberReport.broken`).

    A member is *proven* after a comparison in which its objective was finite, until it restarts.

    - A member that is not proven restarts with new values and initialised weights. (Orion ignores a trial that is
      broken at the lowest fidelity, and samples another trial.)
    - A copy of a present state may break before its first comparison with a finite objective. It then returns to its
      own state before the replacement, if the objective of this state was finite. The state stays in memory until that
      comparison. (Orion: a broken fork backtracks to the dropped trial.)
    - For other broken members, the exploit rule decides. (Orion re-examines a broken promotion.) If the rule selects no
      donor, the member restarts, because broken members rarely recover.

    The first two repairs happen immediately, without a comparison. A member that can learn is not broken, even if its
    objective is not finite, because the environment causes such objectives. Built-in exploit rules rank this member
    last.
    """

    initial: Callable[[Random], Values]
    """Function that draws the values of a restarted member."""
    _proven: set[int] = field(default_factory=set, init=False)
    """Members that have had a finite objective at a comparison since their last restart."""
    _dropped: dict[int, _Dropped] = field(default_factory=dict, init=False)

    def repairs(self, members: Sequence[MemberReport], rng: Random) -> list[Decision]:
        """Return decisions that repair broken members without a comparison. members: the broken members."""
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
        """Return the decision that restarts a member with new values and initialised weights."""
        return Restart(m.member, self.initial(rng), f"{_WHY}; restarts")

    def compared(self, members: Sequence[MemberReport], changes: Sequence[Change]) -> None:
        """Record proven members, and the states of members before replacements. changes: changes of these members."""
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
        """Return the keys (member, generation) of the earlier states to which broken copies may return."""
        return frozenset((member, d.generation) for member, d in self._dropped.items())
