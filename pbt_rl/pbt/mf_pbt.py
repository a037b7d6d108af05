"""Population-based training at several frequencies, so that what pays off late is not selected away early."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from random import Random
from typing import Any, Literal

from pbt_rl.pbt.controllers import PbtController
from pbt_rl.pbt.decisions import MemberReport, StateKey
from pbt_rl.pbt.exploit.base import (
    Exploit,
    Remembering,
    Selection,
    Stateful,
    decides,
    describe_shortfall,
    rank,
    score,
)
from pbt_rl.pbt.explore.rules import Explore
from pbt_rl.pbt.hypers import HyperSpec, Values
from pbt_rl.pbt.ready import Ready

FREQUENCIES = (1, 10, 25, 50)
"""The paper's: each group is compared every so many rounds."""

MigrantHypers = Literal["own", "best"]


class Groups:
    """The rule of selection of `MfPbt`: members in groups, group i compared every `frequencies[i]` rounds.

    Members are dealt out in blocks: the first N / M of them are the first group.
    """

    def __init__(self, frequencies: Sequence[int], exploit: Exploit, migrant_hypers: MigrantHypers) -> None:
        assert len(set(frequencies)) == len(frequencies) > 0
        assert min(frequencies) > 0
        self.frequencies = tuple(frequencies)
        self._exploit = exploit
        self._migrant_hypers = migrant_hypers
        self._rounds = 0
        self._num_members = 0

    def populate(self, num_members: int) -> None:
        """Say how many members there are at the start; ids decide on the groups."""
        self._num_members = num_members

    def group(self, member: int) -> int:
        """Which group a member belongs to, for good."""
        return member * len(self.frequencies) // self._num_members

    def select(
        self, members: Sequence[MemberReport], rng: Random, deciding: Collection[int] | None = None
    ) -> list[Selection]:
        """Fates in order of `members`; those of groups that are not due go on."""
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
            selections |= {f.member: f for f in self._exploit.select(inside, rng)}
            selections |= self._migrations(group, inside, ranking, scores, selections)
        return [selections[m.member] for m in members if decides(m.member, deciding)]

    def _migrations(
        self,
        group: int,
        inside: Sequence[MemberReport],
        ranking: Sequence[int],
        scores: Mapping[int, float],
        selections: Mapping[int, Selection],
    ) -> dict[int, Selection]:
        """Offer the best of the other groups, one by one, to the third quarter of this one."""
        values = {m.member: m.values for m in inside}
        local = [m for m in ranking if m in values]
        outside = iter([m for m in ranking if m not in values and not math.isnan(scores[m])])
        migrant = next(outside, None)
        changed = {}
        for member in local[len(local) // 2 : len(local) - len(local) // 4]:
            own = scores[member]
            if selections[member].donor is not None or migrant is None or scores[migrant] <= own:
                continue
            every = self.frequencies[self.group(migrant)]
            slower = every > self.frequencies[group]
            what = "with its values" if slower else "weights only"
            reason = f"{describe_shortfall(own, scores[migrant])}, of a group compared every {every} rounds: {what}"
            best = values[local[0]] if self._migrant_hypers == "best" and not slower else None
            copy: Literal["both", "weights"] = "both" if slower else "weights"
            changed[member] = Selection(member, migrant, mutate=False, reason=reason, copy=copy, base=best)
            migrant = next(outside, None)
        return changed

    def remembers(self) -> frozenset[StateKey]:
        """What the rule inside the groups remembers."""
        return self._exploit.remembers() if isinstance(self._exploit, Remembering) else frozenset()

    def state_dict(self) -> dict[str, Any]:
        """Rounds held, the size of the population, and the state of the rule inside the groups."""
        inner = self._exploit.state_dict() if isinstance(self._exploit, Stateful) else {}
        return {"rounds": self._rounds, "num_members": self._num_members, "exploit": inner}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken."""
        self._rounds, self._num_members = int(state["rounds"]), int(state["num_members"])
        if isinstance(self._exploit, Stateful):
            self._exploit.load_state_dict(state["exploit"])


class MfPbt(PbtController):
    """MF-PBT (Doulazmi et al. 2025, "Multiple-Frequencies Population-Based Training", section 4 and its source).

    The members are dealt out to as many groups as there are frequencies. A *round* is a comparison of `ready`, which
    must be one of all members; in round k those groups are compared whose frequency divides k. A group compares its
    members with each other by `exploit` (the paper: the worst quarter copies the best quarter and mutates), and then
    offers to its third quarter, from its best member down, the best members of all other groups. A migrant that is
    better replaces the member: from a slower group with its values, from a faster one, whose values may be greedy,
    with its weights only. Then the member goes on from its own values (migrant_hypers `own`), or from those of
    its group's best member (`best`, as the authors' source has it). Migrants' values are not mutated.

    The paper wants groups of equal size, a multiple of four.
    """

    def __init__(
        self,
        table: Mapping[str, HyperSpec],
        seed: int,
        *,
        ready: Ready,
        exploit: Exploit,
        explore: Explore,
        frequencies: Sequence[int] = FREQUENCIES,
        migrant_hypers: MigrantHypers = "own",
    ) -> None:
        self._groups = Groups(frequencies, exploit, migrant_hypers)
        super().__init__(table, seed, ready=ready, exploit=self._groups, explore=explore)

    def initial(self, num_members: int) -> list[Values]:
        """Deal out the members, and answer as `PbtController`."""
        self._groups.populate(num_members)
        return super().initial(num_members)
