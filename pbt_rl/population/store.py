"""The states of a run: each is immutable. A reference keeps a state; nobody counts. Pure.

    who needs it        kept as long as                                       refers to
    a parked member     it holds no slot                                      a Pin
    the controller      it remembers the state                                a Pin
    a learner           it writes or reads the entry                          a Pin
    a checkpoint        the state is not written yet                          a Pin
    a member's origin   no newer state of its weights is whole (`Origin`)     the State; a Pin if no checkpoint has it

The bytes of a state are in an entry of the pool, or elsewhere: in a whole checkpoint, or they are drawn by a seed. Who
needs them in memory has a `Pin`. An entry is free again when the last pin is dropped, unless its bytes are nowhere
else, and with the state itself at the latest. Drop references in the supervisor's thread only.
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


class Store:
    """The entries of all states of a run. pool: their memory. draws: makes weights that nobody has learned."""

    def __init__(self, pool: StatePool, draws: Draws) -> None:
        self.pool, self._draws = pool, draws
        self._keys: Key = 0
        self._free: list[int] = []
        """Entries that may be used again, the lowest first; `_spare` of them may still have memory."""
        self._spare: set[int] = set()
        self._entries = 0

    @property
    def entries(self) -> int:
        """Entries in use."""
        return self._entries - len(self._free)

    def add_read(self, snapshot: MemberSnapshot, elsewhere: Elsewhere) -> Pin:
        """Add a state that was read from elsewhere."""
        state = State(self, snapshot.header, elsewhere)
        pin = Pin(state)
        state.fill(snapshot)
        return pin

    def add_drawn(
        self, header: SnapshotHeader, drawn: tuple[int, int], source: Mapping[str, Any] | None = None
    ) -> State:
        """Add drawn weights. drawn: (member, generation) that they are drawn for. source: for the journal."""

        def read() -> MemberSnapshot:
            return MemberSnapshot(header, self._draws.drawn(*drawn))

        elsewhere = Elsewhere(read, {"drawn": list(drawn)} if source is None else source)
        return State(self, header, elsewhere, seed=drawn)

    def next_key(self) -> Key:
        """Return the key of a new state."""
        self._keys += 1
        return self._keys

    def take_entry(self) -> int:
        """Return a free entry, which is free no more."""
        if not self._free:
            self._entries += 1
            self.pool.grow(self._entries)
            return self._entries - 1
        entry = heapq.heappop(self._free)
        self._spare.discard(entry)
        return entry

    def free_entry(self, entry: int) -> None:
        """Let an entry be used again."""
        heapq.heappush(self._free, entry)
        if (len(self._spare) + 1) * self.pool.entry_bytes <= SPARE_BYTES:
            self._spare.add(entry)
        else:
            self.pool.clear(entry)


@dataclass(eq=False)
class State:
    """A state of a member: it can be read as long as anything refers to it, and its bytes are somewhere."""

    store: Store
    header: SnapshotHeader
    """What it is besides its arrays."""
    elsewhere: Elsewhere | None = None
    seed: tuple[int, int] | None = None
    """(member, generation) that its weights are drawn for."""
    before: State | None = None
    """While a learner has still to write it: what stands for it if that learner is lost."""
    pins: int = field(default=0, init=False)
    """Kept by `Pin` alone."""
    _entry: int | None = field(default=None, init=False)
    _whole: bool = field(default=False, init=False)
    """The bytes are in the entry."""

    def __post_init__(self) -> None:
        self.key = self.store.next_key()

    def __del__(self) -> None:
        self._drop_entry()

    @property
    def drawn(self) -> tuple[int, int] | None:
        """(member, generation) whose drawn weights it is; None if it is something else, or in memory."""
        return None if self._whole else self.seed

    @property
    def source(self) -> dict[str, Any]:
        """What the journal says about where the bytes are."""
        return {} if self.elsewhere is None else dict(self.elsewhere.source)

    @property
    def readable(self) -> State:
        """The state itself, or what stands for it while a learner has still to write it."""
        return self if self.before is None else self.before.readable

    def read(self) -> MemberSnapshot:
        """Return it. Its arrays are views: they hold as long as it is pinned. Raises as its source does."""
        if self.before is not None:
            return self.before.read()
        if self._whole:
            assert self._entry is not None
            return MemberSnapshot(self.header, self.store.pool.views(self._entry))
        assert self.elsewhere is not None, f"state {self.key} is not there"
        return self.elsewhere.read()

    def entry(self, *, to_write: bool = False) -> int:
        """Return the entry of a pinned state. to_write: a learner writes it now.

        Else its bytes are brought there, unless a learner writes them. Raises as its source does.
        """
        assert self.pins > 0, f"state {self.key} is not pinned"
        assert self._entry is None or not to_write, f"state {self.key} has an entry"
        if self._entry is None and to_write:
            self._entry = self.store.take_entry()
        elif self._entry is None:
            self.fill(self.read())
        assert self._entry is not None
        return self._entry

    def fill(self, snapshot: MemberSnapshot) -> None:
        """Write the bytes into its entry."""
        if self._entry is None:
            self._entry = self.store.take_entry()
        header = snapshot.header
        counts = Counts(header.frames, header.steps, header.updates, header.fresh_frames)
        self.store.pool.write(self._entry, snapshot.arrays, counts)
        self._whole = True

    def saved(self) -> None:
        """Note that its learner has written it, counts included."""
        assert self._entry is not None
        counts = self.store.pool.counts(self._entry)
        self._whole, self.before = True, None
        self.header = replace(self.header, **counts._asdict())

    def lost(self) -> None:
        """Note that its learner is lost, which does not pin it any more: the one before stands for it.

        Raises as reading that one does.
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
        """Note that its bytes are elsewhere, too; None: no more. One that is drawn has no need of it."""
        if self.seed is None:
            self.elsewhere = elsewhere
            self.tidy()

    def tidy(self) -> None:
        """Let the entry go if nobody needs it."""
        if not self.pins and (self.elsewhere is not None or not self._whole):
            self._drop_entry()

    def _drop_entry(self) -> None:
        entry, self._entry, self._whole = self._entry, None, False
        if entry is not None:
            self.store.free_entry(entry)


class Pin:
    """Keeps a state, with its bytes in memory if they are there, until it is dropped. Share it, or make another."""

    def __init__(self, state: State) -> None:
        self.state = state
        state.pins += 1

    def __del__(self) -> None:
        self.state.pins -= 1
        self.state.tidy()


@dataclass(frozen=True)
class Origin:
    """What a member goes on from if its learner is lost: the newest state of its weights that outlives that.

    frames: of training since, less the member's own frames. pin: keeps its bytes in memory, unless a checkpoint does.
    """

    state: State
    frames: int
    pin: Pin | None = None
