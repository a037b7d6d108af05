import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pbt_rl.actors.mailbox import ACTIONS, ALIGN, HEARTBEAT_NS, OBSERVATIONS, Mailbox
from pbt_rl.actors.shared_tables import ShapingTable
from pbt_rl.actors.state_pool import POISON_BYTE, anonymous_memory
from pbt_rl.envs.base import ActionSpec, ArraySpec, EnvSpec
from pbt_rl.envs.episode_book import AT_ONCE, ROW, all_at_once

SMALL = EnvSpec("toy/x", {"obs": ArraySpec((3,), "float32")}, ActionSpec(nvec=(4,)))
ODD = EnvSpec(
    "toy/odd",
    {
        "screen": ArraySpec((7, 5), "uint8"),
        "scalar": ArraySpec((), "int64"),
        "a.b": ArraySpec((1, 2, 3), "float32"),
        "flags": ArraySpec((13,), "bool"),
    },
    ActionSpec(low=(-1.0, -2.0, 0.0), high=(1.0, 2.0, 3.0)),
    tasks=("one", "other"),
    frame_stack=4,
)


@pytest.fixture
def event_fd():
    fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    yield fd
    os.close(fd)


def arrays_of(box: Mailbox) -> dict[str, np.ndarray]:
    fields = {name: x for name, x in vars(box.step).items() if name != "obs" and x is not None}
    return fields | {f"obs.{name}": x for name, x in box.step.obs.items()} | {"action": box.action}


@pytest.mark.parametrize("rows", [1, 3, 16])
@pytest.mark.parametrize("spec", [SMALL, ODD, replace(SMALL, agents=2)], ids=["small", "odd", "agents"])
def test_both_sides_see_the_same_arrays_and_none_overlaps(spec, rows):
    actor = Mailbox.create(spec, rows, "test")
    learner = Mailbox(spec, rows, actor.fd)
    ours, theirs = arrays_of(actor), arrays_of(learner)
    rng = np.random.default_rng(0)
    written = {}
    actor.header[:] = range(16)
    for name, array in ours.items():
        assert array.shape[0] == rows
        written[name] = rng.integers(0, 2, array.shape).astype(array.dtype)
        array[:] = written[name]
    for name, array in theirs.items():
        np.testing.assert_array_equal(array, written[name], err_msg=name)
        assert array.__array_interface__["data"][0] % ALIGN == 0, name
    assert learner.header.tolist() == list(range(16)), "the header lies before all arrays"
    for name, low, high in (("screen", (7, 5), "uint8"), ("a.b", (1, 2, 3), "float32")):
        if spec is ODD:
            assert theirs[f"obs.{name}"].shape == (rows, *low)
            assert theirs[f"obs.{name}"].dtype == high
    assert learner.action.shape == (rows, spec.action.components)
    assert learner.action.dtype == spec.action.dtype
    actor.close()


def test_fresh_memory_is_poisoned_but_the_counters():
    box = Mailbox.create(ODD, 2, "test")
    assert not box.header.any()
    for name, array in arrays_of(box).items():
        if array.dtype.kind == "f":
            assert np.isnan(array).all(), name
        else:
            assert (array.view(np.uint8) == POISON_BYTE).all(), name
    box.close()


def test_mapping_existing_memory_does_not_poison_it_again():
    box = Mailbox.create(SMALL, 2, "test")
    box.step.reward[:] = 5.0
    box.action[:] = 3
    again = Mailbox(SMALL, 2, box.fd)
    assert again.step.reward.tolist() == [5.0, 5.0]
    assert again.action.tolist() == [[3], [3]]
    box.close()


def test_the_turn_goes_back_and_forth(event_fd):
    box = Mailbox.create(SMALL, 1, "test")
    assert not box.learner_has_turn, "the actor begins, by a reset"
    for turn in range(1, 4):
        box.publish_step(event_fd)
        assert os.eventfd_read(event_fd) == 1
        assert box.learner_has_turn
        assert box.header[OBSERVATIONS] == turn
        assert box.header[ACTIONS] == turn - 1
        box.publish_action(event_fd)
        assert os.eventfd_read(event_fd) == 1
        assert not box.learner_has_turn
        assert box.header[ACTIONS] == turn
    box.close()


