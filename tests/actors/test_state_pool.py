"""Member states in shared memory: separate, aligned entries, which are copied when they are read."""

import os

import numpy as np
import pytest

from pbt_rl.actors.state_pool import Counts, StatePool, layout_of
from tests.helpers.snapshots import snapshot


@pytest.fixture
def pool():
    made = StatePool(layout_of(snapshot().arrays))
    made.grow(5)
    yield made
    made.close()


def test_entries_do_not_touch_each_other(pool):
    states = [snapshot(member).arrays for member in range(5)]
    for entry in (4, 2, 0, 1, 3):
        pool.write(entry, states[entry], Counts(entry, 2, 3, 4))
    for entry, state in enumerate(states):
        found = pool.read(entry)
        assert all(found[name].tobytes() == array.tobytes() for name, array in state.items())
        assert pool.counts(entry) == (entry, 2, 3, 4)


def test_the_other_side_sees_what_is_written_to_a_view_also_of_entries_that_came_later(pool):
    other = StatePool(pool.layout, os.dup(pool.fd))
    pool.views(1)["param"][:] = 7
    assert other.read(1)["param"].tolist() == [7.0] * 64
    kept = other.views(1)
    pool.grow(40)
    pool.write(39, snapshot(2).arrays, Counts())
    assert other.read(39)["param"].tobytes() == snapshot(2).arrays["param"].tobytes()
    assert kept["param"].tolist() == [7.0] * 64
    other.close()
    other.close()  # twice


def test_what_was_read_does_not_change_with_the_memory(pool):
    pool.write(0, snapshot(1).arrays, Counts())
    found = pool.read(0)
    pool.views(0)["param"].fill(0)
    assert found["param"].tobytes() == snapshot(1).arrays["param"].tobytes()


def test_an_entry_that_is_cleared_gives_its_memory_back_and_the_others_stay(pool):
    for entry in range(3):
        pool.write(entry, snapshot(entry).arrays, Counts(1, 1, 1, 1))
    taken = os.fstat(pool.fd).st_blocks
    pool.clear(1)
    assert os.fstat(pool.fd).st_blocks < taken
    assert not pool.read(1)["param"].any()
    for entry in (0, 2):
        assert pool.read(entry)["param"].tobytes() == snapshot(entry).arrays["param"].tobytes()


@pytest.mark.parametrize(
    "change", [{"param": np.zeros(63, np.float32)}, {"lr_factor": np.zeros(())}, {"more": np.zeros(1)}]
)
def test_arrays_of_another_layout_are_refused(pool, change):
    with pytest.raises(AssertionError):
        pool.write(0, {**snapshot().arrays, **change}, Counts())
