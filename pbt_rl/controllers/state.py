"""Saves and restores the state of controllers, rules and the population: one pair of functions for all of them.

A part (a controller, a rule, a member) is a dataclass. Its *settings* are the fields that `__init__` takes; its *state*
is the fields with `init=False`, and those that are marked. A field that holds another such dataclass, or a tuple of
them (a rule of a controller, the rules of a pipeline, the members of a population), is saved with it and restored in
place. Settings are not saved: a state is restored into an object that was built with the same options, or with others
that leave its parts the same.

    @dataclass
    class Synchronous:
        period_frames: int                                # a setting
        frames: int = field(default=0, metadata=STATE)    # state, though `__init__` takes it
        population: Population = field(metadata=SHARED)   # another owner saves it
        _held: int = field(default=0, init=False)         # state
        _cache: Any = field(default=None, init=False, metadata=TRANSIENT)    # can be computed again: neither

A part may have a method `restored()`: it is called when the part and those inside it were restored, and raises
ValueError if what it holds now does not fit.

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
"""Metadata of a field that is not saved, because it can be computed again. It has a default, which restoring sets."""
STATE: Mapping[str, Any] = {"state": True}
"""Metadata of a field that `__init__` takes and that is state."""
ADDED: Mapping[str, Any] = {"state": True, "added": True}
"""Metadata of a state field that runs saved by earlier versions lack: it keeps its default in them."""
SHARED: Mapping[str, Any] = {"shared": True}
"""Metadata of a field that holds what another owner saves: neither saved nor restored."""


def save_state(part: object) -> dict[str, Any]:
    """Return the state of a part, and of the parts inside it, as JSON types.

    Raises TypeError for an object that may have state but is no dataclass.
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
    """Continue exactly from where `save_state` was called.

    A part without state, such as a rule that notes nothing, may have been one of another class: nothing is lost.
    where: name of the part, for messages. Raises ValueError if the state does not fit; the part may have been changed
    in parts by then.
    """
    name, where = type(part).__name__, where or type(part).__name__
    _check(isinstance(state, Mapping) and isinstance(state.get("class"), str), where, state, "a state")
    if state["class"] != name:
        if _is_empty(state):
            return
        raise ValueError(
            f"{where}: the state of {state['class']} does not fit {name}, to which it means nothing: "
            f"use the options of the run that saved it, or start a new run"
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
            raise ValueError(f"{where}: {len(state)} were saved, and here are {len(value)}")
        for i, (inner, saved) in enumerate(zip(value, state, strict=True)):
            restore_state(inner, saved, f"{where}.{i}")
    else:
        kind: Any = type(part)
        made = decoded(_hints(kind)[f.name], state, where)
        setattr(part, f.name, deque(made, value.maxlen) if isinstance(value, deque) else made)


def _saved_fields(part: Any) -> Iterator[tuple[Field[Any], Any]]:
    """Yield the fields that are state or hold parts, and their values."""
    if is_dataclass(part):
        for f in fields(part):
            if {"transient", "shared"} & f.metadata.keys():  # it may not be known yet
                continue
            value = getattr(part, f.name)
            if not f.init or "state" in f.metadata or _is_part(f, value) or _are_parts(f, value):
                yield f, value
    elif getattr(part, "__dict__", None):
        raise TypeError(
            f"the state of {type(part).__name__} cannot be saved: make it a dataclass, "
            "with `init=False` on the fields that are its state"
        )


def _is_part(f: Field[Any], value: Any) -> bool:
    """Whether the value is saved and restored in place: a rule or its like, not a value that can be made again."""
    if isinstance(value, type):
        return False
    kind: Any = type(value)
    if is_dataclass(value):
        return f.init or not kind.__dataclass_params__.frozen
    return f.init and not callable(value) and bool(getattr(value, "__dict__", None))


def _are_parts(f: Field[Any], value: object) -> bool:
    return isinstance(value, tuple) and bool(value) and all(_is_part(f, v) for v in value)


def _is_empty(state: Any) -> bool:
    """Whether a saved state holds nothing but the names of classes."""
    if isinstance(state, Mapping):
        return isinstance(state.get("class"), str) and all(
            _is_empty(v) for k, v in state.items() if k != "class"
        )
    return isinstance(state, list) and bool(state) and all(map(_is_empty, state))


# -- values -------------------------------------------------------------------------------------------------


def encoded(value: Any) -> Any:
    """Return a value as JSON types. A dictionary whose keys are no strings becomes a list of pairs."""
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
    assert getattr(value, "ndim", None) == 0, f"{value!r} has no form in JSON"
    return encoded(value.item())  # a number of numpy


def decoded(hint: Any, saved: Any, where: str) -> Any:
    """Inverse of `encoded`, for a value of type `hint`. where: its name. Raises ValueError for anything else."""
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
    _check(isinstance(saved, Mapping) and saved.keys() == hints.keys(), where, saved, f"one {kind.__name__}")
    values = {name: decoded(hints[name], v, f"{where}.{name}") for name, v in saved.items()}
    try:
        return kind(**values)
    except (TypeError, ValueError, AssertionError) as error:
        raise ValueError(f"{where}: the saved state is no {kind.__name__}: {error}") from error


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
    except Exception as error:  # whatever the type of a user's own rule raises
        raise ValueError(f"{where}: {_short(saved)} was saved, which does not fit: {error}") from error


def _generator(saved: Any, where: str) -> Random:
    version, numbers, gauss = decoded(tuple[int, tuple[int, ...], float | None], saved, where)
    generator = Random()  # its seed is replaced at once
    try:
        generator.setstate((version, numbers, gauss))
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{where}: the saved state is none of a generator: {error}") from error
    return generator


@cache
def _hints(kind: Any) -> dict[str, Any]:
    """Types of the fields of a dataclass."""
    hints = get_type_hints(kind)
    return {f.name: hints[f.name] for f in fields(kind)}


def _check(fits: bool, where: str, saved: Any, wanted: str) -> None:
    if not fits:
        raise ValueError(f"{where}: {_short(saved)} was saved where {wanted} belongs")


def _short(saved: Any) -> str:
    text = repr(saved)
    return text if len(text) <= 40 else f"{text[:40]}..."
