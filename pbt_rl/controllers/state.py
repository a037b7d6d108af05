"""Saving and restoring of state: one pair of functions for controllers, rules and the population.

A part (a controller, a rule, a member) is a dataclass. The *state* of a part consists of the fields with `init=False`
(except transient and shared fields), and of fields that are marked as state. The *settings* of a part are the other
fields that `__init__` takes. Nested parts, and tuples of nested parts, are saved with the outer part and restored in
place. Examples: the rules of a pipeline, the members of a population.

Settings are not saved. The state is restored into an object that was built with equal options, or with options that
build equal parts.

    @dataclass
    class Synchronous:
        period_frames: int                                # a setting
        frames: int = field(default=0, metadata=STATE)    # state, although `__init__` takes it
        population: Population = field(metadata=SHARED)   # saved by another part
        _held: int = field(default=0, init=False)         # state
        _cache: Any = field(default=None, init=False, metadata=TRANSIENT)    # neither, because it is recomputed

A part may have a method `restored()`, which is called after the part and its nested parts were restored. It may
raise ValueError for an invalid state.

NaN and infinities are saved as the strings "nan", "inf" and "-inf".
"""

from __future__ import annotations

import math
import types
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from random import Random
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec

TRANSIENT: Mapping[str, Any] = {"transient": True}
"""Metadata of a field that is not saved, because it is recomputed. Restoring resets the field to its default."""
STATE: Mapping[str, Any] = {"state": True}
"""Metadata of a state field that `__init__` takes."""
ADDED: Mapping[str, Any] = {"state": True, "added": True}
"""Metadata of a state field that earlier versions did not save. If a saved state lacks the field, restoring keeps the
field's value."""
SHARED: Mapping[str, Any] = {"shared": True}
"""Metadata of a field whose value another part saves and restores."""


def save_state(part: object) -> dict[str, Any]:
    """Return the state of a part and of its nested parts as JSON types.

    Raises TypeError for a part that has attributes but is not a dataclass, and for a value that cannot be converted to
    JSON types.
    """
    saved: dict[str, Any] = {"class": type(part).__name__}
    for f, value in _saved_fields(part):
        if _is_part(f, value):
            saved[f.name] = save_state(value)
        elif _are_parts(f, value):
            saved[f.name] = [save_state(inner) for inner in value]
        else:
            saved[f.name] = encoded(value)
    return saved


def restore_state(part: Any, state: Any, where: str = "") -> None:
    """Restore the exact state that `save_state` returned. where: name of the part, for messages.

    The class of the part must be the saved class, with two exceptions. A saved state of another class is ignored if it
    contains only class names. If the part wraps user code (`own._Own`), the saved class may be the wrapped class.
    Raises ValueError if the state does not fit the part. The part may be partly restored after an error.
    """
    name, where = type(part).__name__, where or type(part).__name__
    _check(isinstance(state, Mapping) and isinstance(state.get("class"), str), where, state, "a state")
    if state["class"] != name:
        if _is_empty(state):
            return
        made = getattr(part, "made", None)
        if made is not None and state["class"] == type(made).__name__:  # saved without the wrapper `_Own`
            restore_state(made, state, where)
            return
        raise ValueError(
            f"{where}: the saved state is of {state['class']}, but this run uses {name}: "
            f"use the options of the saved run, or start a new run"
        )
    saved = {f.name: (f, value) for f, value in _saved_fields(part)}
    saved = {n: kept for n, kept in saved.items() if n in state or "added" not in kept[0].metadata}
    strange = sorted(saved.keys() ^ state.keys() - {"class"})
    if strange:
        problem = "lacks" if strange[0] in saved else "has an unknown"
        raise ValueError(f"{where}: the saved state {problem} {strange[0]!r}")
    for f, value in saved.values():
        _restore_field(part, f, value, state[f.name], f"{where}.{f.name}")
    for f in fields(part) if is_dataclass(part) else ():
        if "transient" in f.metadata:
            setattr(part, f.name, f.default if f.default_factory is MISSING else f.default_factory())
    if hasattr(part, "restored"):
        part.restored()


def _restore_field(part: Any, f: Field[Any], value: Any, state: Any, where: str) -> None:
    if _is_part(f, value):
        restore_state(value, state, where)
    elif _are_parts(f, value):
        _check(isinstance(state, list), where, state, "a list")
        if len(state) != len(value):
            raise ValueError(f"{where}: {len(state)} entries were saved, but this run has {len(value)}")
        for i, (inner, saved) in enumerate(zip(value, state, strict=True)):
            restore_state(inner, saved, f"{where}.{i}")
    else:
        kind: Any = type(part)
        made = decoded(_hints(kind)[f.name], state, where)
        setattr(part, f.name, deque(made, value.maxlen) if isinstance(value, deque) else made)


def _saved_fields(part: Any) -> Iterator[tuple[Field[Any], Any]]:
    """Yield (field, value) of the fields that are state or contain parts.

    Raises TypeError for a part that has attributes but is not a dataclass.
    """
    if is_dataclass(part):
        for f in fields(part):
            if {"transient", "shared"} & f.metadata.keys():  # the field may not be set yet
                continue
            value = getattr(part, f.name)
            if not f.init or "state" in f.metadata or _is_part(f, value) or _are_parts(f, value):
                yield f, value
    elif getattr(part, "__dict__", None):
        raise TypeError(
            f"the state of {type(part).__name__} cannot be saved: make it a dataclass, "
            "with `init=False` on the fields of its state"
        )


