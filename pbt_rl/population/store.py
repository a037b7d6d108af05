"""Immutable states of a run, kept alive by references. Pure.

    user                kept as long as                                       type of the reference
    a parked member     it has no slot                                        Pin
    the controller      it remembers the state                                Pin
    a learner           it writes or reads the entry                          Pin
    a checkpoint        the state is not written yet                          Pin
    a restore point     no newer state of its weights is complete (`Origin`)  State; Pin if no checkpoint has it

The bytes of a state are in an entry of the pool, or remote: in a complete checkpoint, or initialised from a seed. A
user that needs them in memory has a `Pin`. An entry is freed when the last pin is dropped, unless it is the only copy,
and at the latest with the state. Drop references only in the supervisor's thread.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from numpy.typing import NDArray

from pbt_rl.actors.store import Counts, MemberSnapshot, SnapshotHeader, StatePool

Key = int
Arrays = Mapping[str, NDArray[Any]]
SPARE_BYTES = 1 << 26
"""Total size of free entries that keep their memory for reuse."""


class Draws(Protocol):
    """Factory of initialised weights."""

    def drawn(self, member: int, generation: int) -> Arrays:
        """Return the initialised state of a member in this generation."""


@dataclass(frozen=True)
class Elsewhere:
    """Remote copy of a state's bytes. source: for the journal."""

    read: Callable[[], MemberSnapshot]
    source: Mapping[str, Any] = field(default_factory=dict)


class Store:
    """Entries of all states of a run. pool: their memory. draws: factory of initialised weights."""

    def __init__(self, pool: StatePool, draws: Draws) -> None:
        self.pool, self._draws = pool, draws
        self._keys: Key = 0
        self._free: list[int] = []
        """Reusable entries, lowest first. Those in `_spare` may still have memory."""
        self._spare: set[int] = set()
        self._entries = 0

    @property
    def entries(self) -> int:
        """Number of entries in use."""
        return self._entries - len(self._free)

    def add_read(self, snapshot: MemberSnapshot, elsewhere: Elsewhere) -> Pin:
        """Add a state that was read from a remote copy."""
        state = State(self, snapshot.header, elsewhere)
        pin = Pin(state)
        state.fill(snapshot)
        return pin

    def add_drawn(
        self, header: SnapshotHeader, drawn: tuple[int, int], source: Mapping[str, Any] | None = None
    ) -> State:
        """Add initialised weights. drawn: (member, generation) of their seed. source: for the journal."""

        def read() -> MemberSnapshot:
            return MemberSnapshot(header, self._draws.drawn(*drawn))

        elsewhere = Elsewhere(read, {"drawn": list(drawn)} if source is None else source)
        return State(self, header, elsewhere, seed=drawn)

    def next_key(self) -> Key:
        """Return the key of a new state."""
        self._keys += 1
        return self._keys

    def take_entry(self) -> int:
        """Allocate an entry."""
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


@dataclass(eq=False)
class State:
    """State of a member. Readable as long as a reference exists and its bytes exist anywhere."""

    store: Store
    header: SnapshotHeader
    """Metadata besides the arrays."""
    elsewhere: Elsewhere | None = None
    seed: tuple[int, int] | None = None
    """(member, generation) that its weights are initialised for."""
    before: State | None = None
    """Substitute if the learner is lost before it has written this state."""
    pins: int = field(default=0, init=False)
    """Number of `Pin`s, which alone update it."""
    _entry: int | None = field(default=None, init=False)
    _whole: bool = field(default=False, init=False)
    """The bytes are in the entry."""

    def __post_init__(self) -> None:
        self.key = self.store.next_key()

    def __del__(self) -> None:
        self._drop_entry()

    @property
    def drawn(self) -> tuple[int, int] | None:
        """(member, generation) of initialised weights. None for other states, and once it is in memory."""
        return None if self._whole else self.seed

    @property
    def source(self) -> dict[str, Any]:
        """Origin of the bytes, for the journal."""
        return {} if self.elsewhere is None else dict(self.elsewhere.source)

    @property
    def readable(self) -> State:
        """The state itself, or its substitute while a learner has not written it yet."""
        return self if self.before is None else self.before.readable

    def read(self) -> MemberSnapshot:
        """Return the content. Its arrays are views that are valid while it is pinned. Raises as its source does."""
        if self.before is not None:
            return self.before.read()
        if self._whole:
            assert self._entry is not None
            return MemberSnapshot(self.header, self.store.pool.views(self._entry))
        assert self.elsewhere is not None, f"state {self.key} does not exist"
        return self.elsewhere.read()

    def entry(self, *, to_write: bool = False) -> int:
        """Return the entry of a pinned state. to_write: a learner writes it now.

        Otherwise the bytes are loaded into it, unless a learner writes them. Raises as its source does.
        """
        assert self.pins > 0, f"state {self.key} is not pinned"
        assert self._entry is None or not to_write, f"state {self.key} already has an entry"
        if self._entry is None and to_write:
            self._entry = self.store.take_entry()
        elif self._entry is None:
            self.fill(self.read())
        assert self._entry is not None
        return self._entry

    def fill(self, snapshot: MemberSnapshot) -> None:
        """Write the bytes into the entry."""
        if self._entry is None:
            self._entry = self.store.take_entry()
        header = snapshot.header
        counts = Counts(header.frames, header.steps, header.updates, header.fresh_frames)
        self.store.pool.write(self._entry, snapshot.arrays, counts)
        self._whole = True

    def saved(self) -> None:
        """Mark the state as written by its learner, counts included."""
        assert self._entry is not None
        counts = self.store.pool.counts(self._entry)
        self._whole, self.before = True, None
        self.header = replace(self.header, **counts._asdict())

    def lost(self) -> None:
        """Replace the content by the substitute, because its learner is lost.

        The learner has dropped its pin.

        Raises as reading the substitute does.
        """
        older = self.readable
        self.header = replace(self.header, fresh_frames=older.header.fresh_frames)
        if older.drawn is not None:
            self.seed, self.elsewhere, self.before = older.seed, older.elsewhere, None
            self._drop_entry()
        elif self.pins:
            self.fill(older.read())
            self.before = None

    def put_elsewhere(self, elsewhere: Elsewhere | None) -> None:
        """Set the remote copy; None: it is gone. Ignored for initialised weights, which need none."""
        if self.seed is None:
            self.elsewhere = elsewhere
            self.tidy()

    def tidy(self) -> None:
        """Free the entry if it is unpinned and not the only copy."""
        if not self.pins and (self.elsewhere is not None or not self._whole):
            self._drop_entry()

    def _drop_entry(self) -> None:
        entry, self._entry, self._whole = self._entry, None, False
        if entry is not None:
            self.store.free_entry(entry)


class Pin:
    """Reference that keeps the bytes of a state in memory. Share it, or create another."""

    def __init__(self, state: State) -> None:
        self.state = state
        state.pins += 1

    def __del__(self) -> None:
        self.state.pins -= 1
        self.state.tidy()


@dataclass(frozen=True)
class Origin:
    """Restore point of a member after the loss of its learner: the newest state of its weights that survives.

    frames: training frames since then, less the member's own frames. pin: keeps the bytes in memory if no checkpoint
    has them.
    """

    state: State
    frames: int
    pin: Pin | None = None
