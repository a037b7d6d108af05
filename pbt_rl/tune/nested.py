"""Values in the form that a user reads: numbers, choices, and dots as nesting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pbt_rl.controllers.hypers import HyperSpec


def decode(table: Mapping[str, HyperSpec], values: Mapping[str, float]) -> dict[str, Any]:
    """Return values in the form of their table: integers as int, choices as themselves, `.` as nesting.

    `name.0`, `name.1`, ... become a tuple; `shaping.NAME` becomes a dictionary under `shaping`.
    """
    tree: dict[str, Any] = {}
    for name, value in values.items():
        *path, last = name.split(".")
        branch = tree
        for key in path:
            branch = branch.setdefault(key, {})
        branch[last] = _decoded(table[name], value)
    return {name: _tuples(branch) for name, branch in tree.items()}


def _decoded(spec: HyperSpec, value: float) -> Any:
    if spec.scale == "choice":
        return spec.choices[int(spec.clamp(value))]
    return int(spec.clamp(value)) if spec.scale == "integer" else value


def _tuples(branch: Any) -> Any:
    if not isinstance(branch, dict):
        return branch
    inner = {key: _tuples(value) for key, value in branch.items()}
    if all(key.isdigit() for key in inner):
        return tuple(inner[str(i)] for i in range(len(inner)))
    return inner
