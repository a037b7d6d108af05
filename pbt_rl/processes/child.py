"""Child processes: new Python interpreters that die with their parent and exchange messages over one socket.

`multiprocessing` is not used. Its spawn method runs the user's main module again in every child, and its resource
tracker is another process that can leak. A child inherits its descriptors and receives everything else as its first
message. Messages are pickled; both ends are our own processes.

A keeper (`keeper.py`) runs between parent and child. It collects the child's output and kills the child's descendants.
A child counts as ended when none of its descendants is left.
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
"""Signals that may reach the whole process group. Only the parent handles them, and it ends its children in order."""
STACKS_SIGNAL = signal.SIGUSR2
"""Signal that makes a child print the stack of each thread."""
MARK = "PBT_RL_CHILD"
"""Environment variable of a child and of its descendants. Each child has its own value."""
KEEPER_SECONDS = keeper.TIDY_SECONDS + keeper.KILL_SECONDS + 0.5
"""Time for a keeper to end. A slower one is stopped or stuck, and is killed."""
PID_SECONDS = 10.0
PID = re.compile(keeper.CHILD + rb"(\d+)\n")
STDERR = 2
LINE_BUFFERED = 1
"""_IOLBF of the C library."""
CHILD_ENVIRONMENT = {
    # Unbuffered, so that the log of a killed child has its last output.
    "PYTHONUNBUFFERED": "1",
    # One thread for numerical libraries unless a learner's plan sets more.
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
    # Threads that wait for each other inside an operation must not spin, because other processes need the cores.
    "OMP_WAIT_POLICY": "PASSIVE",
    # By default glibc returns large blocks to the kernel at every free. Learning allocates the same blocks again and
    # again, and page faults took a fifth of its time.
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str((1 << 31) - 1),
    # The thresholds apply to the main arena only, so all threads share it.
    "MALLOC_ARENA_MAX": "1",
}


@dataclass(frozen=True)
class ChildFailed:
    """Last message of a child that ends with an error.

    user_error: `text` is the message of an error that only the user can fix. Otherwise it is a traceback.
    killed: the child sent nothing because SIGKILL ended it, for example when memory is full.
    """

    text: str
    user_error: bool
    killed: bool = False


class Program:
    """Program under a keeper, as seen from its parent. command: starts with the program's path.

    fds: descriptors to inherit, under the same numbers. environment: additional variables. log: size-bounded output
    file. Without one, only the last output is kept, in memory. scratch: folder that is removed after the end.
    The program starts with PARENTS_SIGNALS and STACKS_SIGNAL blocked (see `leave_to_parent`).
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
            # Blocked, because a signal must not kill it before it can ignore signals.
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
        """Becomes readable when the process and all its descendants have ended."""

    @property
    def pid(self) -> int:
        """Process id of the program. Raises ProcessLookupError if it never started."""
        while not (found := PID.search(self._told)):
            self._hear()
        return int(found[1])

    def _hear(self) -> None:
        """Receive a message of the keeper: first the program's id, at the end its last output."""
        self._line.settimeout(PID_SECONDS)
        try:
            heard = self._line.recv(1 << 16)
        except OSError:
            heard = b""
        if not heard:
            raise ProcessLookupError(f"no message from the keeper of {self.label}")
        self._told += heard

    def exit_code(self) -> int | None:
        """Return the exit code. None while it runs."""
        return self._keeper.poll()

    def how_it_ended(self) -> str:
        """Wait for the end. Return a description with the last output."""
        code = self._keeper.wait()
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        tail, clean = self.last_words()
        if not clean:
            how = f"was killed because its keeper (process {self._keeper.pid}) {how}"
        where = f" (see {self._log})" if self._log is not None and self._log.is_file() else ""
        return f"{self.label} {how}" + (f"; it printed{where}:\n{tail}" if tail else "")

    def last_words(self) -> tuple[str, bool]:
        """Return the last output of an ended program. False in second place: its keeper was killed."""
        with contextlib.suppress(ProcessLookupError):
            while True:
                self._hear()
        keepers, ended, childs = self._told.partition(keeper.ENDED)
        words = childs if ended else PID.sub(b"", keepers)
        return words.decode(errors="replace").strip(), bool(ended)

    def wait(self, deadline: float) -> bool:
        """Wait for the end until a `time.monotonic` deadline. True if it ended."""
        try:
            self._keeper.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """Order the keeper to kill the program and its descendants, without waiting. Safe to call twice."""
        self._killed_at = self._killed_at or time.monotonic()
        self._keeper.send_signal(signal.SIGCONT)  # a stopped keeper cannot act
        with contextlib.suppress(OSError):
            self._line.shutdown(socket.SHUT_WR)

    def end(self, patience_seconds: float) -> None:
        """Wait for the program, kill it after the timeout, release its resources. Safe to call twice."""
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
    """Child process that runs `python -m MODULE`, as seen from its parent.

    setup: its first message. fds, log: see `Program`. run: shown in the process list with the label; the default is
    the folder of the log. On `STACKS_SIGNAL` it prints its stacks.
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
        """Error that the child sent before it ended."""
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
        with contextlib.suppress(ConnectionError):  # already ended, as the sentinel shows
            connection.send(setup)

    def post(self, message: SendT) -> None:
        """Send a message once the socket has room, in order.

        Never blocks, because a child may not read until its own messages are read.
        """
        self._unsent.append(message)
        self.flush()

    def flush(self) -> bool:
        """Send queued messages while the socket has room. True if some are still queued."""
        with contextlib.suppress(OSError):  # ended, as the sentinel shows
            while self._unsent and self._room.poll(0):
                self.connection.send(self._unsent[0])
                self._unsent.popleft()
        return bool(self._unsent)

    def messages(self) -> Iterator[ReceiveT]:
        """Yield the messages that have arrived. A child's final error is stored as `failure` instead."""
        try:
            while self.connection.poll():
                message = self.connection.recv()
                if isinstance(message, ChildFailed):
                    self.failure = message
                else:
                    yield message
        except (EOFError, OSError):  # closed, perhaps within a message, because the process is ending
            self.wait(time.monotonic() + 1.0)

    def ending(self) -> ChildFailed:
        """Wait for the end. Return the child's error, or a description of its end."""
        ended = self.how_it_ended()
        killed = self._keeper.returncode == -signal.SIGKILL
        if self.failure is None:
            return ChildFailed(ended, user_error=False, killed=killed)
        return self.failure if self.failure.text else ChildFailed(ended, self.failure.user_error, killed)

    def hang_up(self) -> None:
        """Signal end of file to the child."""
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self.connection.fileno())) as ours:
            ours.shutdown(socket.SHUT_WR)

    def end(self, patience_seconds: float) -> None:
        """Wait for the process, kill it after the timeout, release its resources. Safe to call twice."""
        super().end(patience_seconds)
        self.connection.close()