def _is_part(f: Field[Any], value: Any) -> bool:
    """Check whether a value, such as a rule, is restored in place. Other values, such as numbers, are replaced."""
    if isinstance(value, type):
        return False
    kind: Any = type(value)
    if is_dataclass(value):
        return f.init or not kind.__dataclass_params__.frozen
    return f.init and not callable(value) and bool(getattr(value, "__dict__", None))


def _are_parts(f: Field[Any], value: object) -> bool:
    return isinstance(value, tuple) and bool(value) and all(_is_part(f, v) for v in value)


def _is_empty(state: Any) -> bool:
    """Check whether a saved state contains only names of classes."""
    if isinstance(state, Mapping):
        return isinstance(state.get("class"), str) and all(
            _is_empty(v) for k, v in state.items() if k != "class"
        )
    return isinstance(state, list) and bool(state) and all(map(_is_empty, state))


# -- values -------------------------------------------------------------------------------------------------


def encoded(value: Any) -> Any:
    """Convert a value to JSON types. A dictionary becomes a list of pairs if a key is not a string.

    Raises TypeError for a value that cannot be converted.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, Random):
        version, numbers, gauss = value.getstate()
        return [version, list(numbers), gauss]
    if is_dataclass(value):
        return {f.name: encoded(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return {key: encoded(v) for key, v in value.items()}
        return [[encoded(key), encoded(v)] for key, v in value.items()]
    if isinstance(value, set | frozenset):
        return [encoded(v) for v in sorted(value)]
    if isinstance(value, list | tuple | deque):
        return [encoded(v) for v in value]
    if getattr(value, "ndim", None) != 0:
        raise TypeError(f"{value!r:.100} cannot be converted to JSON")
    return encoded(value.item())  # a numpy scalar


def decoded(hint: Any, saved: Any, where: str) -> Any:
    """Convert the result of `encoded` back to the type `hint`. Raises ValueError if it does not fit this type.

    where: name of the value, for the error.
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        kinds = [a for a in arguments if a is not type(None)]
        if saved is None and len(kinds) < len(arguments):
            return None
        for kind in kinds[:-1]:
            with suppress(ValueError):
                return decoded(kind, saved, where)
        return decoded(kinds[-1], saved, where)
    if hint is Random:
        return _generator(saved, where)
    if is_dataclass(hint):
        return _decoded_dataclass(hint, saved, where)
    if origin in (dict, Mapping):
        return _decoded_dictionary(arguments, saved, where)
    if origin in _SEQUENCES:
        _check(isinstance(saved, list), where, saved, "a list")
        if origin is tuple and arguments[-1] is not Ellipsis:
            _check(len(saved) == len(arguments), where, saved, f"a list of {len(arguments)}")
            return tuple(decoded(a, v, where) for a, v in zip(arguments, saved, strict=True))
        return _SEQUENCES[origin](decoded(arguments[0], v, where) for v in saved)
    return _decoded_scalar(hint, saved, where)


_SEQUENCES: Mapping[Any, Any] = {kind: kind for kind in (list, tuple, set, frozenset, deque)}


def _decoded_dataclass(kind: Any, saved: Any, where: str) -> Any:
    hints = _hints(kind)
    _check(
        isinstance(saved, Mapping) and saved.keys() == hints.keys(), where, saved, f"a valid {kind.__name__}"
    )
    values = {name: decoded(hints[name], v, f"{where}.{name}") for name, v in saved.items()}
    try:
        return kind(**values)
    except (TypeError, ValueError, AssertionError) as error:
        raise ValueError(f"{where}: the saved state is not a valid {kind.__name__}: {error}") from error


def _decoded_dictionary(arguments: tuple[Any, ...], saved: Any, where: str) -> Any:
    if isinstance(saved, Mapping) and (arguments[0] is str or not saved):
        return {key: decoded(arguments[1], v, f"{where}.{key}") for key, v in saved.items()}
    pairs = isinstance(saved, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in saved)
    _check(pairs and arguments[0] is not str, where, saved, "a dictionary")
    return {decoded(arguments[0], key, where): decoded(arguments[1], v, f"{where}.{key}") for key, v in saved}


def _decoded_scalar(hint: Any, saved: Any, where: str) -> Any:
    if hint is float and saved in ("nan", "inf", "-inf"):
        return float(saved)
    try:
        return msgspec.convert(saved, hint, dec_hook=lambda own, value: own(value))
    except Exception as error:  # a type of a user-defined rule may raise anything
        raise ValueError(f"{where}: the saved value {_short(saved)} is invalid: {error}") from error


def _generator(saved: Any, where: str) -> Random:
    version, numbers, gauss = decoded(tuple[int, tuple[int, ...], float | None], saved, where)
    generator = Random()
    try:
        generator.setstate((version, numbers, gauss))
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{where}: the saved state is not a state of a random generator: {error}") from error
    return generator


@cache
def _hints(kind: Any) -> dict[str, Any]:
    """Return field name -> type of a dataclass."""
    hints = get_type_hints(kind)
    return {f.name: hints[f.name] for f in fields(kind)}


def _check(fits: bool, where: str, saved: Any, wanted: str) -> None:
    if not fits:
        raise ValueError(f"{where}: the saved value {_short(saved)} is not {wanted}")


def _short(saved: Any) -> str:
    text = repr(saved)
    return text if len(text) <= 40 else f"{text[:40]}..."
