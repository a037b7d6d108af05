"""MF-PBT: groups of members that are compared at different frequencies, with migrations between the groups.

Rarely compared groups preserve members that improve late.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Literal

from pbt_rl.controllers.controllers import PbtController, StaticController
from pbt_rl.controllers.decisions import Controller, MemberReport, StateKey
from pbt_rl.controllers.entry import ControllerContext, ControllerEntry, OptionGroups
from pbt_rl.controllers.exploit import (
    Deciding,
    Exploit,
    Members,
    Remembering,
    Selection,
    decides,
    describe_shortfall,
    rank,
    score,
)
from pbt_rl.controllers.hypers import Values
from pbt_rl.controllers.lookup import least_members, pbt_rules
from pbt_rl.controllers.options import PbtConfig
from pbt_rl.controllers.ready import grown
from pbt_rl.errors import require

MigrantHypers = Literal["own", "best"]
FREQUENCIES = (1, 10, 25, 50)
"""Group -> number of periods between two of its comparisons (defaults of Doulazmi et al. 2025)."""
FEW_MEMBERS, FEW_FREQUENCIES = 16, (1, 10)
"""Default for populations of at most `FEW_MEMBERS` members: two groups, because four groups would have at most four
members each."""


@dataclass
class Groups:
    """Exploit rule of `MfPbt`: group i is compared at every `frequencies[i]`-th comparison of the ready rule.

    Groups are blocks of consecutive ids. With N members and M groups, the first group contains the first N / M members,
    rounded up.
    migrant_hypers: values of a member that only copies weights (see `MfPbt`).
    """

    frequencies: tuple[int, ...]
    exploit: Exploit
    """Rule within each group."""
    migrant_hypers: MigrantHypers
    _rounds: int = field(default=0, init=False)
    _num_members: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        assert len(set(self.frequencies)) == len(self.frequencies) > 0
        assert min(self.frequencies) > 0

    def populate(self, num_members: int) -> None:
        """Set the number of members. Call this method before the others."""
        self._num_members = num_members

    def group(self, member: int) -> int:
        """Return the index of a member's group. A member never changes its group."""
        return member * len(self.frequencies) // self._num_members

    def select(self, members: Members, rng: Random, deciding: Deciding = None) -> list[Selection]:
        """Return one selection for each member in `deciding` (None: all members), in the order of `members`.

        Members of groups that are not due stay unchanged.
        """
        self._rounds += 1
        selections: dict[int, Selection] = {}
        scores = {m.member: score(m) for m in members}
        ranking = rank(scores, rng)
        for group, every in enumerate(self.frequencies):
            inside = [m for m in members if self.group(m.member) == group]
            if not inside:
                continue
            if self._rounds % every:
                reason = (
                    f"its group is compared once in {every} comparisons; this is comparison {self._rounds}"
                )
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
        """Return member -> selection for members of the third quarter that better members of other groups replace.

        group: index of the group. inside: its members. ranking: members of all groups, best first. scores: member ->
        mean objective, or NaN.
        """
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
            what = "weights and values" if slower else "weights only"
            reason = (
                f"{describe_shortfall(own, scores[migrant])}, "
                f"from a group compared once in {every} comparisons: {what}"
            )
            best = values[local[0]] if self.migrant_hypers == "best" and not slower else None
            copy: Literal["both", "weights"] = "both" if slower else "weights"
            changed[member] = Selection(member, migrant, mutate=False, reason=reason, copy=copy, base=best)
            migrant = next(outside, None)
        return changed

    def remembers(self) -> frozenset[StateKey]:
        """Return the keys (member, generation) of the states that the rule within the groups may restore."""
        return self.exploit.remembers() if isinstance(self.exploit, Remembering) else frozenset()


def usual_frequencies(num_members: int) -> tuple[int, ...]:
    """Return the default frequencies (`FREQUENCIES` or `FEW_FREQUENCIES`) for a population of this size."""
    return FEW_FREQUENCIES if num_members <= FEW_MEMBERS else FREQUENCIES


