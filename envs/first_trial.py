"""Runs an environment's code for the first time in a copy of this process, which it may end.

`sys.exit`, `os._exit`, an abort or a crash in C would else end the command without a word. A copy (fork) takes
milliseconds, and knows what this process knows: its modules, its path, environments that it has registered.

    this process -- guard -- copy -- what the environment starts, however it detaches

The guard is a copy as well, in which no code of others runs. What leaves the copy (daemon, double fork, own session)
becomes the guard's (`PR_SET_CHILD_SUBREAPER`), which ends it all when the copy ends, or when it is told to by SIGTERM,
which it also gets if this process dies.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import os
import pickle
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from . import time_limit as time_limits
from .base import EnvSetupError, EnvSpec
from .traces import environment_output, environment_traceback

T = TypeVar("T")
TAIL_BYTES = 16_000
SHOWN_CHARACTERS = 4000
GRACE_SECONDS = 5.0
"""By how much the limit here is later than the one in the copy, whose message is the better one."""
KILL_SECONDS = 2.0
"""For which the guard waits for the end of what it has killed: some states of the kernel hold a process longer."""
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_STATUS_BYTES = 8
"""In front of what the copy has to say: its wait status, written by the guard."""


class FirstProbe:
    """Describes environments of a family without keeping them, each in a copy of this process.

    prefix: of their ids. The recipe of a run, which is asked for first, and its spec follow from one trial.
    """

    def __init__(self, prefix: str, probe: Callable[[str, Mapping[str, Any]], EnvSpec]) -> None:
        self._prefix, self._probe = prefix, probe
        self._known: tuple[str, EnvSpec] | None = None
        """What the last recipe was made from, until it is asked for."""

    def for_recipe(self, name: str, keywords: Mapping[str, Any]) -> EnvSpec:
        """Describe an environment anew. Raises EnvSetupError."""
        self._known = None
        spec = self(name, keywords)
        self._known = self._key(name, keywords), spec
        return spec

    def __call__(self, name: str, keywords: Mapping[str, Any]) -> EnvSpec:
        """Describe an environment: make one, read its spaces and close it. Raises EnvSetupError."""
        known, self._known = self._known, None
        if known is not None and known[0] == self._key(name, keywords):
            return known[1]
        env_id = self._prefix + name
        limit = time_limits.PROBE_SECONDS + GRACE_SECONDS
        return tried(env_id, lambda: self._probe(name, keywords), limit)

    def _key(self, name: str, keywords: Mapping[str, Any]) -> str:
        """Include where a name is looked up: the same one may mean another environment elsewhere."""
        return repr((name, sorted(keywords.items()), os.getcwd(), sys.path))  # noqa: PTH109 - as the import does


def tried(
    env_id: str,
    function: Callable[[], T],
    limit_seconds: float | None,
    *,
    captured: bool = True,
    when: str = "when it was made",
) -> T:
    """Call a function in a copy of this process, and return what it returns, which must be picklable.

    captured: keep the end of what it prints, for the error if the copy ends, else for stderr when it is done.
    Raises EnvSetupError with the message of the function's own; for everything else that it raises, with its
    traceback; and if the copy ends, or is not done within the limit.
    """
    if not _can_be_copied():
        return function()
    outcome = os.memfd_create("outcome")
    output, theirs = os.pipe()
    try:
        ours = os.getpid()
        pid = _copy()
        if pid == 0:
            _guard(ours, function, outcome, theirs if captured else None)  # does not return
        os.close(theirs)
        theirs = -1
        printed, in_time = _wait(pid, output, limit_seconds)
        said_by_guard = os.pread(outcome, _STATUS_BYTES, 0)
        done = os.pread(outcome, os.fstat(outcome).st_size, _STATUS_BYTES)
    finally:
        for fd in (outcome, output, theirs):
            if fd >= 0:
                os.close(fd)
    tail = environment_output(printed)[-SHOWN_CHARACTERS:]
    said = f"\nIt printed last:\n{tail}" if tail else ""
    if not in_time:
        raise EnvSetupError(
            f"{env_id} hangs: making it took more than {time_limits.PROBE_SECONDS:g} s. Load what takes long "
            f"beforehand{said}"
        )
    if not done:
        raise EnvSetupError(f"{env_id} cannot be used: {_how(int.from_bytes(said_by_guard))} {when}{said}")
    kind, value = pickle.loads(done)
    if kind == "exit":
        raise EnvSetupError(f"{env_id} cannot be used: it called sys.exit {when}.\n{value}{said}")
    sys.stderr.write(printed)
    if kind == "refused":
        raise EnvSetupError(value)
    if kind == "raised":
        raise EnvSetupError(f"{env_id} cannot be used: it raised {value[0]} {when}.\n{value[1]}")
    result: T = value
    return result


def _can_be_copied() -> bool:
    """Whether a copy of this process works: it has no thread but the one that makes it, and no GPU.

    Libraries that have started threads would wait for them for ever; torch does not, if it may use one only.
    """
    torch: Any = sys.modules.get("torch")
    on_gpu = torch is not None and torch.cuda.is_initialized()
    return not on_gpu and not {"jax", "tensorflow"} & sys.modules.keys()


def _copy() -> int:
    """Fork. The copy never collects garbage of this process, whose destructors may need threads that it lacks."""
    sys.stdout.flush()
    sys.stderr.flush()
    collects = gc.isenabled()
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python's, of threads: see `_can_be_copied`
            pid = os.fork()
        if pid == 0:
            gc.freeze()
        return pid
    finally:
        if collects:
            gc.enable()


def _how(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"it ended with exit code {code}" if code >= 0 else f"it was ended by {signal.Signals(-code).name}"


# -- in the guard -------------------------------------------------------------------------------------------


def _guard(parent: int, function: Callable[[], object], outcome: int, output: int | None) -> NoReturn:
    """Make the copy, wait for its end or for SIGTERM, write its wait status to `outcome`, and leave nothing of it."""
    try:
        os.setsid()  # Ctrl-C is for the parent
        for number in (signal.SIGTERM, signal.SIGCHLD):  # ignored ones would not be noticed below
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGCHLD})
        _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        guard = os.getpid()
        if os.getppid() == parent and (pid := os.fork()) == 0:
            _run(guard, function, outcome, output)  # does not return
        elif os.getppid() == parent:
            status = _end_of(pid)
            os.pwrite(outcome, (status or 0).to_bytes(_STATUS_BYTES), 0)
        _end_all()
    finally:
        os._exit(0)


def _end_of(pid: int) -> int | None:
    """Return the wait status of the copy; None if SIGTERM comes first."""
    while True:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == pid:
                    return ended[1]
        if signal.sigwait({signal.SIGTERM, signal.SIGCHLD}) == signal.SIGTERM:
            return None


def _end_all() -> None:
    """Kill every descendant: as they end, their children become ours."""
    deadline = time.monotonic() + KILL_SECONDS
    while time.monotonic() < deadline:
        for pid in _children():
            with contextlib.suppress(OSError):  # another user's: nothing can be done
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.001)


def _children() -> list[int]:
    """Return the ids of this process's children."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            # The name in parentheses may hold anything.
            if int((folder / "stat").read_bytes().rpartition(b")")[2].split()[1]) == os.getpid():
                found.append(int(folder.name))
    return found


