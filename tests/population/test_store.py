"""A state is kept by what refers to it, its bytes by pins: all of it goes by itself."""

import gc

import numpy as np
import pytest

from pbt_rl.actors.store import MemberSnapshot, SnapshotHeader
from pbt_rl.population.store import Elsewhere, Pin, Store
from tests.helpers.states import FakeDraws, FakePool

HEADER = SnapshotHeader(0, 0, {}, 0, 0, 0, 0)
SNAPSHOT = MemberSnapshot(HEADER, {"param": np.ones(2)})


@pytest.fixture
def store():
    gc.disable()  # what goes by itself needs no collector
    yield Store(FakePool(), FakeDraws())
    gc.enable()


def test_bytes_are_kept_until_the_last_pin_is_dropped(store):
    pin = store.add_read(SNAPSHOT, Elsewhere(lambda: SNAPSHOT))
    state, other = pin.state, Pin(pin.state)
    del pin
    assert store.entries == 1
    del other
    assert store.entries == 0
    assert state.read() is SNAPSHOT


def test_bytes_that_are_nowhere_else_go_with_their_state(store):
    pin = store.add_read(SNAPSHOT, Elsewhere(lambda: SNAPSHOT))
    state = pin.state
    state.put_elsewhere(None)
    del pin
    assert store.entries == 1
    assert state.read().arrays["param"].tolist() == [1, 1]
    del state
    assert store.entries == 0


def test_nothing_is_kept_for_what_has_raised(store):
    def read():
        raise OSError

    pin = store.add_read(SNAPSHOT, Elsewhere(read))
    key = Pin(store.add_drawn(HEADER, (0, 1)))
    store.pool.write = lambda *_: read()
    with pytest.raises(OSError):  # noqa: PT011 - ours has no text
        key.state.entry()
    del pin, key
    assert store.entries == 0
