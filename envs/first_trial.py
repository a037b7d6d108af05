"""First use of an environment's code, in a fork of this process that it may end.

Without the fork, `sys.exit`, `os._exit`, an abort or a crash in C would end the command without a message. A fork
takes milliseconds, and shares this process's state: modules, path, registered environments.

    this process -- keeper -- fork -- processes that the environment starts, even detached ones

The keeper (`pbt_rl.processes.keeper`) is a fork as well, without any user code. It ends all processes that the fork
has started when the fork ends, or when this process dies or requests it.
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
"""Folder of this package's code, as opposed to the environment's."""


def environment_traceback(error: BaseException) -> str:
    """Return the traceback of an error and its causes, each from the first frame of user code.

    An error of a built-in environment has no such frame, and is shown in full. A syntax error names its file.
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
    """Return a process's last output; in a crash's stack, without this package's frames and their callers'.

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
"""Message of a fork before it makes a simulator, instead of an outcome: see `LONG_SECONDS`."""
SHOWN_CHARACTERS = 4000


def tried(
    env_id: str,
    function: Callable[[], T],
    limit_seconds: float | None,
    *,
    captured: bool = True,
    when: str = "when it was made",
) -> T:
    """Call a function in a fork of this process, and return its result, which must be picklable.

    captured: keep the end of the output, for the error if the fork ends, otherwise for stderr. Raises EnvSetupError
    with the function's own message if it raises one. For other exceptions the error has their traceback. It is also
    raised if the fork ends or exceeds the time limit.
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
    """Check whether this process can be forked: no other threads and no GPU.

    Libraries that have started threads would wait for them forever in the fork. torch does not if limited to one
    thread.
    """
    torch: Any = sys.modules.get("torch")
    on_gpu = torch is not None and torch.cuda.is_initialized()
    return not on_gpu and not {"jax", "tensorflow"} & sys.modules.keys()


def _copy() -> int:
    """Fork. The fork never collects this process's garbage, whose destructors may need missing threads."""
    sys.stdout.flush()
    sys.stderr.flush()
    collects = gc.isenabled()
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # on threads: see `_can_be_copied`
            pid = os.fork()
        if pid == 0:
            gc.freeze()
        return pid
    finally:
        if collects:
            gc.enable()


class FirstProbe:
    """Probes of a family's environments, each in a fork of this process.

    prefix: of their ids. One trial serves both the default options of a run, which are requested first, and its spec.
    """

    def __init__(self, prefix: str, probe: Callable[[str, Mapping[str, Any]], EnvSpec]) -> None:
        self._prefix, self._probe = prefix, probe
        self._known: tuple[str, EnvSpec] | None = None
        """Spec of the last request for default options, until it is requested itself."""

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
        """Include the lookup path in the key, because a name may mean another environment elsewhere."""
        return repr((name, sorted(keywords.items()), os.getcwd(), sys.path))  # noqa: PTH109 - as the import does


# -- in the keeper ------------------------------------------------------------------------------------------


def _keep(parent: int, line: int, run: Callable[[], object], *, captured: bool) -> NoReturn:
    """Make the fork, leave none of its processes when it or the parent ends, and exit with its status.

    line: descriptor of a socket to the parent, which receives the end of the fork's output.
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
    faulthandler.enable(2)  # a crash prints its location
    if "torch" in sys.modules:  # torch must not use threads that the fork lacks
        torch: Any = sys.modules["torch"]
        torch.set_num_threads(1)
    time_limits.told_of_long.append(lambda: os.pwrite(outcome, LONG, 0))
    os.pwrite(outcome, pickle.dumps(_outcome(env_id, function, when)), 0)
    sys.stdout.flush()
    sys.stderr.flush()


def _outcome(env_id: str, function: Callable[[], object], when: str) -> tuple[object, str, bool]:
    """Return (the function's result, the error if it raises, whether that was to end the process)."""
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
                f"{env_id} cannot be made: one of its wrappers flattens a space that Gymnasium cannot flatten{named}: "
                "leave FlattenObservation out, for texts, choices and parts of a Dict or Tuple are read as they are"
            )
            return None, text, False
        did = "called sys.exit" if exits else f"raised {kind}"
        return None, f"{env_id} cannot be used: it {did} {when}.\n{environment_traceback(error)}", exits


def _redirect(output: int) -> None:
    """Redirect all output to `output`, whatever replaces stdout here (a notebook, a test)."""
    null = os.open(os.devnull, os.O_RDONLY)
    for fd, target in ((null, 0), (output, 1), (output, 2)):
        os.dup2(fd, target)
    sys.stdout, sys.stderr = (os.fdopen(fd, "w", buffering=1, closefd=False) for fd in (1, 2))
    sys.breakpointhook = lambda *_args, **_keywords: (
        None
    )  # there is no terminal; serial mode stops there later


# -- beside it ----------------------------------------------------------------------------------------------


def _wait(pid: int, line: socket.socket, limit_seconds: float | None, outcome: int) -> tuple[bool, int, str]:
    """Wait for the keeper. Return (whether the limit was kept, the fork's status, the end of the output)."""
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
    """Yield seconds to wait (None: unlimited) until the limit, or until the longer one that the fork requested."""
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
