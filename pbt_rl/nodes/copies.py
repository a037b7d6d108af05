"""Copies of all members in this process's memory, made between checkpoints: a node may take its members along.

A round of copies saves every resident member into the pool; from then on members go on from there if they are lost.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from pbt_rl.actors.messages import Saved
from pbt_rl.population.population import Population
from pbt_rl.population.store import Key
from pbt_rl.record.folder import RunFolder
from pbt_rl.run.checkpointing import Checkpointing
from pbt_rl.run.comparisons import Comparisons
from pbt_rl.run.fleet import Fleet
from pbt_rl.run.recorder import Recorder
from pbt_rl.run.resolved import ResolvedRun

ROUND_SECONDS = 1.0
"""What a round of copies may wait for decisions on their way, or take longer than the one before."""


@dataclass(eq=False)
class Copies:
    """A round of copies. to_come: states that their learner is still to save; pinned."""

    number: int
    to_come: set[Key]
    began: float = field(default_factory=time.monotonic)


class CopyingCheckpoints(Checkpointing):
    """Makes copies, too, so that there are some that are at most --copy-seconds old."""

    def __init__(
        self,
        resolved: ResolvedRun,
        folder: RunFolder,
        population: Population,
        recorder: Recorder,
        comparisons: Comparisons,
    ) -> None:
        super().__init__(resolved, folder, population, recorder, comparisons)
        self._copy_seconds = resolved.config.copy_seconds
        self._copies: Copies | None = None
        self._took = 0.0
        """Seconds that the last copies took."""
        self._copy_asked = False
        self._next_copies = math.inf
        self.whole = 0
        """Number of the last checkpoint or copies that are whole."""

    def start(self) -> None:
        """See Checkpointing. The first copies are due."""
        super().start()
        if self._copy_seconds and not self.whole:
            self._next_copies = time.monotonic()

    def ask_copy(self) -> None:
        """Have members copied soon, due or not."""
        self._copy_asked = True

    def ask_last(self) -> None:
        """See Checkpointing. No copies are made any more."""
        super().ask_last()
        self._copy_seconds, self._next_copies, self._copy_asked = 0.0, math.inf, False

    @property
    def due(self) -> bool:
        """Whether a checkpoint or copies should begin as soon as they can."""
        if self._in_progress:
            return False
        return super().due or self._copy_asked or time.monotonic() >= self._next_copies

    @property
    def _in_progress(self) -> bool:
        return self._copies is not None or super()._in_progress

    def begin_checkpoint(
        self, fleet: Fleet, packs: Collection[int], make_state: Callable[[], dict[str, Any]]
    ) -> None:
        """Begin to save the run, or to copy its members if no checkpoint is due."""
        on_disk, self._copy_asked = super().due, False
        if self._copy_seconds:
            self._next_copies = time.monotonic() + self._period
        if on_disk:
            super().begin_checkpoint(fleet, packs, make_state)
            return
        self.begun += 1
        wanted = self._dispatch.begin_checkpoint(packs, to_disk=False)
        self._copies = Copies(self.begun, {key for key, header in wanted if header is None})
        for key, header in wanted:
            if header is not None:  # it is in the pool
                self._dispatch.store.unpin(key)
        for pack in sorted(packs):
            while self._dispatch.save_next(pack):
                pass
        self._end_copies(self._copies)

    @property
    def _period(self) -> float:
        """Seconds from one beginning to the next, so that no copy becomes older than --copy-seconds."""
        return max(self._copy_seconds / 2, self._copy_seconds - 2 * self._took - ROUND_SECONDS)

    def note_saved(self, pack: int, message: Saved) -> None:
        """A state lies in the pool, perhaps a copy."""
        current = self._copies
        if current is None or message.key not in current.to_come:
            super().note_saved(pack, message)
            return
        self.moved += 1
        current.to_come.remove(message.key)
        self._dispatch.store.unpin(message.key)
        self._end_copies(current)

    def _end_copies(self, current: Copies) -> None:
        if not current.to_come:
            self._took = time.monotonic() - current.began
            self._whole(current.number)

    def _whole(self, number: int) -> None:
        super()._whole(number)
        self._copies, self.whole = None, number

    def abandon(self, reason: str) -> None:
        """See Checkpointing."""
        super().abandon(reason)
        if self._copies is not None:
            for key in self._copies.to_come:
                self._dispatch.store.unpin(key)
            self._copies, self._copy_asked = None, True
            self._dispatch.end_checkpoint(whole=False)
