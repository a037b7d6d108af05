"""Settings of rules that have no option of their own: `--pbt.exploit-option NAME=VALUE` sets a field of the rule.

A setting of a rule inside a rule is written with dots: `gap.relative=0.2`, or `rules.0.quantile=0.8` for the first
rule of a pipeline. What a user wrote is loaded here, and named in whatever goes wrong with it.
"""

from __future__ import annotations

import inspect
import json
import traceback
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, Field, fields, is_dataclass, replace
from pathlib import PurePath
from typing import Any, Literal, TypeVar, get_origin, get_type_hints

from pbt_rl.controllers.decisions import StateKey
from pbt_rl.errors import ConfigError
from pbt_rl.options import allowed, allows, as_type
from pbt_rl.registry import load_object

Rule = TypeVar("Rule")


def with_settings(rule: Rule, entries: Sequence[str], option: str) -> Rule:
    """Return the rule with some settings replaced.

    entries: NAME=VALUE each. Values are JSON if they can be, else strings. option: their origin, for messages.
    Raises ConfigError for a name that is no setting, and for a value of another type or out of bounds.
    """
    for entry in entries:
        known = _settings(rule)
        name, value = _parsed(entry, known, option)
        rule = _replaced(rule, name.split("."), value)
    return rule


def load_rule(
    path: str,
    arguments: Sequence[object],
    methods: Sequence[str],
    entries: Sequence[str],
    options: tuple[str, str],
) -> Any:
    """Return a rule of the user's own class, `module:Class`.

    arguments: its positional arguments. methods: of a rule of its kind. options: the names of the options that
    gave the path and the entries. Raises ConfigError if the class is no dataclass or does not take these arguments.
    """
    made = load(path, options[0])
    usable = isinstance(made, type) and is_dataclass(made)
    if not usable or not all(callable(getattr(made, method, None)) for method in methods):
        remedy = f"give a dataclass that has the method{'s' * (len(methods) > 1)} {' and '.join(methods)}"
        raise ConfigError(f"--{options[0]} {path} cannot be used: {remedy}")
    taken = [f for f in fields(made) if f.init]
    if len(taken) < len(arguments):
        raise ConfigError(
            f"--{options[0]} {path} cannot be used: its first field takes the specs of the tuned values"
        )
    own = taken[len(arguments) :]
    try:
        hints = get_type_hints(made)
    except NameError as error:
        raise ConfigError(
            f"--{options[0]} {path} cannot be used: {error}; import the types of its fields at run time"
        ) from error
    known = {f.name: (hints[f.name], f) for f in own if _can_be_set(hints[f.name])}
    direct = [entry for entry in entries if "." not in entry.partition("=")[0]]
    given = dict(_parsed(entry, known, options[1]) for entry in direct)
    missing = [
        f.name for f in own if f.default is MISSING and f.default_factory is MISSING and f.name not in given
    ]
    if missing:
        raise ConfigError(
            f"--{options[0]} {path} cannot be used: set {', '.join(missing)} with --{options[1]} {missing[0]}=VALUE"
        )
    return with_settings(
        made(*arguments, **given), [entry for entry in entries if entry not in direct], options[1]
    )


def _settings(rule: object, prefix: str = "") -> dict[str, tuple[Any, Field[Any]]]:
    """Dotted name -> type and field, of all settings of a rule and of the rules inside it."""
    found: dict[str, tuple[Any, Field[Any]]] = {}
    if isinstance(rule, tuple):
        for i, inner in enumerate(rule):
            found |= _settings(inner, f"{prefix}{i}.")
    elif is_dataclass(rule):
        hints = get_type_hints(type(rule))
        for f in fields(rule):
            name = prefix + f.name
            if f.init and _can_be_set(hints[f.name]):
                found[name] = hints[f.name], f
            elif f.init:
                found |= _settings(getattr(rule, f.name), f"{name}.")
    return found


def _can_be_set(hint: Any) -> bool:
    return hint in (int, float, bool, str, tuple[float, ...]) or get_origin(hint) is Literal


def _replaced(rule: Any, path: Sequence[str], value: Any) -> Any:
    name, *rest = path
    if isinstance(rule, tuple):
        i = int(name)
        return (*rule[:i], _replaced(rule[i], rest, value), *rule[i + 1 :])
    inner = _replaced(getattr(rule, name), rest, value) if rest else value
    return replace(rule, **{name: inner})


def _parsed(entry: str, known: dict[str, tuple[Any, Field[Any]]], option: str) -> tuple[str, Any]:
    name, given, text = entry.partition("=")
    if not given or name not in known:
        names = ", ".join(known) or "none"
        raise ConfigError(
            f"--{option} {entry:.200} cannot be used: write NAME=VALUE; the rule's settings are {names}"
        )
    hint, f = known[name]
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text
    try:
        value = as_type(hint, value)
    except ValueError as kind:
        raise ConfigError(f"--{option} {entry:.200} cannot be used: give {kind}") from None
    if not allows(f.metadata, value):
        raise ConfigError(f"--{option} {entry:.200} cannot be used: give {allowed(f.metadata, value)}")
    return name, value


# -- loading and naming what a user wrote -------------------------------------------------------------------


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
