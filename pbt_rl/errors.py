"""Exceptions of pbt_rl.

    Exception
    |-- ValueError
    |   |-- ConfigError          wrong user input
    |   |   `-- CheckpointBroken   a checkpoint file is incomplete, changed or missing
    |   `-- EnvSetupError        an environment cannot be made, or violates its interface
    `-- RunFailed                any other failure of a run

The command line prints ConfigError and EnvSetupError with exit code 2, and RunFailed with exit code 1.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class ConfigError(ValueError):
    """Error about wrong user input. The message usually contains the option, its value and the remedy."""


class CheckpointBroken(ConfigError):  # noqa: N818 - an event
    """Error about an incomplete, changed or missing checkpoint file. The message contains the path of the file."""


class EnvSetupError(ValueError):
    """Error about an environment that cannot be made or violates its interface.

    The message contains the fault, or the traceback of the environment's code.
    """


class RunFailed(Exception):  # noqa: N818 - an event
    """Failure of a run. The message contains the cause, often with the traceback of a child process."""


def require(condition: bool, option: str, value: object, remedy: str) -> None:
    """Raise ConfigError about an option's value if `condition` is False.

    option: name without the leading dashes. value: a tuple is printed as words. remedy: end of the message.
    """
    if not condition:
        typed = " ".join(map(str, value)) if isinstance(value, tuple) else value
        raise ConfigError(f"--{option} {typed} cannot be used: {remedy}")


_OURS = (f"{Path(__file__).parent}/", "<frozen ")
_LIBRARIES = tuple(f"{sysconfig.get_path(kind)}/" for kind in ("stdlib", "purelib", "platlib"))


def place_of(error: BaseException) -> str:
    """Return ` (FILE, line N)` of the innermost line of the user's code in a traceback. Without such a line: "".

    Installed packages and the standard library count as the user's code only if the traceback contains no other file of
    the user. pbt_rl and torch never count as the user's code.
    """
    torch = getattr(sys.modules.get("torch"), "__file__", None)
    not_theirs = _OURS if torch is None else (*_OURS, f"{Path(torch).parent}/")
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(not_theirs)]
    frames = [f for f in frames if not f.filename.startswith(_LIBRARIES)] or frames
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""


def end_fork(process: int, error: BaseException) -> None:
    """End this process if it is a fork of `process`. (For example, an environment may fork to start a daemon.)

    process: id of the process that called the environment's code. error: exception that has left this code. SystemExit
    determines the exit code. For other exceptions, the traceback is printed, and the exit code is 1.
    """
    if os.getpid() != process:
        if not isinstance(error, SystemExit):
            traceback.print_exc()
        code = error.code if isinstance(error, SystemExit) else 1
        os._exit(code if isinstance(code, int) else code is not None)


@contextmanager
def environment_code(env_id: str, when: str = "when it was made") -> Iterator[None]:
    """Convert exceptions of environment code in this context to EnvSetupError, with the traceback as text.

    ConfigError, EnvSetupError and KeyboardInterrupt pass unchanged. In a fork of this process, other exceptions end the
    fork.

    when: time of the exception, as text for the message.
    """
    process = os.getpid()
    try:
        yield
    except (ConfigError, EnvSetupError, KeyboardInterrupt):
        raise
    except BaseException as error:
        end_fork(process, error)
        raise EnvSetupError(
            f"{env_id} cannot be used: it raised {type(error).__name__} {when}.\n{traceback.format_exc()}"
        ) from error


@contextmanager
def algorithm_code(refusal: str, function: str) -> Iterator[None]:
    """Convert exceptions of an algorithm's function in this context to ConfigError.

    KeyboardInterrupt passes unchanged.

    refusal: start of the message. function: name of the algorithm's function.
    The message continues with the text of a ValueError, because this text is written for the user. For another
    exception, the message continues with one line: function, exception and its place in the code.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise
    except ValueError as error:
        raise ConfigError(f"{refusal}: {error}") from error
    except BaseException as error:
        text = (str(error).splitlines() or ["no message"])[0]
        raise ConfigError(
            f"{refusal}: {function} raised {type(error).__name__}{place_of(error)}: {text}"
        ) from error
