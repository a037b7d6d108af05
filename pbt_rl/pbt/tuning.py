"""Values that the user chooses to tune, and their bounds: `--pbt.tune NAME` or `--pbt.tune NAME=LOW:HIGH`."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pbt_rl.errors import ConfigError
from pbt_rl.pbt.hypers import HyperSpec


def chosen(table: Mapping[str, HyperSpec], tune: Sequence[str]) -> dict[str, HyperSpec]:
    """Return the whole table with the named values, and only those, tuned; unchanged if none is named.

    Bounds that are given with a name replace those of the table: no mutation leaves them, and a search draws from
    them. Raises ConfigError for a name that is not in the table (the message holds close matches and all names),
    for bounds that are none, and for a default outside of them.
    """
    named = dict(_named(table, entry) for entry in tune)
    if not named:
        return dict(table)
    return {name: named.get(name, replace(spec, tuned=False)) for name, spec in table.items()}


def _named(table: Mapping[str, HyperSpec], entry: str) -> tuple[str, HyperSpec]:
    name, bounded, bounds = entry.partition("=")
    if name not in table:
        close = difflib.get_close_matches(name, table, n=3)
        hint = f"did you mean {' or '.join(close)}? " if close else ""
        raise ConfigError(
            f"--pbt.tune {entry} cannot be used: {hint}known names are {', '.join(sorted(table))}"
        )
    spec = replace(table[name], tuned=True)
    if not bounded:
        return name, spec
    low, high = _numbers(entry, bounds)
    problem = _problem(spec, low, high)
    if problem:
        raise ConfigError(f"--pbt.tune {entry} cannot be used: {problem}")
    return name, replace(spec, low=low, high=high)


def _numbers(entry: str, bounds: str) -> tuple[float, float]:
    try:
        low, high = map(float, bounds.split(":"))
    except ValueError:
        low = high = math.nan
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ConfigError(
            f"--pbt.tune {entry} cannot be used: give bounds as LOW:HIGH, for example learning_rate=1e-5:1e-2"
        )
    return low, high


def _problem(spec: HyperSpec, low: float, high: float) -> str:
    """Return what is wrong with new bounds; empty if nothing is."""
    table = f"it must stay within {spec.low:g}..{spec.high:g}"
    # Shaping may go anywhere that its scale allows; a hyper's bounds are what the learner can bear.
    if not spec.name.startswith("shaping.") and (low < spec.low or high > spec.high):
        return table
    if spec.scale == "log" and low <= 0 <= high:
        return "it is changed by factors, so both bounds must be on one side of 0"
    if not low <= spec.default <= high:
        where = "the environment" if spec.name.startswith("shaping.") else _option(spec.name)
        return f"its first value, {spec.default:g} ({where}), is outside"
    return ""


def _option(name: str) -> str:
    return f"--hypers.{name.replace('_', '-')}"
