"""First trial of an environment's code in a fork of this process.

Without the fork, `sys.exit`, `os._exit`, an abort or a crash in C would end the command without a message. A fork
takes milliseconds and has this process's state: modules, path, registered environments.

    this process -- keeper -- fork -- processes that the environment starts, even daemons

The keeper (`pbt_rl.processes.keeper`) is another fork, which runs no user code. The keeper kills the fork and all
processes that the fork has started, as soon as the fork ends, this process ends, or this process requests the end.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import os
import pickle
import re
import signal
import socket
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from itertools import dropwhile
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from pbt_rl.errors import EnvSetupError
from pbt_rl.processes.keeper import BoundedLog, Keeper, become_keeper, end_like, end_with

from . import time_limits
from .base import EnvSpec
from .user_values import briefly

T = TypeVar("T")
OURS = f"{Path(__file__).parent.parent}/"
"""Folder of this project's code."""


def environment_traceback(error: BaseException) -> str:
    """Return the traceback of an error and its causes, each from the first stack frame of user code.

    An error without a stack frame of user code is shown in full. A syntax error is shown without stack frames of this
    project.
    """
    shown = traceback.TracebackException.from_exception(error)
    not_theirs = (OURS, "<frozen importlib", importlib.__file__)
    one: traceback.TracebackException | None = shown
    while one is not None:
        inside = list(dropwhile(lambda frame: frame.filename.startswith(not_theirs), one.stack))
        one.stack[:] = inside if isinstance(error, SyntaxError) else inside or one.stack
        one = one.__cause__ or one.__context__
    text = "".join(shown.format()).rstrip()
    return f"{text}\n{FLOATS}" if isinstance(error, TypeError) and _NO_INTEGER.search(str(error)) else text


FLOATS = (
    "(Reward shaping values are floats, even if the default is an integer, because PBT multiplies them. Convert them "
    "with int(...) if you need integers.)"
)
_NO_INTEGER = re.compile(
    r"'float' object cannot be interpreted as an integer|non-int of type 'float'|got float|indices must be integers"
)


def environment_output(text: str) -> str:
    """Remove this project's stack frames and their callers from the stack of a crash in a process's output.

    text: output of the process. In a stack of `faulthandler`, the newest stack frame is first, so callers follow. The
    list of extension modules after the stack is removed too. Other text is kept.
    """
    if "(most recent call first)" not in text:
        return text.strip()
    kept, below_us = [], False
    for line in text.splitlines():
        below_us = line.startswith(f'  File "{OURS}') or (below_us and line.startswith("  File "))
        if not below_us and not line.startswith("Extension modules: "):
            kept.append(line)
    return "\n".join(kept).strip()


TAIL_BYTES = 16_000
LONG = b"long"
"""Message by which a fork requests the longer timeout LONG_SECONDS, because it makes a device simulator."""
SHOWN_CHARACTERS = 4000


def tried(
    env_id: str,
    function: Callable[[], T],
    limit_seconds: float | None,
    *,
    captured: bool = True,
    when: str = "when it was made",
) -> T:
    """Call a function in a fork of this process and return its result, which must be picklable.

    If this process cannot be forked (see `_can_be_copied`), the function is called in this process, without the
    timeout, and its exceptions are not converted.

    limit_seconds: timeout. None: unlimited.
    captured: True collects the fork's output. The end of the output is written to stderr, or becomes part of the error.
    when: time of the failure in the error message, such as "when it was made".

    Raises EnvSetupError if the function raises, if the fork ends without a result, or after the timeout. An
    EnvSetupError of the function keeps its message. For most other exceptions, the message contains the traceback.
    """
    if not _can_be_copied():
        return function()
    outcome = os.memfd_create("outcome")
    ours, theirs = socket.socketpair()
    try:
        this = os.getpid()
        pid = _copy()
        if pid == 0:
            ours.close()
            _keep(  # does not return
                this, theirs.fileno(), lambda: _run(env_id, function, when, outcome), captured=captured
            )
        theirs.close()
        in_time, status, printed = _wait(pid, ours, limit_seconds, outcome)
        done = os.pread(outcome, os.fstat(outcome).st_size, 0)
    finally:
        os.close(outcome)
        ours.close()
        theirs.close()
    tail = environment_output(printed)[-SHOWN_CHARACTERS:]
    said = f"\nIt printed last:\n{tail}" if tail else ""
    if not in_time:
        raise EnvSetupError(f"{time_limits.making(env_id, long=done == LONG)}{said}")
    if done in (b"", LONG):
        code = os.waitstatus_to_exitcode(status)
        how = f"ended with exit code {code}" if code >= 0 else f"was ended by {signal.Signals(-code).name}"
        raise EnvSetupError(f"{env_id} cannot be used: it {how} {when}{said}")
    result: T
    result, error, exits = pickle.loads(done)
    if exits:
        raise EnvSetupError(error + said)
    sys.stderr.write(printed)
    if error:
        raise EnvSetupError(error)
    return result


