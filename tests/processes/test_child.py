"""A child process as seen by its parent: messages, errors, end, inherited descriptors."""

import os
import re
import select
import signal
import time

from pbt_rl.processes import keeper
from pbt_rl.processes.child import PARENTS_SIGNALS, ChildFailed

CODE = """
import os, signal, sys, time
from pbt_rl.processes.child import begin_child, send_failure

connection, setup = begin_child()
match setup:
    case ("echo", count):
        for number in range(count):
            connection.send(number)
        connection.recv()
    case ("fail", text):
        connection.send("last")
        send_failure(connection, text, user_error=True)
        sys.exit(3)
    case ("raise", text):
        raise RuntimeError(text)
    case ("write", descriptor):
        os.write(descriptor, b"inherited")
    case ("sleep",):
        connection.send("ready")
        time.sleep(60)
    case ("torn",):
        connection.send("whole")
        os.write(connection.fileno(), (100).to_bytes(4, "big") + b"half of it")
        os.kill(os.getpid(), signal.SIGKILL)
"""


def received(child, count, seconds=30):
    """Collect `count` messages, or all messages until the child has ended."""
    found, deadline = [], time.monotonic() + seconds
    while len(found) < count and time.monotonic() < deadline:
        ended = child.exit_code() is not None
        found += child.messages()
        if ended:
            break
        time.sleep(0.01)
    return found


def test_messages_arrive_in_order(child):
    one = child("echo", 5)
    assert received(one, 5) == [0, 1, 2, 3, 4]
    assert one.exit_code() is None
    one.connection.send("go")
    one.end(10)
    assert one.exit_code() == 0


def test_an_error_that_was_sent_is_the_ending_and_no_message(child):
    one = child("fail", "wrong shape")
    assert received(one, 2) == ["last"]
    assert one.ending() == ChildFailed("wrong shape", user_error=True)
    assert re.search(r"the child .*\b3$", one.how_it_ended())


def test_without_an_error_the_ending_shows_the_tail_of_the_output(child):
    one = child("raise", "x" * 10 + "y" * 2 * keeper.TAIL_BYTES)
    assert received(one, 1) == []
    ending = one.ending()
    assert not ending.user_error
    assert re.match(r"the child .*\b1; .*:\n", ending.text)
    assert ending.text.endswith("yyy")
    assert "xxx" not in ending.text
    assert len(ending.text) < keeper.TAIL_BYTES + 100


def test_a_killed_child_shows_its_signal_and_wakes_its_sentinel(child):
    one = child("sleep")
    received(one, 1)
    for number in PARENTS_SIGNALS:
        os.kill(one.pid, number)
    time.sleep(0.1)
    assert one.exit_code() is None, "only the parent handles signals of the group"
    os.kill(one.pid, signal.SIGKILL)
    assert one.how_it_ended().endswith("SIGKILL")
    assert select.select([one.sentinel], [], [], 5)[0] == [one.sentinel]


def test_a_child_that_is_killed_within_a_message_has_ended_like_any_other(child):
    one = child("torn")
    assert one.wait(time.monotonic() + 30)
    assert list(one.messages()) == ["whole"]
    ending = one.ending()
    assert ending == ChildFailed(ending.text, user_error=False, killed=True)
    assert ending.text.endswith("SIGKILL")


def test_a_child_that_does_not_end_is_killed_and_released(child):
    one = child("sleep")
    received(one, 1)
    began = time.monotonic()
    one.end(0.2)
    assert 0.2 <= time.monotonic() - began < 10
    assert one.exit_code() == -signal.SIGKILL
    assert one.connection.closed
    one.end(0)


def test_descriptors_are_inherited_under_the_same_numbers(child):
    readable, writable = os.pipe()
    try:
        child("write", writable, fds=[writable]).end(30)
        assert os.read(readable, 100) == b"inherited"
    finally:
        os.close(readable)
        os.close(writable)
