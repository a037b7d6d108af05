"""Settings of rules, and loading of user code. `--pbt.exploit-option NAME=VALUE` sets a field of the exploit rule.

A name with dots is a field of a nested rule: `gap.relative=0.2`, or `rules.0.quantile=0.8` for the first rule of a
pipeline.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import Field, fields, is_dataclass, replace
from typing import Any, Literal, TypeVar, get_origin, get_type_hints

from pbt_rl.errors import ConfigError, place_of, require
from pbt_rl.options.values import allowed, allows, as_type
from pbt_rl.registry import load_object

Rule = TypeVar("Rule")


def with_settings(rule: Rule, entries: Sequence[str], option: str) -> Rule:
    """Return the rule with replaced settings.

    entries: NAME=VALUE. A value that is not JSON is a string. option: name of the option with the entries, for errors.
    Raises ConfigError for an unknown name, and for a value of the wrong type or out of bounds.
    """
    for entry in entries:
        known = _settings(rule)
        name, value = _parsed(entry, known, option)
        rule = _replaced(rule, name.split("."), value)
    return rule


def load_rule(
    path: str, option: str, arguments: Sequence[object], methods: Mapping[str, int], entries: Sequence[str]
) -> Any:
    """Build an object of the user-defined dataclass `module:Class`.

    path: `module:Class`. option: name of the option with the path. arguments: values of the first fields.
    methods: required methods, name -> number of arguments. entries: NAME=VALUE, from `{option}-option`.
    Raises ConfigError if the class cannot be loaded or built, lacks a method, or does not accept an entry.
    """
    who, kind = f"--{option} {path}", load(path, option)
    require(isinstance(kind, type) and is_dataclass(kind), option, path, "give a dataclass")
    with named(who):
        hints = get_type_hints(kind)
        own = [f for f in fields(kind) if f.init][len(arguments) :]
        known = {f.name: (hints[f.name], f) for f in own if _can_be_set(hints[f.name])}
        direct = [entry for entry in entries if "." not in entry.partition("=")[0]]
        made = kind(*arguments, **dict(_parsed(entry, known, f"{option}-option") for entry in direct))
    for method, number in methods.items():
        check_signature(who, getattr(made, method, None), number, method)
    with named(who):  # `__post_init__` of a nested rule may raise
        return with_settings(made, [entry for entry in entries if entry not in direct], f"{option}-option")


def _settings(rule: object, prefix: str = "") -> dict[str, tuple[Any, Field[Any]]]:
    """Return dotted name -> (type, field) of all settings, including settings of nested rules."""
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
            f"--{option} {entry:.200} cannot be used: give NAME=VALUE; the settings of the rule are {names}"
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


# -- user code ----------------------------------------------------------------------------------------------


def load(path: str, option: str) -> Any:
    """Return the object `module:name`. Raises ConfigError if it cannot be imported.

    option: name of the option that gives the path, for the error.
    """
    try:
        return load_object(path)
    except ValueError as error:
        raise ConfigError(f"--{option} {path} {error}") from error


def check_signature(who: str, called: Any, arguments: int, name: str = "it") -> None:
    """Raise ConfigError unless the callable accepts this number of positional arguments.

    For the message: `who` is the option and its value, and `name` is the name of the callable.
    """
    try:
        inspect.signature(called).bind(*range(arguments))
    except (TypeError, ValueError) as error:
        plural = "s" * (arguments != 1)
        raise ConfigError(
            f"{who} cannot be used: {name} is called with {arguments} argument{plural}: {error}"
        ) from None


@contextmanager
def named(who: str, method: str = "") -> Iterator[None]:
    """Convert exceptions of user code in the `with` block to one-line ConfigErrors, with file and line if known.

    ConfigError and KeyboardInterrupt stay unchanged. who: option and value, for the message. method: called method, or
    "".
    """
    try:
        yield
    except (ConfigError, KeyboardInterrupt):
        raise
    except BaseException as error:
        where = f" in {method}" if method else ""
        text = (str(error).splitlines() or ["without a message"])[0]
        raise ConfigError(f"{who} raised {type(error).__name__}{place_of(error)}{where}: {text}") from error
