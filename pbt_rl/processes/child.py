"""Children: fresh Python interpreters that die with their parent and exchange messages with it over one socket.

Not `multiprocessing`: its spawn runs the user's main module again in every child, and its resource tracker is
one more process that can be left behind. A child inherits its descriptors and receives everything else as its
first message. Messages are pickled, and only ever between our own processes.

Between parent and child stands a keeper (`keeper.py`), which takes what the child prints and ends what the child has
started. A child is seen to end when nothing of it is left.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import re
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from multiprocessing.connection import Connection
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, TypeVar, cast

from pbt_rl.processes import keeper
from pbt_rl.processes.paths import interpreter_options, working_directory_last
from pbt_rl.processes.signals import in_main_thread

SendT = TypeVar("SendT")
ReceiveT = TypeVar("ReceiveT")

KEEPER = (sys.executable, "-I", "-S", keeper.__file__)
PARENTS_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
"""They may reach the whole process group; only the parent handles them, and it ends its children in order."""
STACKS_SIGNAL = signal.SIGUSR2
"""Makes a child write where each of its threads stands."""
MARK = "PBT_RL_CHILD"
"""Variable in the environment of a child and of all that it starts: another value for each child."""
KEEPER_SECONDS = keeper.TIDY_SECONDS + keeper.KILL_SECONDS + 0.5
"""A keeper that takes longer to end is stopped or stuck, and is killed."""
PID_SECONDS = 10.0
PID = re.compile(keeper.CHILD + rb"(\d+)\n")
STDERR = 2
LINE_BUFFERED = 1
"""_IOLBF of the C library."""
CHILD_ENVIRONMENT = {
    # The last words of a child that is killed are in its log.
    "PYTHONUNBUFFERED": "1",
    # One thread for arithmetic libraries unless a learner's plan gives more.
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
    # Threads that wait for each other inside an operation must not spin: the cores have other work.
    "OMP_WAIT_POLICY": "PASSIVE",
    # glibc gives large blocks back to the kernel at every free; learning allocates the same ones again and
    # again, and page faults cost a fifth of its time.
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str((1 << 31) - 1),
    # The thresholds hold for the main arena only, so threads share it.
    "MALLOC_ARENA_MAX": "1",
}


@dataclass(frozen=True)
class ChildFailed:
    """The last message of a child that ends with an error.

    user_error: `text` is the message of an error that only the user can mend; otherwise it is a traceback.
    killed: it sent nothing, as something else has killed it (SIGKILL): the machine, if its memory is full.
    """

    text: str
    user_error: bool
    killed: bool = False


class Program:
    """A program beneath a keeper, seen from its parent. command: with its path.

    fds: descriptors that it inherits, under the same numbers. environment: variables besides those of this process.
    log: file of what it prints, bounded; without one only the end of that is kept, in memory. scratch: a folder that is
    removed after its end. It is born with PARENTS_SIGNALS and STACKS_SIGNAL blocked (see `leave_to_parent`).
    """

    def __init__(
        self,
        command: Sequence[str],
        label: str,
        fds: Sequence[int] = (),
        environment: Mapping[str, str] = MappingProxyType({}),
        log: Path | None = None,
        scratch: Path | None = None,
    ) -> None:
        self.label = label
        self._mark = secrets.token_hex(8)
        self._told = b""
        self._log, self._scratch = log, scratch
        self._killed_at: float | None = None
        paths = ["" if path is None else str(path.absolute()) for path in (log, scratch)]
        with contextlib.ExitStack() as undo:
            self._line, theirs = (undo.enter_context(end) for end in socket.socketpair())
            # It must not die of a signal before it can ignore it.
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, (*PARENTS_SIGNALS, STACKS_SIGNAL))
            try:
                self._keeper: subprocess.Popen[bytes] = subprocess.Popen(
                    [*KEEPER, "keep", str(os.getpid()), label, *paths, *command],
                    pass_fds=fds,
                    stdin=subprocess.DEVNULL,
                    stdout=theirs.fileno(),
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **environment, MARK: self._mark},
                )
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            undo.pop_all()
        theirs.close()
        self.sentinel = os.pidfd_open(self._keeper.pid)
        """Becomes readable when the process has ended, and all that it has started."""

    @property
    def pid(self) -> int:
        """Process id of the program. Raises ProcessLookupError if there never was one."""
        while not (found := PID.search(self._told)):
            self._hear()
        return int(found[1])

    def _hear(self) -> None:
        """Take what the keeper tells: the program's id, at last the end of the output."""
        self._line.settimeout(PID_SECONDS)
        try:
            heard = self._line.recv(1 << 16)
        except OSError:
            heard = b""
        if not heard:
            raise ProcessLookupError(f"the keeper of {self.label} tells nothing")
        self._told += heard

    def exit_code(self) -> int | None:
        """Return the exit code; None while it runs."""
        return self._keeper.poll()

    def how_it_ended(self) -> str:
        """Wait for the end; return how it ended, with the tail of its output."""
        code = self._keeper.wait()
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        tail, clean = self.last_words()
        if not clean:
            how = f"was ended, since its keeper (process {self._keeper.pid}) {how}"
        where = f" (see {self._log})" if self._log is not None and self._log.is_file() else ""
        return f"{self.label} {how}" + (f"; it printed{where}:\n{tail}" if tail else "")

    def last_words(self) -> tuple[str, bool]:
        """Return the end of the output of a program that has ended, and whether its keeper could do its work."""
        with contextlib.suppress(ProcessLookupError):
            while True:
                self._hear()
        keepers, ended, childs = self._told.partition(keeper.ENDED)
        words = childs if ended else PID.sub(b"", keepers)
        return words.decode(errors="replace").strip(), bool(ended)

    def wait(self, deadline: float) -> bool:
        """Wait for the end until a time of `time.monotonic`; return whether it has come."""
        try:
            self._keeper.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """Have the program and all that it has started killed, without waiting for it. Safe to call twice."""
        self._killed_at = self._killed_at or time.monotonic()
        self._keeper.send_signal(signal.SIGCONT)  # one that is stopped can do nothing
        with contextlib.suppress(OSError):
            self._line.shutdown(socket.SHUT_WR)

    def end(self, patience_seconds: float) -> None:
        """Wait for the program, kill it if it takes longer, and release what belongs to it. Safe to call twice."""
        if self._line.fileno() < 0:
            return
        if not self.wait(time.monotonic() + patience_seconds):
            self.kill()
            if not self.wait((self._killed_at or 0.0) + KEEPER_SECONDS):
                self._keeper.kill()  # the kernel kills the program with it
                self._keeper.wait()
        _, clean = self.last_words()
        if not clean:
            kill_marked(self._mark)
            if self._scratch is not None:
                shutil.rmtree(self._scratch, ignore_errors=True)
        self._line.close()
        os.close(self.sentinel)


