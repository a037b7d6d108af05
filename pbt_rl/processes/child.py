"""Child processes: new Python interpreters that die with their parent and exchange pickled messages over a socket.

`multiprocessing` does not start these processes, because its spawn method runs the user's main module again in every
child, and because its resource tracker is another process that can leak. A child inherits its file descriptors, and its
first message contains all other data. Exception: a `Waiting` child receives both in later messages.

A keeper (`keeper.py`) runs between parent and child. The keeper collects the child's output and kills the child's
descendants. A child counts as ended when its keeper has ended. The keeper ends when all descendants of the child have
ended, or after a time limit.
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
"""Signals that a terminal or a cluster may send to all processes of a run. Children ignore these signals, because the
parent handles them and ends its children."""
STACKS_SIGNAL = signal.SIGUSR2
"""Signal that makes a child print the stack of each thread."""
MARK = "PBT_RL_CHILD"
"""Environment variable that marks a child and its descendants. Each child has a different value."""
KEEPER_SECONDS = keeper.TIDY_SECONDS + keeper.KILL_SECONDS + 0.5
"""Time limit for a keeper's end after a request, in seconds. Afterwards, the parent kills the keeper."""
PID_SECONDS = 10.0
PID = re.compile(keeper.CHILD + rb"(\d+)\n")
STDERR = 2
LINE_BUFFERED = 1
"""Value of _IOLBF (line buffering) in the C library."""
CHILD_ENVIRONMENT = {
    # Unbuffered, because the log of a killed child must have its last output.
    "PYTHONUNBUFFERED": "1",
    # One thread for numerical libraries. The plan of a learner may set more threads.
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
    # Threads that wait for each other must not spin, because other processes need the cores.
    "OMP_WAIT_POLICY": "PASSIVE",
    # Keep freed memory. By default, glibc returns large blocks to the kernel at every free. Learning allocates these
    # blocks again in each step, and page faults took a fifth of the learning time.
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str((1 << 31) - 1),
    # One arena for all threads, because the thresholds apply only to the main arena.
    "MALLOC_ARENA_MAX": "1",
}


@dataclass(frozen=True)
class ChildFailed:
    """Last message of a child that ends with an error. If the child sent no message, the parent makes this object.

    user_error: True if `text` is a message about an error of the user. False if `text` is a traceback, or the parent's
    description of the child's end.
    killed: True if SIGKILL ended the child before it sent an error, for example when memory was full.
    """

    text: str
    user_error: bool
    killed: bool = False


class Program:
    """Handle of a program that runs under a keeper.

    command: path of the program, and its arguments.
    label: display name.
    fds: descriptors that the program inherits, under the same numbers.
    environment: additional environment variables.
    log: output file of bounded size. None: the keeper keeps only the last output, in memory.
    scratch: folder that is removed after the program's end, if any.

    The program starts with PARENTS_SIGNALS and STACKS_SIGNAL blocked. `leave_to_parent` unblocks them.
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
            # Block these signals, because they must not kill the program before it can ignore them.
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
        """Descriptor that becomes readable when the keeper has ended. The program has then ended, too."""

    @property
    def pid(self) -> int:
        """Process id of the program.

        Raises ProcessLookupError if the id does not arrive within PID_SECONDS, or if the keeper has ended before.
        """
        while not (found := PID.search(self._told)):
            self._hear()
        return int(found[1])

    def _hear(self) -> None:
        """Receive a message of the keeper: the program's process id, or the program's last output.

        Raises ProcessLookupError if no message arrives within PID_SECONDS, or if the keeper has ended.
        """
        self._line.settimeout(PID_SECONDS)
        try:
            heard = self._line.recv(1 << 16)
        except OSError:
            heard = b""
        if not heard:
            raise ProcessLookupError(f"no message from the keeper of {self.label}")
        self._told += heard

    def exit_code(self) -> int | None:
        """Return the exit code of the program, or None if its keeper still runs. -N: signal N ended the program."""
        return self._keeper.poll()

    def how_it_ended(self) -> str:
        """Wait for the end of the program. Return a description of the end, with the last output."""
        code = self._keeper.wait()
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        tail, clean = self.last_words()
        if not clean:
            how = f"was killed because its keeper (process {self._keeper.pid}) {how}"
        where = f" (see {self._log})" if self._log is not None and self._log.is_file() else ""
        return f"{self.label} {how}" + (f"; it printed{where}:\n{tail}" if tail else "")

    def last_words(self) -> tuple[str, bool]:
        """Return the last output of an ended program, and False if the program's keeper was killed (otherwise True)."""
        with contextlib.suppress(ProcessLookupError):
            while True:
                self._hear()
        keepers, ended, childs = self._told.partition(keeper.ENDED)
        words = childs if ended else PID.sub(b"", keepers)
        return words.decode(errors="replace").strip(), bool(ended)

    def wait(self, deadline: float) -> bool:
        """Wait for the end of the program until a deadline in `time.monotonic` seconds. Return True if it ended."""
        try:
            self._keeper.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """Make the keeper kill the program and its descendants. Do not wait for their end. Safe to call twice."""
        self._killed_at = self._killed_at or time.monotonic()
        self._keeper.send_signal(signal.SIGCONT)  # a stopped keeper cannot act
        with contextlib.suppress(OSError):
            self._line.shutdown(socket.SHUT_WR)

    def end(self, timeout_seconds: float) -> None:
        """Wait for the program, kill it after the timeout, and release the handle's resources. Safe to call twice."""
        if self._line.fileno() < 0:
            return
        if not self.wait(time.monotonic() + timeout_seconds):
            self.kill()
            if not self.wait((self._killed_at or 0.0) + KEEPER_SECONDS):
                self._keeper.kill()  # the kernel then kills the program
                self._keeper.wait()
        _, clean = self.last_words()
        if not clean:
            kill_marked(self._mark)
            if self._scratch is not None:
                shutil.rmtree(self._scratch, ignore_errors=True)
        self._line.close()
        os.close(self.sentinel)


