"""Selection within groups of members that are compared at different frequencies, with migrations between them."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Literal

from pbt_rl.pbt.decisions import MemberReport, StateKey
from pbt_rl.pbt.exploit import (
    Exploit,
    Remembering,
    Selection,
    decides,
    describe_shortfall,
    rank,
    score,
)

MigrantHypers = Literal["own", "best"]


@dataclass
class Groups:
    """The rule of selection of `MfPbt`: members in groups, group i compared every `frequencies[i]` rounds.

    Members are dealt out in blocks: the first of M groups holds the first N / M members.
    """

    frequencies: tuple[int, ...]
    exploit: Exploit
    """Rule inside the groups."""
    migrant_hypers: MigrantHypers
    _rounds: int = field(default=0, init=False)
    _num_members: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        assert len(set(self.frequencies)) == len(self.frequencies) > 0
        assert min(self.frequencies) > 0

    def populate(self, num_members: int) -> None:
        """Set the number of members at the start; a member's id decides on its group."""
        self._num_members = num_members

    def group(self, member: int) -> int:
        """Return the group that a member always belongs to."""
        return member * len(self.frequencies) // self._num_members

    def select(
        self, members: Sequence[MemberReport], rng: Random, deciding: Collection[int] | None = None
    ) -> list[Selection]:
        """Judge the members in their order; those of groups that are not due go on."""
        self._rounds += 1
        selections: dict[int, Selection] = {}
        scores = {m.member: score(m) for m in members}
        ranking = rank(scores, rng)
        for group, every in enumerate(self.frequencies):
            inside = [m for m in members if self.group(m.member) == group]
            if not inside:
                continue
            if self._rounds % every:
                reason = f"its group is compared every {every} rounds; this is round {self._rounds}"
                selections |= {
                    m.member: Selection(m.member, None, mutate=False, reason=reason) for m in inside
                }
                continue
            selections |= {s.member: s for s in self.exploit.select(inside, rng)}
            selections |= self._migrations(group, inside, ranking, scores)
        return [selections[m.member] for m in members if decides(m.member, deciding)]

    def _migrations(
        self,
        group: int,
        inside: Sequence[MemberReport],
        ranking: Sequence[int],
        scores: Mapping[int, float],
    ) -> dict[int, Selection]:
        """Offer the best of the other groups, one by one, to the third quarter of this one."""
        values = {m.member: m.values for m in inside}
        local = [m for m in ranking if m in values]
        outside = iter([m for m in ranking if m not in values and not math.isnan(scores[m])])
        migrant = next(outside, None)
        changed = {}
        size = len(local)
        for member in local[(size + 1) // 2 : size - max(1, size // 4)]:
            own = scores[member]
            if migrant is None or scores[migrant] <= own:
                continue
            every = self.frequencies[self.group(migrant)]
            slower = every > self.frequencies[group]
            what = "with its values" if slower else "weights only"
            reason = f"{describe_shortfall(own, scores[migrant])}, of a group compared every {every} rounds: {what}"
            best = values[local[0]] if self.migrant_hypers == "best" and not slower else None
            copy: Literal["both", "weights"] = "both" if slower else "weights"
            changed[member] = Selection(member, migrant, mutate=False, reason=reason, copy=copy, base=best)
            migrant = next(outside, None)
        return changed

    def remembers(self) -> frozenset[StateKey]:
        """Return what the rule inside the groups remembers."""
        return self.exploit.remembers() if isinstance(self.exploit, Remembering) else frozenset()