class Child(Program, Generic[SendT, ReceiveT]):
    """A process that runs `python -m MODULE`, seen from its parent.

    setup: its first message. fds, log: as of a Program. run: for people, in the list of processes, beside the label;
    left out, the folder of the log. When `STACKS_SIGNAL` comes, it prints its stacks.
    """

    def __init__(
        self,
        module: str,
        label: str,
        setup: object,
        fds: Sequence[int],
        log: Path | None = None,
        run: str = "",
    ) -> None:
        self.module = module
        self.failure: ChildFailed | None = None
        """The error that it sent before it ended."""
        ours, theirs = socket.socketpair()
        with theirs, contextlib.ExitStack() as undo:
            undo.enter_context(ours)
            shown = run or ("" if log is None else f"{log.parents[1]}: {label}")
            command = python_module(module, str(theirs.fileno()), *([shown] if shown else []))
            super().__init__(command, label, [theirs.fileno(), *fds], CHILD_ENVIRONMENT, log)
            undo.pop_all()
        connection: Connection[Any, Any] = Connection(ours.detach())
        self.connection: Connection[SendT, ReceiveT | ChildFailed] = connection
        self._room = select.poll()
        self._room.register(connection.fileno(), select.POLLOUT)
        self._unsent: deque[SendT] = deque()
        with contextlib.suppress(ConnectionError):  # it has ended already: the sentinel shows it
            connection.send(setup)

    def post(self, message: SendT) -> None:
        """Send a message as soon as there is room for it, after those before.

        Nobody waits for room: a child may read nothing until its own messages are read, or never again.
        """
        self._unsent.append(message)
        self.flush()

    def flush(self) -> bool:
        """Send what was posted, as far as there is room; return whether some of it still waits."""
        with contextlib.suppress(OSError):  # it has ended: the sentinel shows it
            while self._unsent and self._room.poll(0):
                self.connection.send(self._unsent[0])
                self._unsent.popleft()
        return bool(self._unsent)

    def messages(self) -> Iterator[ReceiveT]:
        """Yield the messages that have arrived. The error of a child that ends is kept as `failure` instead."""
        try:
            while self.connection.poll():
                message = self.connection.recv()
                if isinstance(message, ChildFailed):
                    self.failure = message
                else:
                    yield message
        except (EOFError, OSError):  # closed, perhaps within a message: the process is about to end
            self.wait(time.monotonic() + 1.0)

    def ending(self) -> ChildFailed:
        """Wait for the end; return the error that it sent, or how it ended."""
        ended = self.how_it_ended()
        killed = self._keeper.returncode == -signal.SIGKILL
        if self.failure is None:
            return ChildFailed(ended, user_error=False, killed=killed)
        return self.failure if self.failure.text else ChildFailed(ended, self.failure.user_error, killed)

    def hang_up(self) -> None:
        """Let the child read that nothing more will come."""
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self.connection.fileno())) as ours:
            ours.shutdown(socket.SHUT_WR)

    def end(self, patience_seconds: float) -> None:
        """Wait for the process, kill it if it takes longer, and release what belongs to it. Safe to call twice."""
        super().end(patience_seconds)
        self.connection.close()


