"""Parse a command's arguments into its dataclass with tyro."""

from __future__ import annotations

import contextlib
import io
from typing import Any, TypeVar

import tyro

from pbt_rl.cli.words import understood
from pbt_rl.envs.base import EnvSetupError
from pbt_rl.errors import ConfigError

T = TypeVar("T")
HELP = {"-h", "--help"}


def parse(kind: type[T], prog: str, arguments: list[str], default: Any = tyro.MISSING_NONPROP) -> T:
    """Parse with tyro. Raises ConfigError, or the error that our own classes raise about a value."""
    if not HELP & set(arguments):
        arguments = understood(kind, arguments, prog)
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            command: T = tyro.cli(kind, prog=prog, args=arguments, default=default)
            return command
    except SystemExit as end:
        cause: BaseException | None = end
        while cause is not None:
            if isinstance(cause, ConfigError | EnvSetupError):
                raise cause from None
            cause = cause.__context__
        if not end.code:
            raise
        raise ConfigError(_in_one_line(errors.getvalue())) from None


def _in_one_line(framed: str) -> str:
    """Return the words of tyro's frame."""
    lines = (line.strip("│╭╮╰╯─ ") for line in framed.splitlines())
    return " ".join(line for line in lines if line)


def value_of(arguments: list[str], name: str) -> str | None:
    """Return the last value of an option, before anything is parsed."""
    return next(reversed(values_of(arguments, name)), None)


def values_of(arguments: list[str], name: str) -> list[str]:
    """Return all values of an option that may be repeated, before anything is parsed."""
    found = []
    for i, argument in enumerate(arguments):
        if argument == name and i + 1 < len(arguments):
            found.append(arguments[i + 1])
        elif argument.startswith(f"{name}="):
            found.append(argument.partition("=")[2])
    return found