@dataclass(eq=False)
class MfPbt(PbtController):
    """MF-PBT: Multiple-Frequencies Population-Based Training (Doulazmi et al. 2025, section 4, and the authors' code).

    There is one group per frequency. The k-th comparison of `ready` compares the groups whose frequency divides k.
    `ready` must compare all members together. A group is compared in two steps:

    1. `exploit` selects within the group. (In the paper, the worst quarter copies the best quarter and mutates.)
    2. Members of the group's third quarter (by rank) are replaced by *migrants*: better members of other groups, best
       first. A migration overrides the selection of step 1. Migration does not mutate values.

    From a group that is compared less often, a migrant brings weights and values. From a group that is compared more
    often, a migrant only brings weights, because its values may only be good in the short term. A replaced member that
    only copies weights keeps its own values (migrant_hypers `own`). With `best`, as in the authors' code, it copies the
    values of the best member of its group.

    The paper requires groups of equal size, a multiple of four. This class accepts other sizes.
    """

    frequencies: tuple[int, ...] = field(default=FREQUENCIES, kw_only=True)
    migrant_hypers: MigrantHypers = field(default="own", kw_only=True)

    def __post_init__(self) -> None:
        # Typed alias of `exploit`. It is not a field, because a field would be saved twice.
        self._groups = Groups(self.frequencies, self.exploit, self.migrant_hypers)
        self.exploit = self._groups
        super().__post_init__()

    def initial(self, num_members: int) -> list[Values]:
        """Assign the members to groups, and return their start values."""
        self._groups.populate(num_members)
        return super().initial(num_members)


def _mf_pbt(given: ControllerContext) -> Controller:
    pbt = given.pbt
    if not pbt.enabled:
        return StaticController(given.table)
    frequencies = pbt.frequencies or usual_frequencies(given.members)
    groups = len(frequencies)
    least = groups * max(4, least_members(pbt.exploit))
    require(
        given.members >= least,
        "controller",
        "mf-pbt",
        f"{groups} groups (--pbt.frequencies) need at least {least} members: give --num-policies {least} or more",
    )
    require(
        pbt.ready == "synchronous",
        "pbt.ready",
        pbt.ready,
        "mf-pbt compares all members together: use synchronous",
    )
    require(
        pbt.exploit != "backtrack",
        "pbt.exploit",
        pbt.exploit,
        "it copies states of all groups, but mf-pbt selects within groups: use another rule",
    )
    require(pbt.copy == "both", "pbt.copy", pbt.copy, "mf-pbt chooses the parts that are copied: use both")
    return MfPbt(
        given.table,
        given.seed,
        **pbt_rules(given),
        frequencies=frequencies,
        migrant_hypers=pbt.migrant_hypers,
    )


def _never_compared(options: OptionGroups, members: int, budget_frames: int) -> str:
    """Return a warning about groups that are never compared within the budget, or ""."""
    pbt = options.group(PbtConfig)
    frequencies = pbt.frequencies or usual_frequencies(members)
    due, held = max(pbt.start_frames, pbt.period_frames), 0
    while due < budget_frames and held < max(frequencies):
        held += 1
        due += grown(pbt.period_frames, pbt.period_growth, held)
    never = " and ".join(f"{each}" for each in frequencies if each > held)
    return never and (
        f"note: this run ends at {budget_frames:,} frames, after {held} comparison{'' if held == 1 else 's'}. mf-pbt "
        f"never compares the groups with --pbt.frequencies {never}: decrease --pbt.period-frames, or give other "
        "frequencies"
    )


MF_PBT = ControllerEntry(
    _mf_pbt,
    ("pbt", "pbt.frequencies", "pbt.migrant_hypers"),
    "PBT in groups that are compared at different frequencies (Doulazmi et al. 2025).",
    compares=True,
    note=_never_compared,
)
