"""Parse a command's arguments into its dataclass with tyro."""

from __future__ import annotations

import contextlib
import io
import sys
from typing import Any, TypeVar

import tyro

from pbt_rl.envs.base import EnvSetupError
from pbt_rl.errors import ConfigError

T = TypeVar("T")


def parse(kind: type[T], prog: str, arguments: list[str], default: Any = tyro.MISSING_NONPROP) -> T:
    """Parse with tyro. An error that our own classes raise about a value passes as it is, outside tyro's frame."""
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            command: T = tyro.cli(kind, prog=prog, args=switches(arguments), default=default)
            return command
    except SystemExit as end:
        cause: BaseException | None = end
        while cause is not None:
            if isinstance(cause, ConfigError | EnvSetupError):
                raise cause from None
            cause = cause.__context__
        print(errors.getvalue(), end="", file=sys.stderr)
        raise


def switches(arguments: list[str]) -> list[str]:
    """Accept `--pbt.enabled False` or `no` for `--pbt.no-enabled`, and `--show true` or `yes` for `--show`."""
    result: list[str] = []
    for argument in arguments:
        word = argument.lower()
        if word not in ("true", "false", "yes", "no") or not result or not result[-1].startswith("--"):
            result.append(argument)
        elif word in ("false", "no"):
            path, _, name = result[-1].removeprefix("--").rpartition(".")
            result[-1] = f"--{path}{'.' if path else ''}no-{name}"
    return result


def value_of(arguments: list[str], name: str) -> str | None:
    """Return the first value of an option, before anything is parsed."""
    return next(iter(values_of(arguments, name)), None)


def values_of(arguments: list[str], name: str) -> list[str]:
    """Return all values of an option that may be repeated, before anything is parsed."""
    found = []
    for i, argument in enumerate(arguments):
        if argument == name and i + 1 < len(arguments):
            found.append(arguments[i + 1])
        elif argument.startswith(f"{name}="):
            found.append(argument.partition("=")[2])
    return found
