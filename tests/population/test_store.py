"""A state is in memory as long as it has a user."""

import numpy as np
import pytest

from pbt_rl.actors.state_pool import Counts, MemberSnapshot, SnapshotHeader
from pbt_rl.population.store import RestorePoint, State, Store
from tests.helpers.states import FakeInitialiser, FakePool

SNAPSHOT = MemberSnapshot(SnapshotHeader(0, 0, {}, 7, 5, 3, 1), {"param": np.ones(2)})
SAVED = RestorePoint(0, frames=-7)
INITIALISED = RestorePoint(0, 1, initialised=True)


@pytest.fixture
def store():
    made = Store(FakePool(), FakeInitialiser())
    made.saved, made.saved_in = {(0, None): lambda: SNAPSHOT}, "at_7"
    return made


def test_bytes_are_kept_until_the_last_user_has_released_them(store):
    state = store.restored(SAVED).keep().keep()
    assert (state.read()["param"].tolist(), state.counts) == ([1, 1], Counts(7, 5, 3, 1))
    state.release()
    assert store.entries == 1
    state.release()
    assert store.entries == 0


@pytest.mark.parametrize(("point", "found", "entries"), [(SAVED, 1, 1), (INITIALISED, 100, 0)])
def test_what_no_learner_will_write_has_the_bytes_of_its_restore_point(store, point, found, entries):
    state = State(store, 3).keep()
    state.begin()
    assert not state.ready
    state.restore(point)
    assert (state.ready, state.read()["param"][0], store.entries) == (True, found, entries)
    state.release()
    assert store.entries == 0


def test_a_restore_point_that_cannot_be_read_takes_no_memory(store):
    def read():
        raise OSError

    store.saved = {(0, None): read}
    with pytest.raises(OSError):  # noqa: PT011 - ours has no text
        store.restored(SAVED)
    assert store.entries == 0


def test_a_restore_point_follows_copies_and_checkpoints(store):
    point = RestorePoint(0, frames=-100, pending=RestorePoint(2, frames=-150))
    copy = point.moved(30)
    assert (copy.frames, copy.pending.frames) == (-70, -120)
    assert copy.settled(whole=True) == RestorePoint(2, frames=-120)
    assert copy.settled(whole=False) == RestorePoint(0, frames=-70)
    assert RestorePoint(1).settled(whole=True) == RestorePoint(1)
    assert store.source(point) == {"checkpoint": "at_7", "member": 0}
    assert store.source(RestorePoint(1, 4)) == {"checkpoint": "at_7", "member": 1, "generation": 4}
    assert store.source(INITIALISED) == {"drawn": [0, 1]}
    assert store.source(RestorePoint(2, 0, initialised=True)) == {"checkpoint": None, "member": 2}
