"""The first use of an environment's code: in a copy of this process, which it may end.

`sys.exit`, `os._exit`, an abort or a crash in C would else end the command without a word. A copy (fork) takes
milliseconds, and knows what this process knows: its modules, its path, environments that it has registered.

    this process -- keeper -- copy -- what the environment starts, however it detaches

The keeper (`pbt_rl.processes.keeper`) is a copy as well, in which no code of others runs. It ends all that the copy has
started when the copy ends, or when this process says so or dies.
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
from .values import briefly

T = TypeVar("T")
OURS = f"{Path(__file__).parent.parent}/"
"""Folder of the code that is not an environment's own."""


def environment_traceback(error: BaseException) -> str:
    """Return the traceback of an error and of its causes, each from the first frame that is not ours.

    An error of an environment of ours has no such frame, and is shown whole; that of a file that is no Python names it.
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
    "(Values of the reward shaping are floats, also where the default is a whole number, because PBT multiplies them: "
    "write int(...) where one is needed.)"
)
_NO_INTEGER = re.compile(
    r"'float' object cannot be interpreted as an integer|non-int of type 'float'|got float|indices must be integers"
)


def environment_output(text: str) -> str:
    """Return what a process printed before it ended, without our frames and their callers' in a crash's stack.

    text: with the stack that `faulthandler` adds, newest frame first.
    """
    kept, below_us = [], False
    for line in text.splitlines():
        below_us = line.startswith(f'  File "{OURS}') or (below_us and line.startswith("  File "))
        if not below_us and not line.startswith("Extension modules: "):
            kept.append(line)
    return "\n".join(kept).strip()


TAIL_BYTES = 16_000
LONG = b"long"
"""What a copy writes instead of an outcome before it makes a simulator: see `LONG_SECONDS`."""
SHOWN_CHARACTERS = 4000


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
        self._known = self._key(name, keywords), self(name, keywords)
        return self._known[1]

    def __call__(self, name: str, keywords: Mapping[str, Any]) -> EnvSpec:
        """Describe an environment: make one, read its spaces and close it. Raises EnvSetupError."""
        known, self._known = self._known, None
        if known is not None and known[0] == self._key(name, keywords):
            return known[1]
        limit = time_limits.PROBE_SECONDS + time_limits.GRACE_SECONDS
        return tried(self._prefix + name, lambda: self._probe(name, keywords), limit)

    def _key(self, name: str, keywords: Mapping[str, Any]) -> str:
        """Include where a name is looked up: the same one may mean another environment elsewhere."""
        return repr((name, sorted(keywords.items()), os.getcwd(), sys.path))  # noqa: PTH109 - as the import does


# -- in the keeper ------------------------------------------------------------------------------------------


def _keep(parent: int, line: int, run: Callable[[], object], *, captured: bool) -> NoReturn:
    """Make the copy, leave nothing of it when it or the parent ends, and end as it has ended.

    line: descriptor of a socket to the parent, which gets the end of what the copy has printed.
    """
    try:
        os.setsid()  # Ctrl-C is for the parent
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


# -- in the copy --------------------------------------------------------------------------------------------


def _run(env_id: str, function: Callable[[], object], when: str, outcome: int) -> None:
    """Call the function, and write its `_outcome` as a pickle."""
    faulthandler.enable(2)  # a crash shows where
    if "torch" in sys.modules:  # it must not use the threads that the copy lacks
        torch: Any = sys.modules["torch"]
        torch.set_num_threads(1)
    time_limits.told_of_long.append(lambda: os.pwrite(outcome, LONG, 0))
    os.pwrite(outcome, pickle.dumps(_outcome(env_id, function, when)), 0)
    sys.stdout.flush()
    sys.stderr.flush()


def _outcome(env_id: str, function: Callable[[], object], when: str) -> tuple[object, str, bool]:
    """Return (what the function returns, the error if it raises, whether that was to end the process)."""
    try:
        return function(), "", False
    except EnvSetupError as error:
        return None, str(error), False
    except BaseException as error:  # noqa: BLE001 - whatever it raises is shown
        exits, kind = isinstance(error, SystemExit), type(error).__name__
        folders = Path(traceback.extract_tb(error.__traceback__)[-1].filename).parts[-3:-1]
        if kind == "NotImplementedError" and folders == ("gymnasium", "spaces"):
            named = f" ({briefly(str(error))})" if str(error) else ""
            text = (
                f"{env_id} cannot be made: one of its wrappers flattens a space that Gymnasium cannot flatten{named}: "
                "leave FlattenObservation out, for texts, choices and parts of a Dict or Tuple are read as they are"
            )
            return None, text, False
        did = "called sys.exit" if exits else f"raised {kind}"
        return None, f"{env_id} cannot be used: it {did} {when}.\n{environment_traceback(error)}", exits


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


def _wait(pid: int, line: socket.socket, limit_seconds: float | None, outcome: int) -> tuple[bool, int, str]:
    """Wait for the keeper. Return (whether the limit was kept, the copy's status, the end of the output)."""
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
    """Yield seconds to wait (None: for ever) until the limit is reached, or the longer one that the copy asked for."""
    if limit_seconds is None:
        yield None
        return
    for seconds in (limit_seconds, time_limits.LONG_SECONDS + time_limits.GRACE_SECONDS):
        patience = time_limits.Patience(seconds, pid)
        pause = patience.pause
        while pause:
            yield pause
            pause = patience.next_look()
        if os.pread(outcome, len(LONG), 0) != LONG:
            return
