"""Where every process stands, for people: SIGUSR2 to the supervisor writes the stacks of all threads of all processes.

Each process writes its own (`faulthandler`) into memory that all of them share, one after the other. Its main thread
writes those of all threads as soon as it is in Python. If it hangs within C, each thread writes its own by a handler
in C, which needs no interpreter.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any

from pbt_rl.procs.child import STACKS_SIGNAL, Child
from pbt_rl.procs.signals import in_main_thread

ANSWER_SECONDS = 0.5
"""A process that writes nothing for so long has just begun, is stopped, or cannot leave a call of the kernel. One that
writes the stack of one thread only is not in Python."""
THREAD_SECONDS = 0.05
"""For a single thread. It writes nothing if it is not one of Python's."""
PAUSE_SECONDS = 0.01
"""Between two looks. Stacks that did not grow for so long are complete."""
ALL_THREADS = re.compile(r"^(Current thread|Thread) 0x", re.MULTILINE)
"""What stacks of all threads begin with, and that of a single one does not."""


_libc = ctypes.CDLL(None, use_errno=True)


class StackDumps:
    """Writes `stacks-TIME.txt` to a folder when `STACKS_SIGNAL` comes, and the supervisor's own stack to its stderr.

    folder: None, or one that cannot be written: everything goes to stderr. Another thread than the main one cannot have
    a handler: nothing is written then. To be made and closed in one thread.
    """

    def __init__(self, folder: Path | None, children: Callable[[], Iterable[Child[Any, Any]]]) -> None:
        self._folder, self._children = folder, children
        self.fd = os.memfd_create("pbt_rl-stacks")
        """Where children write."""
        self._handles = in_main_thread()
        if self._handles:
            self._previous = signal.signal(STACKS_SIGNAL, self._dump)
            # The supervisor itself may hang where no handler in Python is called.
            faulthandler.register(STACKS_SIGNAL, 2, all_threads=False, chain=True)

    def close(self) -> None:
        """Give the signal back. Safe to call twice."""
        if self.fd >= 0:
            if self._handles:
                faulthandler.unregister(STACKS_SIGNAL)
                signal.signal(STACKS_SIGNAL, self._previous)
            os.close(self.fd)
            self.fd = -1
            self._children = list  # lets go of the fleet, whose memory goes with it

    def _dump(self, _number: int, _frame: FrameType | None) -> None:
        self._clear()
        faulthandler.dump_traceback(self.fd, all_threads=True)
        parts = [f"supervisor (process {os.getpid()})\n{self._written()}"]
        parts += [self._of(child) for child in self._children()]
        self._show("\n".join(parts))

    def _of(self, child: Child[Any, Any]) -> str:
        self._clear()
        try:
            pid = child.pid
            _signal_thread(pid, pid)
            own = self._answer(ANSWER_SECONDS, lambda text: ALL_THREADS.search(text) is not None)
            everything = ALL_THREADS.search(own)
            if everything:
                own = own[everything.start() :]
            elif own:
                own += self._of_other_threads(pid)
            return f"{child.label} (process {pid})\n{own or _state(pid)}"
        except ProcessLookupError:
            return f"{child.label} has ended\n"

    def _of_other_threads(self, pid: int) -> str:
        """Ask each thread but the main one for its own."""
        parts = []
        for thread in _threads(pid):
            self._clear()
            with contextlib.suppress(ProcessLookupError):
                _signal_thread(pid, thread)
            parts.append(self._answer(THREAD_SECONDS, bool))
        return "".join(f"\n{part}" for part in parts if part)

    def _answer(self, seconds: float, enough: Callable[[str], bool]) -> str:
        """Return what is written from now on, once it is enough and does not grow, or that many seconds are over."""
        before, deadline = "", time.monotonic() + seconds
        while time.monotonic() < deadline:
            time.sleep(PAUSE_SECONDS)
            written = self._written()
            if written == before and enough(written):
                break
            before = written
        return before

    def _clear(self) -> None:
        os.ftruncate(self.fd, 0)
        os.lseek(self.fd, 0, os.SEEK_SET)

    def _written(self) -> str:
        return os.pread(self.fd, os.fstat(self.fd).st_size, 0).decode(errors="replace")

    def _show(self, text: str) -> None:
        if self._folder is not None:
            path = self._folder / f"stacks-{time.strftime('%Y%m%d-%H%M%S')}.txt"
            with contextlib.suppress(OSError):
                self._folder.mkdir(exist_ok=True)
                path.write_text(text)
                text = f"where every process stands: {path}\n"
        with contextlib.suppress(OSError, ValueError):
            print(text, end="", file=sys.stderr, flush=True)


def _signal_thread(pid: int, thread: int) -> None:
    """Send `STACKS_SIGNAL` to one thread. One that is sent to the process may reach any of them.

    Raises ProcessLookupError.
    """
    if _libc.tgkill(pid, thread, STACKS_SIGNAL) != 0:
        raise ProcessLookupError(f"process {pid} has no thread {thread}")


def _threads(pid: int) -> list[int]:
    """Return a process's threads but the main one."""
    try:
        return sorted(int(path.name) for path in Path(f"/proc/{pid}/task").iterdir() if path.name != f"{pid}")
    except OSError:
        return []


def _state(pid: int) -> str:
    """Say what the kernel knows of a process that writes nothing."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        state = next(line.split(maxsplit=1)[1] for line in status.splitlines() if line.startswith("State:"))
        where = Path(f"/proc/{pid}/wchan").read_text()
    except (OSError, StopIteration):
        return "it writes nothing\n"
    return f"it writes nothing; its state is {state}" + (f", within {where}\n" if where.strip("0") else "\n")
