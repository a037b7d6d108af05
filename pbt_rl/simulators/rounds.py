"""Episodes of rows on a device, counted as rounds of row groups: sums, and no object per episode.

Axes: P slots, b rows of a policy, R = P * b, G groups of b / G rows, C columns of sums, N rounds.

A round of a group is the first episode that *begins* after the round opened, of each of its rows. When all have one, it
counts and the next one opens. An episode that ran when the round opened does not count: it would be a long one more
often; nor does a second one of a row, which would be a short one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

WAITS, PLAYS, DONE = range(3)
"""Stages of a row in its group's round: its episode has not begun, runs, has ended."""
LEADING = ("objective", "shaped_return", "length_steps")
APART = 3
"""Rounds of a group that are told apart between two reads; the last one takes in those that follow."""


class Rounds:
    """Rounds of all groups. Nothing waits for the device, and its memory has a fixed size."""

    def __init__(
        self, policies: int, rows: int, groups: int, stats: Sequence[str], device: torch.device
    ) -> None:
        assert rows % groups == 0
        self.size = rows // groups
        """Rows of a group."""
        self.stats = tuple(stats)
        self._by_group = (policies, groups, self.size)
        columns = len(LEADING) + len(self.stats)
        self._stage = torch.full(self._by_group, PLAYS, dtype=torch.int8, device=device)
        self._fresh = torch.ones(self._by_group, dtype=torch.bool, device=device)
        """The row's next step is the first of an episode."""
        self._sums = torch.zeros((3, *self._by_group), device=device)
        self._captured = torch.zeros((columns, *self._by_group), device=device)
        self.totals = torch.zeros((1 + columns, APART, policies, groups), device=device)
        """[1 + C, N, P, G] of the rounds that counted since the last `clear`: how many an entry has, sums of their
        means."""
        self._entries = torch.arange(APART, device=device)[:, None, None]

    def begin(self, slot: int) -> None:
        """Open new rounds in a slot: what runs there counts no more."""
        self._stage[slot] = torch.where(self._fresh[slot], PLAYS, WAITS)
        self.totals[:, :, slot] = 0

    def begin_all(self) -> None:
        """Note that every row begins an episode."""
        self._stage.fill_(PLAYS)
        self._fresh.fill_(True)
        self._sums.zero_()

    def step(
        self, objective: Tensor, reward: Tensor, ended: Tensor, stats: Mapping[str, Tensor] | None = None
    ) -> None:
        """Count a step of all rows, [R] each."""
        ended = ended.view(self._by_group)
        self._sums[0] += objective.view(self._by_group)
        self._sums[1] += reward.view(self._by_group)
        self._sums[2] += 1
        counts = ended & (self._stage == PLAYS)
        self._captured[:3] = torch.where(counts, self._sums, self._captured[:3])
        for i, name in enumerate(self.stats, len(LEADING)):
            assert stats is not None
            self._captured[i] = torch.where(counts, stats[name].view(self._by_group), self._captured[i])
        self._stage.masked_fill_(counts, DONE)
        self._stage.masked_fill_(ended & (self._stage == WAITS), PLAYS)
        self._sums.masked_fill_(ended, 0)
        self._fresh = ended
        full_PG = (self._stage == DONE).all(-1)
        entry_PG = self.totals[0].sum(0).clamp(max=APART - 1)
        here_NPG = full_PG & (self._entries == entry_PG)
        self.totals[0] += here_NPG
        self.totals[1:] += torch.where(here_NPG, self._captured.mean(-1)[:, None], 0)
        self._stage = torch.where(full_PG[..., None], torch.where(ended, PLAYS, WAITS), self._stage).to(
            torch.int8
        )

    def clear(self) -> None:
        """Forget the rounds that counted, once they are read."""
        self.totals.zero_()

    def means(self, totals: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return of what was read of `totals` the rounds, [N, P, G], and the means, [C, N, P, G]; NaN without any."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return totals[0].astype(np.int64), totals[1:] / totals[0]
