"""Loads what a user wrote, and names it in whatever goes wrong with it."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import PurePath
from typing import Any

from pbt_rl.controllers.decisions import StateKey
from pbt_rl.errors import ConfigError
from pbt_rl.registry import load_object


def load(path: str, option: str) -> Any:
    """Return what `module:name` names. Raises ConfigError if it cannot be imported."""
    try:
        return load_object(path)
    except ValueError as error:
        raise ConfigError(f"--{option} {path} {error}") from error


def check_signature(who: str, made: object, method: str, arguments: int) -> None:
    """Raise ConfigError unless a method (or, if "", the object itself) takes so many arguments by position."""
    called: Any = getattr(made, method) if method else made
    try:
        inspect.signature(called).bind(*range(arguments))
    except TypeError as error:
        call = f"{method or 'it'} is called with {arguments} argument{'s' * (arguments != 1)}"
        raise ConfigError(f"{who} cannot be used: {call}: {error}") from None


@contextmanager
def named(who: str, method: str) -> Iterator[None]:
    """Raise ConfigError in one line, with the place, for whatever the user's code raises inside."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        text = str(error).splitlines()
        place = f"{PurePath(last.filename).name}, line {last.lineno}"
        raise ConfigError(
            f"{who} raised {type(error).__name__} ({place}){f' in {method}' if method else ''}: "
            f"{text[0] if text else 'nothing said'}"
        ) from error


def not_kept(kept: Collection[StateKey]) -> str:
    """Return which states are kept, for a message about one that is not."""
    known = ", ".join(map(str, sorted(kept))) or "none"
    return f"states that are kept (member, generation): {known}; `remembers` names present ones to keep from now on"
