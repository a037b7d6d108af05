import os
import threading
import time
from collections import deque
from multiprocessing.connection import Pipe

import pytest

from pbt_rl.processes import polling as listen
from pbt_rl.processes.polling import AdaptivePoller, mail_check
from pbt_rl.run.serial import Line


@pytest.fixture
def bells():
    fds = [os.eventfd(0, os.EFD_NONBLOCK) for _ in range(2)]
    yield fds
    for fd in fds:
        os.close(fd)


@pytest.mark.parametrize("spin", [True, False])
def test_it_returns_what_is_ready(bells, spin):
    listener = AdaptivePoller(*bells)
    assert listener.wait(0.0, spin=spin) == []
    os.eventfd_write(bells[1], 1)
    assert listener.wait(spin=spin) == [bells[1]]
    os.eventfd_write(bells[0], 1)
    assert sorted(listener.wait(spin=spin)) == sorted(bells)
    assert os.eventfd_read(bells[1]) == 1, "what was waited for is left to be read"


def test_a_sleeper_is_woken(bells):
    threading.Timer(0.1, os.eventfd_write, (bells[0], 1)).start()
    began = time.monotonic()
    assert AdaptivePoller(*bells).wait() == [bells[0]]
    assert time.monotonic() - began >= 0.09


def test_waits_spin_ever_more_seldom_while_that_is_in_vain(bells, monkeypatch):
    looks = []
    listener = AdaptivePoller(bells[0])
    asked = listener._poll

    class Poll:
        def poll(self, milliseconds):
            looks.append(milliseconds)
            return asked.poll(milliseconds)

    listener._poll = Poll()
    monkeypatch.setattr(listen, "SPIN_NS", 1_000_000)

    def spins():
        looks.clear()
        listener.wait(1.0)
        return len(looks) > 1

    stayed = [i for i in range(130) if spins()]
    assert stayed == [0, 2, 5, 10, 19, 36, 69]  # 1, 2, 4, ... waits without spinning between them
    os.eventfd_write(bells[0], 1)
    assert [i for i in range(130, 150) if spins()] == [], "not yet its turn to try"
    for _ in range(200):
        listener.wait(1.0)
    os.eventfd_read(bells[0])
    assert spins(), "the answer came soon: the next wait spins"


def test_mail_is_seen_without_waiting_between_processes_and_within_one():
    ours, theirs = Pipe()
    has_mail = mail_check(ours)
    assert not has_mail()
    theirs.send("a")
    assert has_mail()
    assert ours.recv() == "a"
    assert not has_mail()
    theirs.close()
    assert has_mail(), "the end of the other side is to be read, too"
    there, back = deque(), deque()
    line = mail_check(Line(there, back))
    assert not line()
    back.append(b"")
    assert line()
