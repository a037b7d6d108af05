"""Members' states in shared memory: every entry its own, aligned, and copied on reading."""

import os

import numpy as np
import pytest

from pbt_rl.wire.memory import anonymous_memory
from pbt_rl.wire.snapshot import ALIGN, SnapshotMemory, layout_of
from tests.helpers.snapshots import snapshot


@pytest.fixture
def memory():
    layout = layout_of(snapshot().arrays)
    made = SnapshotMemory(anonymous_memory(SnapshotMemory.size(layout, 3), "test"), layout, 3)
    yield made
    made.close()


def test_entries_do_not_touch_each_other(memory):
    states = [snapshot(member).arrays for member in range(3)]
    for entry in (2, 0, 1):
        memory.write(entry, states[entry])
    for entry, state in enumerate(states):
        found = memory.read(entry)
        assert all(found[name].tobytes() == array.tobytes() for name, array in state.items())


def test_the_other_side_sees_what_is_written_to_a_view(memory):
    other = SnapshotMemory(os.dup(memory.fd), memory.layout, memory.entries)
    memory.views(1)["param"][:] = 7
    assert other.read(1)["param"].tolist() == [7.0] * 64
    other.close()
    other.close()  # twice


def test_views_begin_at_cache_lines_and_fill_the_size(memory):
    views = [view for entry in range(3) for view in memory.views(entry).values()]
    starts = [view.ctypes.data for view in views]
    assert all(start % ALIGN == 0 for start in starts)
    end = max(start + view.nbytes for start, view in zip(starts, views, strict=True))
    assert 0 <= SnapshotMemory.size(memory.layout, 3) - (end - starts[0]) < ALIGN


def test_what_was_read_does_not_change_with_the_memory(memory):
    memory.write(0, snapshot(1).arrays)
    found = memory.read(0)
    memory.views(0)["param"].fill(0)
    assert found["param"].tobytes() == snapshot(1).arrays["param"].tobytes()


@pytest.mark.parametrize(
    "change", [{"param": np.zeros(63, np.float32)}, {"lr_factor": np.zeros(())}, {"more": np.zeros(1)}]
)
def test_arrays_of_another_layout_are_refused(memory, change):
    with pytest.raises(AssertionError):
        memory.write(0, {**snapshot().arrays, **change})


def test_an_entry_outside_is_refused(memory):
    with pytest.raises(AssertionError, match="entry 3 of 3"):
        memory.views(3)
