"""The states of a run: each is immutable, under a key. Says who needs which state, and where its bytes are. Pure.

    who needs it        kept as long as                                       needs the bytes in memory
    a parked member     it holds no slot                                      yes
    the controller      it remembers the state                                yes
    a learner           it writes or reads the entry                          yes
    a checkpoint        the state is not written yet                          yes
    a member's origin   no newer state of its weights is whole (`Origin`)     not if a checkpoint has them

Who needs a state holds it; who needs its bytes in memory pins it. The bytes are in an entry of the pool, or elsewhere:
in a whole checkpoint, or they are drawn by a seed. An entry is free again when nobody pins its state, unless the state
is held and its bytes are nowhere else.
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
"""Free entries keep their memory up to this sum, to be used again."""


class Draws(Protocol):
    """Makes weights that nobody has learned."""

    def drawn(self, member: int, generation: int) -> Arrays:
        """Return the state that a member of this generation is given if its weights are drawn."""


@dataclass(frozen=True)
class Elsewhere:
    """Where bytes are besides the pool. source: for the journal."""

    read: Callable[[], MemberSnapshot]
    source: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Origin:
    """What a member goes on from if its learner is lost: the newest state of its weights that outlives that.

    frames: of training since, less the member's own frames. pinned: its bytes are kept in memory for it.
    """

    key: Key
    frames: int
    pinned: bool = False


@dataclass
class _State:
    header: SnapshotHeader
    holds: int = 0
    pins: int = 0
    entry: int | None = None
    whole: bool = False
    """The bytes are in the entry."""
    elsewhere: Elsewhere | None = None
    drawn: tuple[int, int] | None = None
    """(member, generation) whose drawn weights it is."""
    before: Key | None = None
    """While a learner writes the entry: what stands for the state if that learner is lost."""


class Store:
    """All states of a run. pool: their memory. draws: makes weights that nobody has learned."""

    def __init__(self, pool: StatePool, draws: Draws) -> None:
        self.pool, self._draws = pool, draws
        self._states: dict[Key, _State] = {}
        self._next: Key = 0
        self._free: list[int] = []
        """Entries that may be used again, the lowest first; `_spare` of them may still have memory."""
        self._spare: set[int] = set()
        self._entries = 0

    def __len__(self) -> int:
        return len(self._states)

    @property
    def entries(self) -> int:
        """Entries in use."""
        return self._entries - len(self._free)

    # -- new states: each is held once, by the caller ----------------------------------------------------------

    def add_read(self, snapshot: MemberSnapshot, elsewhere: Elsewhere) -> Key:
        """Add a state that was read from elsewhere, and pin it in memory."""
        state = _State(snapshot.header, pins=1, entry=self._take_entry(), elsewhere=elsewhere)
        self._fill(state, snapshot)
        return self._add(state)

    def add_drawn(
        self, header: SnapshotHeader, drawn: tuple[int, int], source: Mapping[str, Any] | None = None
    ) -> Key:
        """Add drawn weights. drawn: (member, generation) that they are drawn for. source: for the journal."""

        def read() -> MemberSnapshot:
            return MemberSnapshot(header, self._draws.drawn(*drawn))

        elsewhere = Elsewhere(read, {"drawn": list(drawn)} if source is None else source)
        return self._add(_State(header, elsewhere=elsewhere, drawn=drawn))

    def _add(self, state: _State) -> Key:
        self._next += 1
        self._states[self._next] = replace(state, holds=1)
        return self._next

    def begin_save(self, header: SnapshotHeader, before: Key) -> Key:
        """Add a state that a learner is about to write; its entry is pinned until `saved` or `lost`.

        before: the state that stands for it if the learner is lost.
        """
        key = self._add(_State(header))
        self.hold(before)
        self._states[key].before = before
        return key

    def entry_to_write(self, key: Key) -> int:
        """Take an entry for a state that a learner writes now; pinned until `saved` or `lost`."""
        state = self._states[key]
        assert state.entry is None, f"state {key} has an entry"
        state.entry = self._take_entry()
        state.pins += 1
        return state.entry

    def saved(self, key: Key) -> SnapshotHeader:
        """Note that the bytes of a state are in its entry; return what it is besides its arrays."""
        state = self._states[key]
        assert state.entry is not None
        counts = self.pool.counts(state.entry)
        state.whole, before, state.before = True, state.before, None
        header = state.header = replace(state.header, **counts._asdict())
        if before is not None:
            self.release(before)
        self.unpin(key)
        return header

    def lost(self, key: Key) -> None:
        """Note that the learner is lost that was writing a state: the one before stands for it.

        Raises as reading that one does.
        """
        state = self._states[key]
        before, state.before = state.before, None
        assert before is not None
        older = self._states[self.readable(before)]
        if older.drawn is not None and not older.whole:
            state.drawn, state.elsewhere = older.drawn, older.elsewhere
            self._drop_entry(state)
        elif state.pins > 1 or state.holds:
            self._fill(state, self.read(before))
        state.header = replace(state.header, fresh_frames=older.header.fresh_frames)
        self.release(before)
        self.unpin(key)

    def stand_in(self, member: int, former: Key, newer: Key) -> None:
        """Let a newer state stand for what a member's learner has still to write, where a former one did."""
        for state in [*self._states.values()]:
            if state.before == former and state.header.member == member:
                state.before = self.hold(newer)
                self.release(former)

    # -- who needs them ------------------------------------------------------------------------------------------

    def hold(self, key: Key) -> Key:
        """Keep a state; it can be read as long as its bytes are somewhere."""
        self._states[key].holds += 1
        return key

    def release(self, key: Key) -> None:
        """Undo one `hold`."""
        state = self._states[key]
        assert state.holds > 0, f"state {key} is not held"
        state.holds -= 1
        self._tidy(key)

    def pin(self, key: Key) -> Key:
        """Keep a state, and its bytes in memory if they are there."""
        self._states[key].pins += 1
        return key

    def unpin(self, key: Key) -> None:
        """Undo one `pin`."""
        state = self._states[key]
        assert state.pins > 0, f"state {key} is not pinned"
        state.pins -= 1
        self._tidy(key)

    def put_elsewhere(self, key: Key, elsewhere: Elsewhere | None) -> None:
        """Note that the bytes of a state are elsewhere, too; None: no more. One that is drawn has no need of it."""
        state = self._states.get(key)
        if state is None or state.drawn is not None:
            return
        state.elsewhere = elsewhere
        self._tidy(key)

    def _tidy(self, key: Key) -> None:
        state = self._states[key]
        if state.pins == 0 and (state.holds == 0 or state.elsewhere is not None):
            self._drop_entry(state)
        if state.pins == state.holds == 0:
            del self._states[key]
            if state.before is not None:
                self.release(state.before)

    # -- what they are -------------------------------------------------------------------------------------------

    def header(self, key: Key) -> SnapshotHeader:
        """Return what a state is besides its arrays."""
        return self._states[key].header

    def drawn(self, key: Key) -> tuple[int, int] | None:
        """Return (member, generation) whose drawn weights a state is; None if it is something else, or in memory."""
        state = self._states[key]
        return None if state.whole else state.drawn

    def is_saved(self, key: Key) -> bool:
        """Return whether a state can be read: no learner has still to write it."""
        return self._states[key].before is None

    def readable(self, key: Key) -> Key:
        """Return the state itself, or what stands for it while a learner has still to write it."""
        before = self._states[key].before
        return key if before is None else self.readable(before)

    def source(self, key: Key) -> dict[str, Any]:
        """Return what the journal says about where the bytes are."""
        state = self._states[key]
        return {} if state.elsewhere is None else dict(state.elsewhere.source)

    def read(self, key: Key) -> MemberSnapshot:
        """Return a state. Its arrays are views: they hold as long as it is pinned. Raises as its source does."""
        state = self._states[self.readable(key)]
        if state.whole:
            assert state.entry is not None
            return MemberSnapshot(state.header, self.pool.views(state.entry))
        assert state.elsewhere is not None, f"state {key} is not there"
        return state.elsewhere.read()

    def entry(self, key: Key) -> int:
        """Return the entry of a pinned state; its bytes are brought there, unless a learner is about to write them.

        Raises as its source does.
        """
        state = self._states[key]
        assert state.pins > 0, f"state {key} is not pinned"
        if state.entry is None:
            state.entry = self._take_entry()
            self._fill(state, self.read(key))
        return state.entry

    def _fill(self, state: _State, snapshot: MemberSnapshot) -> None:
        assert state.entry is not None
        header = snapshot.header
        counts = Counts(header.frames, header.steps, header.updates, header.fresh_frames)
        self.pool.write(state.entry, snapshot.arrays, counts)
        state.whole = True

    # -- entries ---------------------------------------------------------------------------------------------------

    def _take_entry(self) -> int:
        if not self._free:
            self._entries += 1
            self.pool.grow(self._entries)
            return self._entries - 1
        entry = heapq.heappop(self._free)
        self._spare.discard(entry)
        return entry

    def _drop_entry(self, state: _State) -> None:
        entry, state.entry, state.whole = state.entry, None, False
        if entry is None:
            return
        heapq.heappush(self._free, entry)
        if (len(self._spare) + 1) * self.pool.entry_bytes <= SPARE_BYTES:
            self._spare.add(entry)
        else:
            self.pool.clear(entry)