def _prctl(option: int, argument: int) -> None:
    ctypes.CDLL(None).prctl(option, ctypes.c_ulong(argument))


# -- in the copy --------------------------------------------------------------------------------------------


def _run(guard: int, function: Callable[[], object], outcome: int, output: int | None) -> NoReturn:
    """Call the function, write ("done" | "refused" | "raised" | "exit", what) to `outcome`, and end."""
    try:
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guard:
            os._exit(1)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGCHLD})
        faulthandler.enable(2)  # a crash shows where
        if output is not None:
            _redirect(output)
        if "torch" in sys.modules:  # it must not use the threads that the copy lacks
            torch: Any = sys.modules["torch"]
            torch.set_num_threads(1)
        answer = pickle.dumps(_outcome(function))
        os.pwrite(outcome, answer, _STATUS_BYTES)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(0)


def _outcome(function: Callable[[], object]) -> tuple[str, object]:
    try:
        return "done", function()
    except EnvSetupError as error:
        return "refused", str(error)
    except SystemExit as error:
        return "exit", environment_traceback(error)
    except BaseException as error:  # noqa: BLE001 - whatever it raises is shown
        return "raised", (type(error).__name__, environment_traceback(error))


def _redirect(output: int) -> None:
    """Have everything printed go to `output`, whatever stands for stdout here (a notebook, a test)."""
    null = os.open(os.devnull, os.O_RDONLY)
    for fd, target in ((null, 0), (output, 1), (output, 2)):
        os.dup2(fd, target)
    sys.stdout, sys.stderr = (os.fdopen(fd, "w", buffering=1, closefd=False) for fd in (1, 2))
    sys.breakpointhook = lambda *_args, **_keywords: (
        None
    )  # there is no terminal; serial mode stops there later


# -- beside it ----------------------------------------------------------------------------------------------


def _wait(pid: int, output: int, limit_seconds: float | None) -> tuple[str, bool]:
    """Wait for the guard, with which all is over; return (the tail of the output, whether the limit was kept)."""
    deadline = None if limit_seconds is None else time.monotonic() + limit_seconds
    sentinel = os.pidfd_open(pid)
    os.set_blocking(output, False)
    tail, in_time = b"", True
    try:
        poll = select.poll()
        poll.register(sentinel, select.POLLIN)
        poll.register(output, select.POLLIN)
        ended = False
        while not ended and in_time:
            left = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
            events = dict(poll.poll(left))
            ended, in_time = sentinel in events, bool(events)
            if events.get(output, 0) & ~select.POLLIN and not ended:
                poll.unregister(output)  # closed by its side
            tail = _read(output, tail)
    finally:
        signal.pidfd_send_signal(sentinel, signal.SIGTERM)
        os.waitpid(pid, 0)
        os.close(sentinel)
    return tail.decode(errors="replace"), in_time


def _read(output: int, tail: bytes) -> bytes:
    """Read once: as much as a pipe holds, and no more, however fast it is filled."""
    with contextlib.suppress(BlockingIOError):
        tail += os.read(output, 1 << 16)
    return tail[-TAIL_BYTES:]