# -- a child that starts before its setup is known ------------------------------------------------------------

MOST_FDS = 200
"""Descriptors in one message; Linux takes 253."""
LEARNER = "pbt_rl.learner.learner"


def spare_learner(run: str) -> Waiting[Any, Any] | None:
    """Start a learner that loads torch and waits for its setup; None on one core, where it would gain nothing.

    run: what people know it by, in the list of processes.
    """
    return Waiting(LEARNER, f"{run}: learner 0") if len(os.sched_getaffinity(0)) > 1 else None


@dataclass(frozen=True)
class Begun:
    """The second message. fds: the parent's numbers of descriptors that follow it."""

    setup: Any
    fds: tuple[int, ...]


@dataclass(frozen=True)
class Later:
    """The first message: its setup is sent later, with descriptors by the numbers that they have here."""

    def finished(self, connection: Connection[Any, Any]) -> Any:
        """Return the setup, received from the parent. Called in the child."""
        begun: Begun = connection.recv()
        here: list[int] = []
        with socket.socket(fileno=os.dup(connection.fileno())) as line:
            for part in _parts(begun.fds):
                here += socket.recv_fds(line, 1, len(part))[1]
        for fd in here:
            os.set_inheritable(fd, False)
        mapped = dict(zip(begun.fds, here, strict=True))
        return _renumbered(begun.setup, mapped)


class Waiting(Child[SendT, ReceiveT]):
    """A child that imports its module and waits for its setup, while its parent finds out what that is."""

    def __init__(self, module: str, run: str = "") -> None:
        super().__init__(module, module, Later(), (), run=run)

    def set_up(self, label: str, setup: object, fds: Sequence[int], log: Path | None) -> None:
        """Tell it what a `Child` is told at its start. The setup has descriptors in fields `..._fd` and `..._fds`."""
        self.label, self._log = label, log
        with contextlib.suppress(OSError):  # it has ended already: the sentinel shows it
            self._line.send(f"{label}\n{'' if log is None else log.absolute()}".encode())
            self.connection.send(cast("SendT", Begun(setup, tuple(fds))))
            with socket.socket(fileno=os.dup(self.connection.fileno())) as line:
                for part in _parts(fds):
                    socket.send_fds(line, [b"\0"], part)

    def discard(self) -> None:
        """End it, unless it has begun. Safe to call twice."""
        if self.label == self.module and self._line.fileno() >= 0:
            self.kill()
            self.end(0)


def _renumbered(setup: Any, numbers: Mapping[int, int]) -> Any:
    """Return a setup with other numbers for its descriptors: number there -> number here."""

    def here(fd: int) -> int:
        return numbers.get(fd, fd)

    names = [f.name for f in fields(setup)]
    single = {name: here(getattr(setup, name)) for name in names if name.endswith("_fd")}
    several = {name: tuple(map(here, getattr(setup, name))) for name in names if name.endswith("_fds")}
    return replace(setup, **single, **several)


