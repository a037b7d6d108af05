"""After every test nothing of ours may be left: no process, nothing in /dev/shm."""

import os
import secrets
import signal
import time
from pathlib import Path

import pytest

SHARED_MEMORY = Path("/dev/shm")
PATIENCE_SECONDS = 3.0
MARK = f"PBT_RL_TESTS={secrets.token_hex(8)}"
"""In the environment of every process that a test starts, and of theirs: others run beside us."""


def pytest_configure():
    os.environ.update([MARK.split("=")])


@pytest.fixture(autouse=True)
def nothing_left():
    before = shared_memory()
    yield
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (processes := our_processes()) or unused(shared_memory() - before):
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    else:
        return
    for pid in processes:
        os.kill(pid, signal.SIGKILL)
    pytest.fail(f"left behind: processes {processes}, in /dev/shm {unused(shared_memory() - before)}")


def our_processes():
    """Process id -> command line."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if folder.name != str(os.getpid()) and MARK.encode() in (folder / "environ").read_bytes():
                found[int(folder.name)] = (folder / "cmdline").read_bytes().decode().replace("\0", " ")
        except OSError:  # it has just ended, or belongs to another user
            continue
    return found


def shared_memory():
    return {path.name for path in SHARED_MEMORY.iterdir()} if SHARED_MEMORY.is_dir() else set()


def unused(names):
    """Those that no process that we can see maps: what other programs use meanwhile is theirs."""
    if not names:
        return set()
    maps = []
    for path in Path("/proc").glob("[0-9]*/maps"):
        try:
            maps.append(path.read_text())
        except OSError:
            continue
    text = "\n".join(maps)
    return {name for name in names if str(SHARED_MEMORY / name) not in text}
