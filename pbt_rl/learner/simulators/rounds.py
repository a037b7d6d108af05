"""Episode statistics of device simulators: means over row groups, without an object per episode.

Axes: P slots, b rows of a policy, R = P * b, G row groups of a policy, C statistics of an episode (LEADING and the
simulator's), N entries of `Rounds.totals` (see APART).

A row group consists of b / G rows of one policy. A round of a row group has one episode per row: the row's first
episode that *starts* after the start of the round. When all these episodes have ended, their means are added to
`Rounds.totals`, and the next round starts. A round leaves out episodes that already run at its start, because they
would bias the means towards long episodes. A round leaves out second episodes of a row, because they would bias the
means towards short episodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

WAITS, PLAYS, DONE = range(3)
"""Stage of a row in the current round: WAITS before its episode, PLAYS during its episode, DONE after it."""
LEADING = ("objective", "shaped_return", "length_steps")
"""Statistics of every episode. Statistics of the simulator follow."""
APART = 3
"""Number N of entries of `Rounds.totals` per row group: the first two rounds, and the sum of all further rounds."""


def nowhere(where: Tensor) -> bool:
    """True if all entries of a bool tensor are False. False on a GPU, because a check would need a synchronisation."""
    return where.device.type == "cpu" and not where.any()


class Rounds:
    """Episode statistics per round, in memory of fixed size. A round is one episode of each row of a row group.

    `step` never waits for the device. Masks and the stage of each row (waits, plays, done) are float32, because
    arithmetic is faster than selection by bools: 8 us instead of 40 to 60 us for 65,536 rows on a CPU.
    """

    def __init__(
        self,
        policies: int,
        rows: int,
        groups: int,
        stats: Sequence[str],
        device: torch.device,
        *,
        begun: bool = True,
    ) -> None:
        """Start the first rounds.

        rows: rows b of a policy, a multiple of `groups`. groups: number G of row groups of a policy.
        stats: names of the simulator's statistics.
        begun: True if the first round has the first episode of each row. False: the second episode of each row.
        """
        assert rows % groups == 0
        self.size = rows // groups
        """Rows per row group."""
        self.stats = tuple(stats)
        self._by_group = (policies, groups, self.size)
        columns = len(LEADING) + len(self.stats)
        self._stage = torch.full(self._by_group, float(PLAYS if begun else WAITS), device=device)
        self._goes_on = torch.zeros(self._by_group, device=device)
        """0 if the next step of the row is the first step of an episode, else 1."""
        self.sums = torch.zeros((len(LEADING), *self._by_group), device=device)
        """[3, P, G, b / G], sums of LEADING over the steps of each row's running (or just ended) episode. A non-finite
        sum stays non-finite in later episodes, because checks read the sums only once per rollout."""
        self._spare = torch.zeros((len(LEADING), *self._by_group), device=device)
        """Scratch memory, because an allocation at each step would take longer than the writes."""
        self._done = torch.zeros((policies, groups), device=device)
        """[P, G], number of rows whose episode in this round has ended."""
        self._ended = torch.zeros((columns, policies, groups), device=device)
        """[C, P, G], sums over the ended episodes in this round."""
        self.totals = torch.zeros((1 + columns, APART, policies, groups), device=device)
        """[1 + C, N, P, G]: number of counted rounds since the last `clear`, and sums of the means of these rounds."""
        self._entries = torch.arange(APART, device=device)[:, None, None]

    def open_rounds(self, slot: int) -> None:
        """Start a new round in each row group of a slot. Running episodes do not count. Reset the slot's totals."""
        self._stage[slot] = 1 - self._goes_on[slot]  # PLAYS or WAITS
        self._done[slot] = 0
        self._ended[:, slot] = 0
        self.totals[:, :, slot] = 0

    def step(
        self, objective: Tensor, reward: Tensor, ended: Tensor, stats: Mapping[str, Tensor] | None = None
    ) -> None:
        """Add one step of all rows.

        objective, reward: float32 [R]. ended: bool [R], True if an episode of the row ended with this step.
        stats: statistic -> [R], read only in rows whose episode ended.
        """
        for total, x in zip(self.sums[:2], (objective, reward), strict=True):
            torch.addcmul(x.view(self._by_group), total, self._goes_on, out=total)
        self.sums[2].mul_(self._goes_on).add_(1)
        torch.logical_not(ended.view(self._by_group), out=self._goes_on)
        if nowhere(ended):
            return
        ends = torch.sub(1, self._goes_on, out=self._spare[0])
        # 1 where an episode of the round ends: (DONE - stage) * stage is 1 for PLAYS, else 0.
        counts = torch.sub(DONE, self._stage, out=self._spare[1]).mul_(self._stage).mul_(ends)
        self._done += counts.sum(-1)
        for i, total in enumerate(self.sums):
            self._ended[i] += torch.mul(total, counts, out=self._spare[2]).sum(-1)
        for i, name in enumerate(self.stats, len(LEADING)):
            assert stats is not None
            values = stats[name].view(self._by_group)  # undefined on rows without an ended episode
            self._ended[i] += torch.where(counts > 0, values, 0).sum(-1)
        full_PG = self._done == self.size
        entry_PG = self.totals[0].sum(0).clamp(max=APART - 1)
        here_NPG = full_PG & (self._entries == entry_PG)
        self.totals[0] += here_NPG
        self.totals[1:] += torch.where(here_NPG, self._ended[:, None] / self.size, 0)
        self._done.masked_fill_(full_PG, 0)
        self._ended.masked_fill_(full_PG, 0)
        # Next stage at an episode's end: WAITS -> PLAYS -> DONE. If a round is full: PLAYS where the next
        # episode starts, else WAITS.
        self._stage.add_(ends).clamp_(max=DONE).lerp_(ends, full_PG.float()[..., None])

    def clear(self) -> None:
        """Set `totals` to 0. Call this after reading `totals`."""
        self.totals.zero_()

    def means(self, totals: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the number of rounds of each entry [N, P, G], and the mean of each statistic [C, N, P, G].

        A mean is over the rounds of the entry. If the entry has no rounds, the mean is NaN.

        totals: copy of the attribute `totals` on the host.
        """
        with np.errstate(invalid="ignore", divide="ignore"):
            return totals[0].astype(np.int64), totals[1:] / totals[0]