# -- a child that starts before its setup is known ------------------------------------------------------------

MOST_FDS = 200
"""Descriptors in one message; Linux takes 253."""
LEARNER = "pbt_rl.learner.learner"


def spare_learner(run: str) -> Waiting[Any, Any] | None:
    """Start a learner that loads torch and waits for its setup. None on one core, where this saves no time.

    run: name shown in the process list.
    """
    return Waiting(LEARNER, f"{run}: learner 0") if len(os.sched_getaffinity(0)) > 1 else None


@dataclass(frozen=True)
class Begun:
    """Second message to a waiting child. fds: the parent's numbers of the descriptors that follow."""

    setup: Any
    fds: tuple[int, ...]


@dataclass(frozen=True)
class Later:
    """First message to a waiting child: the setup and its descriptors follow later."""

    def finished(self, connection: Connection[Any, Any]) -> Any:
        """Receive the setup from the parent. Called in the child."""
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
    """Child that imports its module early and waits for its setup."""

    def __init__(self, module: str, run: str = "") -> None:
        super().__init__(module, module, Later(), (), run=run)

    def set_up(self, label: str, setup: object, fds: Sequence[int], log: Path | None) -> None:
        """Send the setup and its descriptors (fields `..._fd` and `..._fds`)."""
        self.label, self._log = label, log
        with contextlib.suppress(OSError):  # already ended, as the sentinel shows
            self._line.send(f"{label}\n{'' if log is None else log.absolute()}".encode())
            self.connection.send(cast("SendT", Begun(setup, tuple(fds))))
            with socket.socket(fileno=os.dup(self.connection.fileno())) as line:
                for part in _parts(fds):
                    socket.send_fds(line, [b"\0"], part)

    def discard(self) -> None:
        """End the child unless it was set up. Safe to call twice."""
        if self.label == self.module and self._line.fileno() >= 0:
            self.kill()
            self.end(0)


