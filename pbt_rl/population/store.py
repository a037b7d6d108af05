"""States of members in memory, and the restore points of members.

    user of a state            until
    a parked member            the member takes a slot
    the controller             the controller no longer remembers the state
    a learner                  the learner has written or read the state
    a checkpoint               the state is in a file

The bytes of a state are in an entry of a `StatePool` in shared memory. Initialised weights have a seed instead of an
entry.
Each user calls `keep` once and `release` once. The last release frees the entry.

A restore point is the state from which a member continues if its learner is lost: a state of the newest complete
checkpoint, initialised weights, or before the first checkpoint a state of the warm start (--init-from). The weights of
restore points are not in memory.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from numpy.typing import NDArray

from pbt_rl.actors.state_pool import Counts, MemberSnapshot, SavedStates, StatePool

Key = int
Arrays = Mapping[str, NDArray[Any]]
Seed = tuple[int, int]
"""(member, generation): seed of initialised weights."""
SPARE_BYTES = 1 << 26
"""Maximum total size in bytes of free entries whose memory is kept for reuse."""


class Initialiser(Protocol):
    """Factory of initialised weights."""

    def initialised(self, member: int, generation: int) -> Arrays:
        """Return the initialised state for a member and generation."""


@dataclass(frozen=True)
class RestorePoint:
    """Restore point of a member: a saved state, or initialised weights.

    A replacement changes the restore point: a copy continues from the restore point of its donor.
    """

    member: int
    """Member of the saved state or of the seed."""
    generation: int | None = None
    """Generation of initialised weights or of a remembered state. None: state of the member at the checkpoint."""
    initialised: bool = False
    """True for initialised weights."""
    frames: int = 0
    """Offset: `frames` plus the member's present frames is the number of training frames since the restore point."""
    pending: RestorePoint | None = None
    """Restore point to use when the checkpoint in progress is complete. None: keep this restore point."""

    def moved(self, frames: int) -> RestorePoint:
        """Return the restore point of a copy, from the restore point of its donor.

        frames: number to add to the offset: frames of the donor minus frames of the copy.
        """
        pending = None if self.pending is None else self.pending.moved(frames)
        return replace(self, frames=self.frames + frames, pending=pending)

    def settled(self, *, whole: bool) -> RestorePoint:
        """Return the restore point after the end of a checkpoint. whole: True if the checkpoint is complete."""
        return self.pending if whole and self.pending is not None else replace(self, pending=None)


class Store:
    """All states of a run. pool: memory of the states. initialiser: factory of initialised weights."""

    def __init__(self, pool: StatePool, initialiser: Initialiser) -> None:
        self.pool, self.initialiser = pool, initialiser
        self.saved: SavedStates = {}
        """States of the newest complete checkpoint. Before the first checkpoint, this is the argument `saved` of
        `Dispatch.open_store`.
        """
        self.saved_in: str | None = None
        """Name of the newest complete checkpoint. None without a complete checkpoint."""
        self._keys: Key = 0
        self._free: list[int] = []
        """Heap of free entries."""
        self._spare: set[int] = set()
        """Free entries whose memory is kept."""
        self._entries = 0

    @property
    def entries(self) -> int:
        """Number of entries in use."""
        return self._entries - len(self._free)

    def restored(self, point: RestorePoint) -> State:
        """Return a new state with the content of a restore point. Raises the errors of reading a checkpoint."""
        state = State(self, point.member)
        state.restore(point)
        return state

    def source(self, point: RestorePoint) -> dict[str, Any]:
        """Describe a restore point for the journal."""
        if point.initialised and point.generation:
            return {"drawn": [point.member, point.generation]}
        name = None if point.initialised else self.saved_in
        remembered = not point.initialised and point.generation is not None
        source = {"checkpoint": name, "member": point.member}
        return source | {"generation": point.generation} if remembered else source

    def next_key(self) -> Key:
        """Return the key of a new state."""
        self._keys += 1
        return self._keys

    def take_entry(self) -> int:
        """Allocate an entry of the pool, and return its number."""
        if not self._free:
            self._entries += 1
            self.pool.grow(self._entries)
            return self._entries - 1
        entry = heapq.heappop(self._free)
        self._spare.discard(entry)
        return entry

    def free_entry(self, entry: int) -> None:
        """Free an entry for reuse."""
        heapq.heappush(self._free, entry)
        if (len(self._spare) + 1) * self.pool.entry_bytes <= SPARE_BYTES:
            self._spare.add(entry)
        else:
            self.pool.clear(entry)


class State:
    """State of a member at one moment. A learner may still be writing it (`ready`). A written state never changes.

    member: the member that had this state. seed: seed of initialised weights. None: the state has other weights.
    fresh_frames: frames of the member when its weights were initialised.
    """

    def __init__(self, store: Store, member: int, seed: Seed | None = None, fresh_frames: int = 0) -> None:
        self._store, self.member = store, member
        self.key = store.next_key()
        self.seed = seed
        """Seed of initialised weights, which need no entry. None: the state has other weights."""
        self.counts = Counts(fresh_frames=fresh_frames)
        """Counts of the member, valid when the state is written. Initialised weights have only `fresh_frames`."""
        self.entry: int | None = None
        self.users = 0
        self._written = False

    @property
    def ready(self) -> bool:
        """True if the state can be read."""
        return self._written or self.seed is not None

    def keep(self) -> State:
        """Add a user of the state, and return the state. The user must call `release` once."""
        self.users += 1
        return self

    def release(self) -> None:
        """Remove a user of the state. The last user frees the memory."""
        self.users -= 1
        if self.users == 0:
            self._drop_entry()

    def read(self) -> Arrays:
        """Return name -> array. The arrays are views, which are valid while the state has a user.

        Initialised weights are computed anew instead.
        """
        if self.seed is not None:
            return self._store.initialiser.initialised(*self.seed)
        assert self._written, f"state {self.key} is not ready"
        assert self.entry is not None
        return self._store.pool.views(self.entry)

    def begin(self) -> int:
        """Allocate and return an entry of the pool, which a learner will write."""
        assert self.entry is None, f"state {self.key} already has an entry"
        self.entry = self._store.take_entry()
        return self.entry

    def saved(self) -> None:
        """Mark the state as written by its learner, and read the member's counts."""
        assert self.entry is not None
        self.counts, self._written = self._store.pool.counts(self.entry), True

    def restore(self, point: RestorePoint) -> None:
        """Replace the content of the state with the content of a restore point.

        Called for a new state, and for a state that a lost learner was writing. Raises the errors of reading a
        checkpoint.
        """
        if point.initialised:
            assert point.generation is not None
            self._drop_entry()
            self.member, self.seed = point.member, (point.member, point.generation)
            return
        self.fill(self._store.saved[point.member, point.generation]())

    def fill(self, snapshot: MemberSnapshot) -> None:
        """Copy a snapshot into memory."""
        header = snapshot.header
        self.member = header.member
        self.counts = Counts(header.frames, header.steps, header.updates, header.fresh_frames)
        self._store.pool.write(
            self.begin() if self.entry is None else self.entry, snapshot.arrays, self.counts
        )
        self._written = True

    def _drop_entry(self) -> None:
        entry, self.entry, self._written = self.entry, None, False
        if entry is not None:
            self._store.free_entry(entry)
