"""All errors that the project raises on purpose.

    Exception
    |-- ValueError
    |   |-- ConfigError          the user's input is wrong: what, which value, what to do instead
    |   |   `-- CheckpointBroken   a file of a checkpoint is torn, changed or missing
    |   `-- EnvSetupError        the same of an environment: it cannot be made, or breaks its contract
    `-- RunFailed                a run ended for a reason that is not the user's input; the child's traceback inside

The command line turns the first two into one line and exit code 2, the third into exit code 1.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager


class ConfigError(ValueError):
    """The user's input is wrong. The message names the option, its value and what to do instead."""


class CheckpointBroken(ConfigError):  # noqa: N818 - reads as what happened
    """A file of a checkpoint is torn, changed or missing. The message names it."""


class EnvSetupError(ValueError):
    """The user asked for an environment that cannot be made, or one that breaks its contract.

    The message holds what is wrong, which value, and what to do instead.
    """


class RunFailed(Exception):  # noqa: N818 - reads as what happened
    """A run could not go on. The message holds the cause and the traceback of the child, if there is one."""


def require(condition: bool, option: str, value: object, remedy: str) -> None:
    """Raise ConfigError about an option's value unless `condition` holds."""
    if not condition:
        typed = " ".join(map(str, value)) if isinstance(value, tuple) else value
        raise ConfigError(f"--{option} {typed} cannot be used: {remedy}")


@contextmanager
def environment_code(env_id: str) -> Iterator[None]:
    """Raise an EnvSetupError with the traceback for anything that an environment's own code raises inside."""
    try:
        yield
    except (ConfigError, EnvSetupError):
        raise
    except Exception as error:
        raise EnvSetupError(
            f"{env_id} cannot be used: it raised {type(error).__name__} when it was made.\n{traceback.format_exc()}"
        ) from error