def _parts(fds: Sequence[int]) -> Iterator[Sequence[int]]:
    """Yield as many descriptors as the kernel takes at once."""
    for at in range(0, len(fds), MOST_FDS):
        yield fds[at : at + MOST_FDS]


# -- commands, and the child itself ---------------------------------------------------------------------------


def python_module(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module, which calls `working_directory_last` first."""
    return [sys.executable, *interpreter_options(), "-m", module, *arguments]


def bound_to_us(command: Sequence[str], number: signal.Signals = signal.SIGKILL) -> list[str]:
    """Return the command of a program in a session of its own, without descriptors, that gets a signal when we end.

    That is, when the thread ends that starts it.
    """
    return [*KEEPER, "bind", str(os.getpid()), str(int(number)), *command]


def kill_marked(mark: str) -> None:
    """Kill what a child has started whose keeper was killed: every process with the child's mark in its environment."""
    wanted = f"{MARK}={mark}".encode()
    deadline = time.monotonic() + keeper.KILL_SECONDS
    while time.monotonic() < deadline:
        found = 0
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has just ended, or is another user's
                process = os.pidfd_open(int(folder.name))
                try:
                    if wanted in (folder / "environ").read_bytes().split(b"\0"):
                        signal.pidfd_send_signal(process, signal.SIGKILL)
                        found += 1
                finally:
                    os.close(process)
        if not found:
            return
        time.sleep(0.01)


def begin_child() -> tuple[Connection[Any, Any], Any]:
    """Prepare this process; return its connection and its setup. To be called in the child.

    It ignores signals that are the parent's, and writes its stacks when `STACKS_SIGNAL` comes, also in the midst of a
    call into C.
    """
    connection: Connection[Any, Any] = Connection(int(sys.argv[1]))
    faulthandler.enable()
    signal.signal(STACKS_SIGNAL, lambda *_: print_stacks())
    register_stacks()
    leave_to_parent()
    libc = ctypes.CDLL(None)
    libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, LINE_BUFFERED, 0)
    working_directory_last()
    setup = connection.recv()
    return connection, setup.finished(connection) if isinstance(setup, Later) else setup


def leave_to_parent() -> None:
    """Ignore the signals that are the parent's, which this process was born with blocked."""
    for number in PARENTS_SIGNALS:
        if number != signal.SIGTERM:
            signal.signal(number, signal.SIG_IGN)
    # Taken, not ignored: programs that an environment starts would inherit that, and `terminate()` could not end them,
    # for which `close()` waits in many environments.
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.siginterrupt(signal.SIGTERM, False)
    os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (*PARENTS_SIGNALS, STACKS_SIGNAL))


def print_stacks() -> None:
    """Print where every thread of this process stands."""
    faulthandler.dump_traceback(STDERR, all_threads=True)


def register_stacks() -> None:
    """Have a handler in C print, at once, where the thread stands that `STACKS_SIGNAL` reaches, before that of Python.

    It cannot print those of other threads: while they run, their frames change under its eyes, and it reads what has
    been freed.
    """
    faulthandler.register(STACKS_SIGNAL, STDERR, all_threads=False, chain=True)


class StackDumps:
    """On `STACKS_SIGNAL` this process prints its stacks, and has its children print theirs, each into its log.

    Another thread than the main one cannot have a handler: nothing happens then. To be made and closed in one thread.
    """

    def __init__(self, children: Callable[[], Iterable[Child[Any, Any]]]) -> None:
        self._children = children
        self._handles = in_main_thread()
        if self._handles:
            self._previous = signal.signal(STACKS_SIGNAL, lambda *_: self._dump())
            register_stacks()

    def close(self) -> None:
        """Give the signal back. Safe to call twice."""
        if self._handles:
            faulthandler.unregister(STACKS_SIGNAL)
            signal.signal(STACKS_SIGNAL, self._previous)
            self._handles = False
            self._children = list  # lets go of the fleet, whose memory goes with it

    def _dump(self) -> None:
        print_stacks()
        for child in self._children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, STACKS_SIGNAL)


def send_failure(connection: Connection[Any, Any], text: str, *, user_error: bool) -> None:
    """Send why this child is about to end. A parent that is gone already needs no reason."""
    with contextlib.suppress(BrokenPipeError):
        connection.send(ChildFailed(text, user_error))