def _renumbered(setup: Any, numbers: Mapping[int, int]) -> Any:
    """Replace the descriptor numbers in a setup. numbers: parent's number -> child's number."""

    def here(fd: int) -> int:
        return numbers.get(fd, fd)

    names = [f.name for f in fields(setup)]
    single = {name: here(getattr(setup, name)) for name in names if name.endswith("_fd")}
    several = {name: tuple(map(here, getattr(setup, name))) for name in names if name.endswith("_fds")}
    return replace(setup, **single, **several)


def _parts(fds: Sequence[int]) -> Iterator[Sequence[int]]:
    """Split descriptors into parts that fit one message."""
    for at in range(0, len(fds), MOST_FDS):
        yield fds[at : at + MOST_FDS]


# -- commands, and the child itself ---------------------------------------------------------------------------


def python_module(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module. The module must call `working_directory_last` first."""
    return [sys.executable, *interpreter_options(), "-m", module, *arguments]


def bound_to_us(command: Sequence[str], number: signal.Signals = signal.SIGKILL) -> list[str]:
    """Wrap a command to get a signal when the calling thread ends.

    The program runs in a new session and inherits only descriptors 0 to 2.
    """
    return [*KEEPER, "bind", str(os.getpid()), str(int(number)), *command]


def kill_marked(mark: str) -> None:
    """Kill every process with the mark in its environment. Used after a keeper was killed."""
    wanted = f"{MARK}={mark}".encode()
    deadline = time.monotonic() + keeper.KILL_SECONDS
    while time.monotonic() < deadline:
        found = 0
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # just ended, or owned by another user
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
    """Prepare this child process. Return its connection and its setup.

    It ignores the parent's signals. On `STACKS_SIGNAL` it prints its stacks, even during a call into C.
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
    """Ignore and unblock the parent's signals, which are blocked at process start."""
    for number in PARENTS_SIGNALS:
        if number != signal.SIGTERM:
            signal.signal(number, signal.SIG_IGN)
    # Handled instead of ignored, because child programs of an environment would inherit SIG_IGN. `terminate()` could
    # then not end them, and `close()` of many environments waits for that.
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.siginterrupt(signal.SIGTERM, False)
    os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (*PARENTS_SIGNALS, STACKS_SIGNAL))


def print_stacks() -> None:
    """Print the stack of every thread of this process."""
    faulthandler.dump_traceback(STDERR, all_threads=True)


def register_stacks() -> None:
    """Install a C handler that prints the signalled thread's stack.

    It runs before the Python handler. It cannot print the stacks of other threads, because they keep running: their
    frames may be freed while they are read.
    """
    faulthandler.register(STACKS_SIGNAL, STDERR, all_threads=False, chain=True)


class StackDumps:
    """Handler of `STACKS_SIGNAL`: print this process's stacks, and make each child print its own into its log.

    Does nothing outside the main thread, where Python allows no handlers. Create and close it in the same thread.
    """

    def __init__(self, children: Callable[[], Iterable[Child[Any, Any]]]) -> None:
        self._children = children
        self._handles = in_main_thread()
        if self._handles:
            self._previous = signal.signal(STACKS_SIGNAL, lambda *_: self._dump())
            register_stacks()

    def close(self) -> None:
        """Restore the previous handler. Safe to call twice."""
        if self._handles:
            faulthandler.unregister(STACKS_SIGNAL)
            signal.signal(STACKS_SIGNAL, self._previous)
            self._handles = False
            self._children = list  # drop the reference to the fleet, which holds memory

    def _dump(self) -> None:
        print_stacks()
        for child in self._children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, STACKS_SIGNAL)


def send_failure(connection: Connection[Any, Any], text: str, *, user_error: bool) -> None:
    """Send the error that ends this child. Ignored if the parent has ended."""
    with contextlib.suppress(BrokenPipeError):
        connection.send(ChildFailed(text, user_error))
