"""Values that the user chooses to tune, their bounds and their priors: `--pbt.tune` and `--pbt.prior`.

    --pbt.tune NAME                  tune it, within the bounds of the table
    --pbt.tune NAME=LOW:HIGH         tune it within these bounds, and draw its start from them
    --pbt.prior NAME=LOW:HIGH        draw its start from here; NAME=A,B,C: start at one of these

Both ranges take a scale of the draw, NAME=LOW:HIGH:SCALE: log, linear, one-minus or int. Without one it is the value's
own, or linear where that has no logarithm (at or across 0; for one-minus at 1).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pbt_rl.controllers.hypers import OFF, SHAPING, HyperSpec, Prior, Range, Scale, scale_within
from pbt_rl.errors import ConfigError
from pbt_rl.options.names import OTHER_NAMES, meant

SCALES: Mapping[str, Scale] = {
    "log": "log",
    "linear": "linear",
    "one-minus": "one_minus",
    "int": "integer",
}
"""As the user writes it -> as a spec has it."""


def chosen(
    table: Mapping[str, HyperSpec], tune: Sequence[str], prior: Sequence[str] = ()
) -> dict[str, HyperSpec]:
    """Return the whole table with the values that are tuned, their bounds and their priors.

    Without `tune` those of the table are tuned, but for a value that is switched off (`_off`). Bounds that the user did
    not give reach as far as the default and the prior. A value with bounds or a prior of the user's own starts
    from its prior with every rule; member 0 keeps the default if that lies within the bounds.

    Raises ConfigError for a name that is not in the table (the message holds close matches and all names), for ranges
    that are none or not legal, and for a prior that lies outside of given bounds.
    """
    bounds = dict(_entry("pbt.tune", table, entry) for entry in tune)
    priors = dict(_entry("pbt.prior", table, entry) for entry in prior)
    tuned = bounds.keys() if tune else {n for n, spec in table.items() if spec.tuned and not _off(spec)}
    for name in priors.keys() - tuned:
        raise ConfigError(f"--pbt.prior {name} cannot be used: {name} is not tuned; name it in --pbt.tune")
    return {
        name: _tuned(spec, bounds.get(name), priors.get(name))
        if name in tuned
        else replace(spec, tuned=False)
        for name, spec in table.items()
    }


def _off(spec: HyperSpec) -> bool:
    """Whether a default stands for no term or no limit, which factors do not reach: 0, 1 (of one-minus) or OFF."""
    if spec.low <= spec.default <= spec.high:
        return False
    ends = {"log": 0.0, "one_minus": 1.0}
    return spec.default == ends.get(spec.scale) or spec.default >= OFF


def _tuned(spec: HyperSpec, bounds: Prior | None, prior: Prior | None) -> HyperSpec:
    given = prior or bounds or spec.prior
    if not given and spec.default == 0 and spec.name.startswith(SHAPING) and not spec.tuned:
        raise ConfigError(
            f"--pbt.tune {spec.name} cannot be used: it begins at 0, which has no sign and no size: give it a range, "
            f"such as {spec.name}=0:1"
        )
    if bounds:
        if prior and not bounds.low <= prior.low <= prior.high <= bounds.high:
            raise ConfigError(
                f"--pbt.prior {spec.name}={prior} cannot be used: it is outside of --pbt.tune {spec.name}="
                f"{bounds.low:g}:{bounds.high:g}"
            )
        return replace(spec, tuned=True, low=bounds.low, high=bounds.high, prior=given, drawn=True)
    table = replace(spec, tuned=True)
    reached = [spec.low, spec.high, *((prior.low, prior.high) if prior else ())]
    if spec.default < OFF:
        reached.append(spec.default)
    if not prior and scale_within(spec.scale, min(reached), max(reached)) != spec.scale:
        given = table.start  # bounds that reach a default of 0 have no logarithm; the prior keeps its own
    return replace(table, low=min(reached), high=max(reached), prior=given, drawn=prior is not None)


def _entry(option: str, table: Mapping[str, HyperSpec], entry: str) -> tuple[str, Prior | None]:
    name, given, text = entry.partition("=")
    name = name if name in table else name.replace("-", "_")
    if name not in table:
        if _numbers(entry.split(":")):
            raise ConfigError(
                f"--{option} {entry} cannot be used: bounds stand behind a name, as NAME=LOW:HIGH, such as "
                f"learning_rate={_example(table['learning_rate'])}"
            )
        other = OTHER_NAMES.get(name.replace("_", "-"), "").rpartition(".")[2].replace("-", "_")
        hint = f"did you mean {other}? " if other in table else meant(option, name, table)
        raise ConfigError(
            f"--{option} {entry} cannot be used: {hint}known names are {', '.join(sorted(table))}"
        )
    if not given and option == "pbt.tune":
        return name, None
    try:
        return name, _range(table[name], text, choices=option == "pbt.prior")
    except ValueError as problem:
        raise ConfigError(f"--{option} {entry} cannot be used: {problem}") from None


def _range(spec: HyperSpec, text: str, *, choices: bool) -> Prior:
    """Read LOW:HIGH, LOW:HIGH:SCALE or A,B,C. Raises ValueError whose text is the remedy."""
    example = f"for example {spec.name}={_example(spec)}"
    if choices and ":" not in text:
        numbers = _numbers(text.split(","))
        if not numbers:
            raise ValueError(f"give LOW:HIGH, LOW:HIGH:SCALE or A,B,C, {example}")
        _check_legal(spec, (min(numbers), max(numbers)))
        return Prior(min(numbers), max(numbers), spec.scale, tuple(sorted(numbers)))
    low_high, word = text.split(":")[:2], text.split(":")[2:]
    numbers = _numbers(low_high)
    if len(numbers) == 2 and numbers[0] > numbers[1]:
        raise ValueError(f"write the lower one first: {spec.name}={numbers[1]:g}:{numbers[0]:g}")
    if len(numbers) != 2 or numbers[0] == numbers[1] or len(word) > 1:
        more = ", or choices as A,B,C" if choices else ""
        raise ValueError(f"give LOW:HIGH or LOW:HIGH:SCALE{more}, {example}")
    low, high = numbers
    _check_legal(spec, (low, high))
    if not word:
        return Prior(low, high, scale_within(spec.scale, low, high))
    if word[0] not in SCALES:
        raise ValueError(f"the scale {word[0]} is not one of {', '.join(SCALES)}")
    scale = SCALES[word[0]]
    if scale_within(scale, low, high) != scale:
        limit = "0 must be outside" if scale == "log" else "the upper end must be below 1"
        raise ValueError(f"on the scale {word[0]} {limit}; the scale linear takes any")
    if scale == "integer" and math.ceil(low) > math.floor(high):
        raise ValueError("there is no whole number in it")
    return Prior(low, high, scale)


def _numbers(texts: Sequence[str]) -> list[float]:
    """Return the numbers; empty if one is none or not finite."""
    try:
        numbers = [float(text) for text in texts]
    except ValueError:
        return []
    return numbers if all(map(math.isfinite, numbers)) else []


def _check_legal(spec: HyperSpec, ends: Range) -> None:
    low, high = spec.limits
    if ends[0] < low or ends[1] > high:
        raise ValueError(f"it must stay within {low:g}..{high:g}")
    if spec.scale == "integer" and math.ceil(ends[0]) > math.floor(ends[1]):
        raise ValueError("there is no whole number in it")


def _example(spec: HyperSpec) -> str:
    return f"{spec.low:g}:{spec.high:g}"