class Child(Program, Generic[SendT, ReceiveT]):
    """Handle of a child process that runs `python -m` with `module`.

    setup: first message to the child. In the child, `begin_child` returns it.
    label: display name. fds: descriptors that the child inherits. log: output file of bounded size, if any.
    run: text in the process list. Default: the run's folder and the label if there is a log, otherwise no text.

    The child prints its stacks when it gets STACKS_SIGNAL.
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
        """Error that the child sent before its end, if any."""
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
        with contextlib.suppress(ConnectionError):  # if the child has already ended, `sentinel` is readable
            connection.send(setup)

    def post(self, message: SendT) -> None:
        """Queue a message, and send queued messages while the socket has room.

        `post` does not block if the message is much smaller than the socket's buffer. It must not block, because this
        process and the child would wait for each other forever if both sockets were full.
        """
        self._unsent.append(message)
        self.flush()

    def flush(self) -> bool:
        """Send queued messages while the socket has room. Return True if messages remain in the queue."""
        with contextlib.suppress(OSError):  # if the child has ended, `sentinel` is readable
            while self._unsent and self._room.poll(0):
                self.connection.send(self._unsent[0])
                self._unsent.popleft()
        return bool(self._unsent)

    def messages(self) -> Iterator[ReceiveT]:
        """Yield the messages that have arrived. A `ChildFailed` is stored in `failure` instead."""
        try:
            while self.connection.poll():
                message = self.connection.recv()
                if isinstance(message, ChildFailed):
                    self.failure = message
                else:
                    yield message
        except (EOFError, OSError):  # the child is ending and has closed the connection
            self.wait(time.monotonic() + 1.0)

    def ending(self) -> ChildFailed:
        """Wait for the end of the child. Return the error that the child sent, or a description of its end."""
        ended = self.how_it_ended()
        killed = self._keeper.returncode == -signal.SIGKILL
        if self.failure is None:
            return ChildFailed(ended, user_error=False, killed=killed)
        return self.failure if self.failure.text else ChildFailed(ended, self.failure.user_error, killed)

    def hang_up(self) -> None:
        """Close the sending direction of the connection. The child then reads end of file."""
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self.connection.fileno())) as ours:
            ours.shutdown(socket.SHUT_WR)

    def end(self, timeout_seconds: float) -> None:
        """Wait for the child, kill it after the timeout, and release the handle's resources. Safe to call twice."""
        super().end(timeout_seconds)
        self.connection.close()


# -- a child that starts before its setup is available --------------------------------------------------------

MOST_FDS = 200
"""Maximum number of descriptors per message. The limit of Linux is 253."""
LEARNER = "pbt_rl.learner.learner"


def spare_learner(run: str) -> Waiting[Any, Any] | None:
    """Start a learner that loads torch and waits for its setup. Return its handle.

    On a single core, start no learner and return None, because loading in parallel saves no time.

    run: name of the run in the process list.
    """
    return Waiting(LEARNER, f"{run}: learner 0") if len(os.sched_getaffinity(0)) > 1 else None


@dataclass(frozen=True)
class Begun:
    """Second message to a `Waiting` child. fds: descriptors that are sent next, by their numbers in the parent."""

    setup: Any
    fds: tuple[int, ...]


