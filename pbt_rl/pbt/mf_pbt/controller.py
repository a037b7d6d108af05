"""Population-based training at several frequencies, so that what pays off late is not selected away early."""

from __future__ import annotations

from dataclasses import dataclass, field

from pbt_rl.pbt.controllers import PbtController
from pbt_rl.pbt.hypers import Values
from pbt_rl.pbt.mf_pbt.groups import Groups, MigrantHypers

FREQUENCIES = (1, 10, 25, 50)
"""The paper's: each group is compared every this many rounds."""
FEW_MEMBERS, FEW_FREQUENCIES = 16, (1, 10)
"""A population of at most 16 has groups of one or two in four groups, which cannot select: it has two groups."""


def usual_frequencies(num_members: int) -> tuple[int, ...]:
    """Return the frequencies of a population whose user names none."""
    return FEW_FREQUENCIES if num_members <= FEW_MEMBERS else FREQUENCIES


@dataclass(eq=False)
class MfPbt(PbtController):
    """MF-PBT (Doulazmi et al. 2025, "Multiple-Frequencies Population-Based Training", section 4 and its source).

    The members are dealt out to as many groups as there are frequencies. A *round* is a comparison of `ready`, which
    must be one of all members; in round k those groups are compared whose frequency divides k. A group compares its
    members with each other by `exploit` (the paper: the worst quarter copies the best quarter and mutates), and then
    offers to its third quarter, from its best member down, the best members of all other groups. A migrant that is
    better replaces the member, also one that would copy inside its group: from a slower group with its values, from a
    faster one, whose values may be greedy, with its weights only. Then the member goes on from its own values
    (migrant_hypers `own`), or from those of its group's best member (`best`, as the authors' source has it).
    Migrants' values are not mutated.

    The paper wants groups of equal size, a multiple of four.
    """

    frequencies: tuple[int, ...] = field(default=FREQUENCIES, kw_only=True)
    migrant_hypers: MigrantHypers = field(default="own", kw_only=True)

    def __post_init__(self) -> None:
        # The same object as `exploit`, under its own type: no field, or it would be saved twice.
        self._groups = Groups(self.frequencies, self.exploit, self.migrant_hypers)
        self.exploit = self._groups
        super().__post_init__()

    def initial(self, num_members: int) -> list[Values]:
        """Deal out the members to the groups, and return their values."""
        self._groups.populate(num_members)
        return super().initial(num_members)
