"""Stack dumps of children in Python code, in C code, and after their end."""

import os
import re
import signal
import time

from pbt_rl.processes.child import STACKS_SIGNAL, StackDumps

CODE = """
import itertools
import threading
import time
from pbt_rl.processes.child import begin_child

connection, (setup,) = begin_child()

def within_c():
    connection.send("ready")
    sum(itertools.repeat(1))  # does not return to the interpreter

def churn(depth):
    return depth and churn(depth - 1) + 1  # frames in memory that is freed

def churns():
    while True:
        churn(400)

if setup == "end":
    raise SystemExit(0)
if setup == "churns":
    for _ in range(2):
        threading.Thread(target=churns, daemon=True).start()
    connection.send("ready")
    while True:
        time.sleep(1e-4)
within_c()
"""


def test_every_process_shows_where_it_stands(tmp_path, capfd, child):
    before = signal.getsignal(STACKS_SIGNAL)
    children = [child(name, log=tmp_path / "logs" / f"{name}.log") for name in ("busy", "churns", "end")]
    dumps = StackDumps(lambda: children)
    assert [one.connection.recv() for one in children[:2]] == 2 * ["ready"]
    children[2].how_it_ended()
    # A handler in C that walked through running frames crashed, once in some dozens of times.
    for _ in range(30):
        os.kill(os.getpid(), STACKS_SIGNAL)
        time.sleep(0.001)
    dumps.close()
    assert signal.getsignal(STACKS_SIGNAL) == before
    assert "test_every_process_shows_where_it_stands" in capfd.readouterr().err

    def said(name, wanted):
        deadline = time.monotonic() + 30
        while not re.search(wanted, text := (tmp_path / "logs" / f"{name}.log").read_text(), re.DOTALL):
            assert time.monotonic() < deadline, text
            time.sleep(0.05)

    said("busy", r"Stack|in within_c\n")
    said("churns", r"Thread 0x.* in churns?\n.*Thread 0x.* in churns?\n.*Current thread 0x")
    assert children[1].exit_code() is None