def test_nobody_is_woken_before_the_counter_is_raised(event_fd, monkeypatch):
    box = Mailbox.create(SMALL, 1, "test")
    seen = []
    monkeypatch.setattr(os, "eventfd_write", lambda *_: seen.append(box.learner_has_turn))
    box.publish_step(event_fd)
    box.publish_action(event_fd)
    assert seen == [True, False]
    box.close()


def wait(box, seconds):
    """Let time pass."""
    box.header[HEARTBEAT_NS] -= int(seconds * 1e9)


def test_steps_actions_and_rows_are_signs_of_life(event_fd):
    box = Mailbox.create(SMALL, 3, "test")
    actor = Mailbox(SMALL, 3, box.fd)
    for sign in (lambda: actor.publish_step(event_fd), lambda: box.publish_action(event_fd)):
        sign()
        assert box.heartbeat_age_seconds() < 1.0
        wait(box, 5)
        assert 5.0 <= box.heartbeat_age_seconds() < 6.0
    for row in (1, 2, 0):
        actor.heartbeat[ROW] = row
        assert box.heartbeat_age_seconds() < 1.0, "a row was finished"
        wait(box, 5)
        assert 5.0 <= box.heartbeat_age_seconds() < 6.0, "and no other one since"
    box.close()


def test_rows_that_are_made_at_once_take_their_time(event_fd):
    box = Mailbox.create(SMALL, 3, "test")
    actor = Mailbox(SMALL, 3, box.fd)
    box.begin_life()
    with all_at_once(actor.heartbeat, 10):
        wait(box, 12)
        assert 2.0 <= box.heartbeat_age_seconds() < 3.0, "12 s less one for each row"
    assert box.heartbeat_age_seconds() < 1.0, "they are made"
    actor.heartbeat[AT_ONCE] = 10
    box.begin_life()
    wait(box, 5)
    assert box.heartbeat_age_seconds() >= 5.0, "its predecessor died while it made them"
    box.close()


def test_memory_has_no_name_in_the_file_system():
    box = Mailbox.create(ODD, 16, "test")
    assert str(Path(f"/proc/self/fd/{box.fd}").readlink()).startswith("/memfd:pbt_rl-test")
    assert not os.get_inheritable(box.fd)
    box.close()
    box.close()
    assert box.fd == -1


def table(names: tuple[str, ...], policies: int) -> tuple[ShapingTable, ShapingTable]:
    fd = anonymous_memory(ShapingTable.size(names, policies), "shaping")
    return ShapingTable.map(names, policies, fd), ShapingTable.map(names, policies, fd)


def test_a_policys_shaping_is_read_where_it_was_not_written():
    writer, reader = table(("bait", "a.b"), 3)
    for p in range(3):
        writer.write(p, 10 + p, {"a.b": p + 0.5, "bait": -p})
    assert [reader.read(p) for p in range(3)] == [
        (10, {"bait": 0.0, "a.b": 0.5}),
        (11, {"bait": -1.0, "a.b": 1.5}),
        (12, {"bait": -2.0, "a.b": 2.5}),
    ]


def test_a_reader_never_sees_half_of_a_write():
    names = tuple(f"n{i}" for i in range(20))
    writer, reader = table(names, 1)
    writer.write(0, 0, dict.fromkeys(names, 0.0))
    done = threading.Event()

    def write() -> None:
        for version in range(1, 3000):
            writer.write(0, version, dict.fromkeys(names, float(version)))
        done.set()

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(write)
        seen = []
        while not done.is_set():
            version, values = reader.read(0)
            assert set(values.values()) == {float(version)}
            seen.append(version)
        running.result()
    assert seen == sorted(seen)
    assert reader.read(0)[0] == 2999


def test_a_reader_waits_while_a_row_is_written():
    writer, reader = table(("bait",), 2)
    writer.write(0, 1, {"bait": 1.0})
    writer.guard[0] += 1  # a write has begun
    writer.values[0] = 2.0
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(reader.read, 0)
        assert reader.read(1) == (0, {"bait": 0.0}), "other rows are free"
        assert not reading.done()
        writer.shaping_version[0] = 2
        writer.guard[0] += 1
        assert reading.result(10) == (2, {"bait": 2.0})