@dataclass(frozen=True)
class Later:
    """First message to a `Waiting` child. The setup and its descriptors are sent later."""

    def finished(self, connection: Connection[Any, Any]) -> Any:
        """In the child: receive the setup and its descriptors. Return the setup with the numbers in the child."""
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
    """Handle of a child that imports its module and then waits for its setup. run: text in the process list."""

    def __init__(self, module: str, run: str = "") -> None:
        super().__init__(module, module, Later(), (), run=run)

    def set_up(self, label: str, setup: object, fds: Sequence[int], log: Path | None) -> None:
        """Send the setup and its descriptors. The child renumbers the fields `..._fd` and `..._fds` of the setup.

        setup: frozen dataclass. fds: all descriptors in these fields. label, log: as in `Child`.
        """
        self.label, self._log = label, log
        with contextlib.suppress(OSError):  # if the child has already ended, `sentinel` is readable
            self._line.send(f"{label}\n{'' if log is None else log.absolute()}".encode())
            self.connection.send(cast("SendT", Begun(setup, tuple(fds))))
            with socket.socket(fileno=os.dup(self.connection.fileno())) as line:
                for part in _parts(fds):
                    socket.send_fds(line, [b"\0"], part)

    def discard(self) -> None:
        """End the child if no setup was sent. Safe to call twice."""
        if self.label == self.module and self._line.fileno() >= 0:
            self.kill()
            self.end(0)


def _renumbered(setup: Any, numbers: Mapping[int, int]) -> Any:
    """Replace the descriptors in a setup. numbers: descriptor in the parent -> descriptor in the child."""

    def here(fd: int) -> int:
        return numbers.get(fd, fd)

    names = [f.name for f in fields(setup)]
    single = {name: here(getattr(setup, name)) for name in names if name.endswith("_fd")}
    several = {name: tuple(map(here, getattr(setup, name))) for name in names if name.endswith("_fds")}
    return replace(setup, **single, **several)


def _parts(fds: Sequence[int]) -> Iterator[Sequence[int]]:
    """Split descriptors into parts of at most MOST_FDS."""
    for at in range(0, len(fds), MOST_FDS):
        yield fds[at : at + MOST_FDS]


# -- commands, and the child itself ---------------------------------------------------------------------------


def python_module(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a Python module. The module must call `working_directory_last` at its start."""
    return [sys.executable, *interpreter_options(), "-m", module, *arguments]


def bound_to_us(command: Sequence[str], number: signal.Signals = signal.SIGKILL) -> list[str]:
    """Return a command that runs `command` as a program that ends with the thread that started the program.

    When this thread ends, the kernel sends the signal `number` to the program. Only this process may start the returned
    command. The program runs in a new session and inherits only the descriptors 0 to 2.
    """
    return [*KEEPER, "bind", str(os.getpid()), str(int(number)), *command]


def kill_marked(mark: str) -> None:
    """Kill all processes whose environment variable MARK has the value `mark`. Processes of other users are left out.

    Return when no such process is left, or after KILL_SECONDS. This is needed only after a keeper was killed.
    """
    wanted = f"{MARK}={mark}".encode()
    deadline = time.monotonic() + keeper.KILL_SECONDS
    while time.monotonic() < deadline:
        found = 0
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # the process has ended, or another user owns it
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
    """Prepare this child process: import path, signals, output. Return the connection to the parent, and the setup.

    When the process gets STACKS_SIGNAL, it prints the stacks of all threads. If the main thread runs C code, it first
    prints only the stack of the interrupted thread. The other stacks follow after the C code has returned.
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
    """Ignore PARENTS_SIGNALS. Unblock these signals and STACKS_SIGNAL, which are blocked when the process starts."""
    for number in PARENTS_SIGNALS:
        if number != signal.SIGTERM:
            signal.signal(number, signal.SIG_IGN)
    # SIGTERM has an empty handler. If SIGTERM were ignored, the programs that an environment starts would inherit
    # SIG_IGN, and `terminate()` could not end these programs. `close()` of many environments would then hang.
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.siginterrupt(signal.SIGTERM, False)
    os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (*PARENTS_SIGNALS, STACKS_SIGNAL))


def print_stacks() -> None:
    """Print the stack of every thread of this process."""
    faulthandler.dump_traceback(STDERR, all_threads=True)


def register_stacks() -> None:
    """Install a C handler of STACKS_SIGNAL. It prints the stack of the interrupted thread and calls the Python handler.

    The C handler does not print the stacks of other threads, because running threads may free their stack frames.
    """
    faulthandler.register(STACKS_SIGNAL, STDERR, all_threads=False, chain=True)


class StackDumps:
    """Handler of STACKS_SIGNAL that prints the stacks of this process and makes each child print its stacks.

    Python allows handlers only in the main thread. In other threads, this class does nothing. Call `close` in the
    thread that created the instance.

    children: returns the handles of the present children.
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
            self._children = list  # drop the callback, to free the memory that it refers to

    def _dump(self) -> None:
        print_stacks()
        for child in self._children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, STACKS_SIGNAL)


def send_failure(connection: Connection[Any, Any], text: str, *, user_error: bool) -> None:
    """Send the error that ends this child process to the parent. Do nothing if the parent has ended.

    text, user_error: as in `ChildFailed`.
    """
    with contextlib.suppress(BrokenPipeError):
        connection.send(ChildFailed(text, user_error))
