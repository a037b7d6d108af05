"""Parse a command's arguments into its dataclass with tyro."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from functools import reduce
from typing import Any, TypeVar

import tyro

from pbt_rl.cli.words import understood, words
from pbt_rl.envs.base import EnvSetupError
from pbt_rl.errors import ConfigError

T = TypeVar("T")
HELP = {"-h", "--help"}


def parse(kind: type[T], prog: str, arguments: list[str], default: Any = tyro.MISSING_NONPROP) -> T:
    """Parse with tyro. Raises ConfigError, or the error that our own classes raise about a value."""
    if not HELP & set(arguments):
        arguments = understood(kind, arguments, prog)
        if default is not tyro.MISSING_NONPROP:
            default = _overtaken(kind, default, arguments)
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


def _overtaken(kind: type, default: Any, arguments: list[str]) -> Any:
    """Return the default without what typed options that may be repeated take the place of: tyro appends them."""
    left: dict[str, object] = {}
    for word in words(kind):
        typed = values_of(arguments, f"--{word.name}") if word.repeated else []
        if typed:
            name = word.name.replace("-", "_")
            left[name] = kept(word.name, reduce(getattr, name.split("."), default), typed)
    if not left:
        return default
    from pbt_rl.recipes import apply_recipe

    return apply_recipe(default, left)


def kept(name: str, entries: Sequence[str], typed: Sequence[str]) -> tuple[str, ...]:
    """Return the entries of an option that stay beside typed ones: of key=value options those with another key."""
    if not name.endswith("option"):
        return ()
    keys = {pair.partition("=")[0] for pair in typed}
    return tuple(pair for pair in entries if pair.partition("=")[0] not in keys)


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