def _can_be_copied() -> bool:
    """Check whether this process can be forked: it must not use a GPU, jax or tensorflow.

    Libraries that have started threads may hang in the fork, because the fork lacks these threads. torch works if it
    is limited to one thread.
    """
    torch: Any = sys.modules.get("torch")
    on_gpu = torch is not None and torch.cuda.is_initialized()
    return not on_gpu and not {"jax", "tensorflow"} & sys.modules.keys()


def _copy() -> int:
    """Fork this process. Return the process id of the fork, and 0 in the fork.

    The fork does not collect garbage of this process, because destructors may need threads that the fork lacks.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    collects = gc.isenabled()
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # about threads: see `_can_be_copied`
            pid = os.fork()
        if pid == 0:
            gc.freeze()
        return pid
    finally:
        if collects:
            gc.enable()


class FirstProbe:
    """Probe of a family's environments, each in a fork of this process.

    A run first requests the default options of an environment, then the environment's spec. Both requests use one
    trial.

    prefix: prefix of the ids, such as "gym/".
    """

    def __init__(self, prefix: str, probe: Callable[[str, Mapping[str, Any]], EnvSpec]) -> None:
        self._prefix, self._probe = prefix, probe
        self._known: tuple[str, EnvSpec] | None = None
        """(key, spec) of the last call of `for_recipe`. Used by the next call of the probe."""

    def for_recipe(self, name: str, keywords: Mapping[str, Any]) -> EnvSpec:
        """Return the spec of an environment from a new trial, and keep it for the next call.

        Raises EnvSetupError, see `tried`.
        """
        self._known = None
        self._known = self._key(name, keywords), self(name, keywords)
        return self._known[1]

    def __call__(self, name: str, keywords: Mapping[str, Any]) -> EnvSpec:
        """Return the spec of an environment, from `for_recipe` or from a new trial.

        Raises EnvSetupError, see `tried`.
        """
        known, self._known = self._known, None
        if known is not None and known[0] == self._key(name, keywords):
            return known[1]
        limit = time_limits.PROBE_SECONDS + time_limits.GRACE_SECONDS
        return tried(self._prefix + name, lambda: self._probe(name, keywords), limit)

    def _key(self, name: str, keywords: Mapping[str, Any]) -> str:
        """Return the key of an environment.

        The key includes the import path, because the path determines what a name means.
        """
        return repr((name, sorted(keywords.items()), os.getcwd(), sys.path))  # noqa: PTH109 - as the import does


# -- in the keeper ------------------------------------------------------------------------------------------


def _keep(parent: int, line: int, run: Callable[[], object], *, captured: bool) -> NoReturn:
    """Run the keeper process: fork a child that calls `run`, watch the child, and exit with the child's status.

    parent: process id of the parent.
    line: file descriptor of a socket to the parent. The keeper sends the last bytes of the child's output through it.
    captured: True redirects the child's output to the keeper.
    """
    try:
        os.setsid()  # only the parent handles Ctrl-C
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        become_keeper()
        keeper, (output, printing) = os.getpid(), os.pipe()
        pid = os.fork()
        if pid == 0:
            os.setsid()
            end_with(keeper)
            os.close(line)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGCHLD})
            if captured:
                _redirect(printing)
            run()
            os._exit(0)
        os.close(printing)
        log = BoundedLog("", "")
        status = Keeper(pid, output, line, parent, log).serve()
        os.write(line, log.tail[-TAIL_BYTES:])
        end_like(status)
    finally:
        os._exit(1)


# -- in the fork --------------------------------------------------------------------------------------------


def _run(env_id: str, function: Callable[[], object], when: str, outcome: int) -> None:
    """Call the function and write its pickled `_outcome`. outcome: file descriptor to write to."""
    faulthandler.enable(2)  # a crash prints its location
    if "torch" in sys.modules:  # the fork lacks torch's threads
        torch: Any = sys.modules["torch"]
        torch.set_num_threads(1)
    time_limits.told_of_long.append(lambda: os.pwrite(outcome, LONG, 0))
    os.pwrite(outcome, pickle.dumps(_outcome(env_id, function, when)), 0)
    sys.stdout.flush()
    sys.stderr.flush()


def _outcome(env_id: str, function: Callable[[], object], when: str) -> tuple[object, str, bool]:
    """Call the function. Return (result, error message or "", True if the function raised SystemExit)."""
    try:
        return function(), "", False
    except EnvSetupError as error:
        return None, str(error), False
    except BaseException as error:  # noqa: BLE001 - every exception is reported
        exits, kind = isinstance(error, SystemExit), type(error).__name__
        folders = Path(traceback.extract_tb(error.__traceback__)[-1].filename).parts[-3:-1]
        if kind == "NotImplementedError" and folders == ("gymnasium", "spaces"):
            named = f" ({briefly(str(error))})" if str(error) else ""
            text = (
                f"{env_id} cannot be made: one of its wrappers flattens a space that Gymnasium cannot flatten{named}. "
                "Remove FlattenObservation. Texts, choices, Dicts and Tuples are supported without it"
            )
            return None, text, False
        did = "called sys.exit" if exits else f"raised {kind}"
        return None, f"{env_id} cannot be used: it {did} {when}.\n{environment_traceback(error)}", exits


def _redirect(output: int) -> None:
    """Redirect all output to the file descriptor `output`, even if a notebook or a test has replaced `sys.stdout`."""
    null = os.open(os.devnull, os.O_RDONLY)
    for fd, target in ((null, 0), (output, 1), (output, 2)):
        os.dup2(fd, target)
    sys.stdout, sys.stderr = (os.fdopen(fd, "w", buffering=1, closefd=False) for fd in (1, 2))
    sys.breakpointhook = lambda *_args, **_keywords: None  # the fork has no terminal


# -- in this process ----------------------------------------------------------------------------------------


def _wait(pid: int, line: socket.socket, limit_seconds: float | None, outcome: int) -> tuple[bool, int, str]:
    """Wait for the keeper. Return (False after a timeout, the fork's wait status, the end of the fork's output).

    pid: process id of the keeper.
    line: socket to the keeper.
    outcome: file descriptor that may contain LONG.
    """
    in_time, tail = False, b""
    try:
        for pause in _pauses(pid, limit_seconds, outcome):
            line.settimeout(pause)
            with contextlib.suppress(TimeoutError):
                tail, in_time = line.recv(TAIL_BYTES), True
                break
    finally:
        line.shutdown(socket.SHUT_WR)
        line.settimeout(None)
        while more := line.recv(TAIL_BYTES):
            tail += more
        _, status = os.waitpid(pid, 0)
    return in_time, status, tail.decode(errors="replace")


def _pauses(pid: int, limit_seconds: float | None, outcome: int) -> Iterator[float | None]:
    """Yield the seconds of each wait until the timeout. None: no timeout.

    The fork may request a longer timeout (see LONG).
    """
    if limit_seconds is None:
        yield None
        return
    for seconds in (limit_seconds, time_limits.LONG_SECONDS + time_limits.GRACE_SECONDS):
        timeout = time_limits.ProcessTimeout(seconds, pid)
        pause = timeout.pause
        while pause:
            yield pause
            pause = timeout.next_look()
        if os.pread(outcome, len(LONG), 0) != LONG:
            return
