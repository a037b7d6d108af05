"""Children: fresh Python interpreters that die with their parent and exchange messages with it over one socket.

Not `multiprocessing`: its spawn runs the user's main module again in every child, and its resource tracker is
one more process that can be left behind. A child inherits its descriptors and receives everything else as its
first message. Messages are pickled, and only ever between our own processes.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from typing import IO, Any, Generic, TypeVar

from pbt_rl.envs.paths import interpreter_options, working_directory_last
from pbt_rl.wire.messages import ChildFailed

SendT = TypeVar("SendT")
ReceiveT = TypeVar("ReceiveT")

PR_SET_PDEATHSIG = 1
TAIL_BYTES = 4000
PARENTS_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""They may reach the whole process group; only the parent handles them, and it ends its children in order."""
CHILD_ENVIRONMENT = {
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


class Child(Generic[SendT, ReceiveT]):
    """A process that runs `python -m MODULE`, seen from its parent.

    setup: its first message. fds: descriptors that it inherits, under the same numbers.
    """

    def __init__(self, module: str, label: str, setup: object, fds: Sequence[int]) -> None:
        ours, theirs = socket.socketpair()
        self.label = label
        self.failure: ChildFailed | None = None
        """The error that it sent before it ended."""
        self.output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the child
        # A child is born with them blocked: it must not die of one before it can ignore it.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, PARENTS_SIGNALS)
        try:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    *interpreter_options(),
                    "-m",
                    module,
                    str(theirs.fileno()),
                    str(os.getpid()),
                ],
                pass_fds=[theirs.fileno(), *fds],
                stdin=subprocess.DEVNULL,
                stdout=self.output,
                stderr=subprocess.STDOUT,
                env=os.environ | CHILD_ENVIRONMENT,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        theirs.close()
        connection: Connection[Any, Any] = Connection(ours.detach())
        self.connection: Connection[SendT, ReceiveT | ChildFailed] = connection
        self.sentinel = os.pidfd_open(self._process.pid)
        """Becomes readable when the process ends."""
        connection.send(setup)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def exit_code(self) -> int | None:
        """Return the exit code; None while it runs."""
        return self._process.poll()

    def messages(self) -> Iterator[ReceiveT]:
        """Yield the messages that have arrived. The error of a child that ends is kept as `failure` instead."""
        try:
            while self.connection.poll():
                message = self.connection.recv()
                if isinstance(message, ChildFailed):
                    self.failure = message
                else:
                    yield message
        except (EOFError, ConnectionError):  # closed by its side: the process is about to end
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(1.0)

    def how_it_ended(self) -> str:
        """Wait for the end; return how it ended, with the tail of its output."""
        code = self._process.wait()
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        size = self.output.seek(0, os.SEEK_END)
        self.output.seek(max(0, size - TAIL_BYTES))
        tail = self.output.read().decode(errors="replace").strip()
        return f"{self.label} {how}" + (f"; it printed:\n{tail}" if tail else "")

    def ending(self) -> ChildFailed:
        """Wait for the end; return the error that it sent, or how it ended."""
        ended = self.how_it_ended()
        if self.failure is None:
            return ChildFailed(ended, user_error=False)
        return self.failure if self.failure.text else ChildFailed(ended, self.failure.user_error)

    def end(self, patience_seconds: float) -> None:
        """Wait for the process, kill it if it takes longer, and release what belongs to it. Safe to call twice."""
        try:
            self._process.wait(patience_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if not self.connection.closed:
            self.connection.close()
            os.close(self.sentinel)
            self.output.close()


def begin_child() -> tuple[Connection[Any, Any], Any]:
    """Tie this process's life to its parent's; return the connection and the setup. To be called in the child."""
    connection: Connection[Any, Any] = Connection(int(sys.argv[1]))
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(sys.argv[2]):  # the parent died before the line above
        os._exit(1)
    for number in PARENTS_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PARENTS_SIGNALS)
    faulthandler.enable()
    working_directory_last()
    return connection, connection.recv()


def send_failure(connection: Connection[Any, Any], text: str, *, user_error: bool) -> None:
    """Send why this child is about to end. A parent that is gone already needs no reason."""
    with contextlib.suppress(BrokenPipeError):
        connection.send(ChildFailed(text, user_error))
