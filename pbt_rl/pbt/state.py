"""Saves and restores the state of controllers and rules: one pair of functions for all of them.

A controller, a search and a rule are dataclasses. Their *settings* are the fields that `__init__` takes; their *state*
is the fields with `init=False`. A field that holds another such dataclass (a rule of a controller, a rule of a
pipeline) is saved with it. Settings are not saved: a state is restored into an object that was built with the same
options.

    @dataclass
    class Synchronous:
        period_frames: int                                # a setting
        _held: int = field(default=0, init=False)         # state
        _cache: Any = field(default=None, init=False, metadata=TRANSIENT)    # can be computed again: neither
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from dataclasses import Field, fields, is_dataclass
from random import Random
from typing import Any, Union, get_args, get_origin, get_type_hints

TRANSIENT: Mapping[str, Any] = {"transient": True}
"""Metadata of a field that is not saved, because it can be computed again. It has a default, which restoring sets."""


def save_state(part: object) -> dict[str, Any]:
    """Return the state of a controller or rule, and of the rules inside it, as JSON types.

    Raises TypeError for an object that may have state but is no dataclass.
    """
    saved: dict[str, Any] = {"class": type(part).__name__}
    for f, value in _fields(part):
        if _is_part(f, value):
            saved[f.name] = save_state(value)
        elif _is_parts(f, value):
            saved[f.name] = [save_state(inner) for inner in value]
        elif not f.init:
            saved[f.name] = _encoded(value)
    return saved


def restore_state(part: object, state: Mapping[str, Any]) -> None:
    """Continue exactly from where `save_state` was called. Raises ValueError for the state of another class."""
    if state["class"] != type(part).__name__:
        raise ValueError(
            f"the state of {state['class']} does not fit {type(part).__name__}: "
            "build the controller with the options of the run that saved it"
        )
    hints = get_type_hints(type(part))
    for f, value in _fields(part):
        if _is_part(f, value):
            restore_state(value, state[f.name])
        elif _is_parts(f, value):
            for inner, saved in zip(value, state[f.name], strict=True):
                restore_state(inner, saved)
        elif not f.init:
            setattr(part, f.name, _decoded(hints[f.name], state[f.name]))
    for f in fields(part) if is_dataclass(part) else ():
        if f.metadata.get("transient"):
            setattr(part, f.name, f.default)


def _fields(part: object) -> Iterator[tuple[Field[Any], Any]]:
    """Fields that are not transient, and their values."""
    if is_dataclass(part):
        yield from ((f, getattr(part, f.name)) for f in fields(part) if not f.metadata.get("transient"))
    elif getattr(part, "__dict__", None):
        raise TypeError(
            f"the state of {type(part).__name__} cannot be saved: make it a dataclass, "
            "with `init=False` on the fields that are its state"
        )


def _is_part(f: Field[Any], value: object) -> bool:
    """Whether the value is saved and restored in place: a rule or its like, not a value that can be made again."""
    if isinstance(value, type):
        return False
    if is_dataclass(value):
        return f.init or not _is_frozen(type(value))
    return f.init and not callable(value) and bool(getattr(value, "__dict__", None))


def _is_frozen(kind: Any) -> bool:
    return bool(kind.__dataclass_params__.frozen)


def _is_parts(f: Field[Any], value: object) -> bool:
    return f.init and isinstance(value, tuple) and bool(value) and all(_is_part(f, v) for v in value)


def _encoded(value: Any) -> Any:
    if isinstance(value, Random):
        version, numbers, gauss = value.getstate()
        return [version, list(numbers), gauss]
    if is_dataclass(value):
        return {f.name: _encoded(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return {key: _encoded(v) for key, v in value.items()}
        return [[_encoded(key), _encoded(v)] for key, v in value.items()]
    if isinstance(value, set | frozenset):
        return [_encoded(v) for v in sorted(value)]
    if isinstance(value, list | tuple):
        return [_encoded(v) for v in value]
    assert value is None or isinstance(value, bool | int | float | str), f"{value!r} has no form in JSON"
    return value


def _decoded(hint: Any, saved: Any) -> Any:
    """Inverse of `_encoded`, for a value of type `hint`."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        (hint,) = (a for a in arguments if a is not type(None))
        return None if saved is None else _decoded(hint, saved)
    if hint is Random:
        version, numbers, gauss = saved
        generator = Random()  # its seed is replaced at once
        generator.setstate((version, tuple(numbers), gauss))
        return generator
    if is_dataclass(hint):
        hints = get_type_hints(hint)
        kind: Any = hint
        return kind(**{name: _decoded(hints[name], v) for name, v in saved.items()})
    if origin is dict:
        pairs = saved.items() if arguments[0] is str else saved
        return {_decoded(arguments[0], key): _decoded(arguments[1], v) for key, v in pairs}
    if origin is tuple and arguments[-1] is not Ellipsis:
        return tuple(_decoded(a, v) for a, v in zip(arguments, saved, strict=True))
    if origin in (list, tuple, set, frozenset):
        return origin(_decoded(arguments[0], v) for v in saved)
    return hint(saved)
