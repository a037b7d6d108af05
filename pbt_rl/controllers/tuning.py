"""User-defined choice of tuned values, bounds and priors: `--pbt.tune` and `--pbt.prior`.

    --pbt.tune NAME                  tune the value within the default bounds
    --pbt.tune NAME=LOW:HIGH         tune the value within these bounds, and draw the start value from this range
    --pbt.prior NAME=LOW:HIGH        draw the start value from this range
    --pbt.prior NAME=A,B,C           draw the start value from these choices

NAME=LOW:HIGH:SCALE also sets the scale of this draw: log, linear, one-minus or int. The default is the scale of the
value. If the logarithm is undefined within the range (log: 0; one-minus: 1), the default is linear. The scale of
mutations does not change, except that int keeps the value whole.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pbt_rl.controllers.hypers import OFF, SHAPING, HyperSpec, Prior, Range, Scale, scale_within
from pbt_rl.controllers.records import LARGEST_VALUE
from pbt_rl.errors import ConfigError
from pbt_rl.options.names import OTHER_NAMES, meant

SCALES: Mapping[str, Scale] = {
    "log": "log",
    "linear": "linear",
    "one-minus": "one_minus",
    "int": "integer",
}
"""Name of a scale in an option -> name of the scale in a `HyperSpec`."""


def chosen(
    table: Mapping[str, HyperSpec], tune: Sequence[str], prior: Sequence[str] = ()
) -> dict[str, HyperSpec]:
    """Return the table with the user's choice of tuned values, bounds and priors.

    tune, prior: entries of --pbt.tune and --pbt.prior.
    Without `tune`, the values that the table marks as tuned are tuned, unless their default disables a term (`_off`).
    Default bounds are widened to include the default value (unless it is OFF) and a user-defined prior. If the user
    gives bounds or a prior for a value, every built-in explore rule draws the start value from the prior. With PBT,
    member 0 starts with the default value if the default is within the bounds.

    Raises ConfigError for an unknown name, an invalid range, a prior outside user-defined bounds, and a prior of a
    value that is not tuned. Also raises ConfigError if `tune` lists a reward weight without a range, although its
    default is 0 and it is not tuned by default.
    """
    bounds = dict(_entry("pbt.tune", table, entry) for entry in tune)
    priors = dict(_entry("pbt.prior", table, entry) for entry in prior)
    tuned = bounds.keys() if tune else {n for n, spec in table.items() if spec.tuned and not _off(spec)}
    for name in priors.keys() - tuned:
        raise ConfigError(f"--pbt.prior {name} cannot be used: {name} is not tuned: add {name} to --pbt.tune")
    return {
        name: _tuned(spec, bounds.get(name), priors.get(name))
        if name in tuned
        else replace(spec, tuned=False)
        for name, spec in table.items()
    }


def _off(spec: HyperSpec) -> bool:
    """Check whether the default is out of bounds and disables a term.

    These defaults disable a term: 0 on the scale `log`, 1 on the scale `one_minus`, and OFF on any scale.

    Multiplication has no useful effect on these defaults.
    """
    if spec.low <= spec.default <= spec.high:
        return False
    ends = {"log": 0.0, "one_minus": 1.0}
    return spec.default == ends.get(spec.scale) or spec.default >= OFF


def _tuned(spec: HyperSpec, bounds: Prior | None, prior: Prior | None) -> HyperSpec:
    given = prior or bounds or spec.prior
    if given and given.scale == "integer" and not spec.choices:
        spec = replace(spec, scale="integer")
    if not given and spec.default == 0 and spec.name.startswith(SHAPING) and not spec.tuned:
        raise ConfigError(
            f"--pbt.tune {spec.name} cannot be used: its default 0 has no sign and no magnitude: give a range, "
            f"such as {spec.name}=0:1"
        )
    if bounds:
        if prior and not bounds.low <= prior.low <= prior.high <= bounds.high:
            raise ConfigError(
                f"--pbt.prior {spec.name}={prior} cannot be used: give a range within --pbt.tune {spec.name}="
                f"{bounds.low:g}:{bounds.high:g}"
            )
        return replace(spec, tuned=True, low=bounds.low, high=bounds.high, prior=given, drawn=True)
    table = replace(spec, tuned=True)
    reached = [spec.low, spec.high, *((prior.low, prior.high) if prior else ())]
    if spec.default < OFF:
        reached.append(spec.default)
    if not prior and scale_within(spec.scale, min(reached), max(reached)) != spec.scale:
        given = table.start  # the prior keeps the former bounds and scale
    return replace(table, low=min(reached), high=max(reached), prior=given, drawn=prior is not None)


def _entry(option: str, table: Mapping[str, HyperSpec], entry: str) -> tuple[str, Prior | None]:
    name, given, text = entry.partition("=")
    name = name if name in table else name.replace("-", "_")
    if name not in table:
        if _numbers(entry.split(":")):
            spec = next(iter(table.values()))
            raise ConfigError(
                f"--{option} {entry} cannot be used: give the name of the value, as NAME=LOW:HIGH, such as "
                f"{spec.name}={_example(spec)}"
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
    """Parse LOW:HIGH, LOW:HIGH:SCALE or A,B,C. Raises ValueError with the remedy."""
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
        raise ValueError(f"give the lower bound first: {spec.name}={numbers[1]:g}:{numbers[0]:g}")
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
        raise ValueError(f"on the scale {word[0]} {limit}; the scale linear accepts any range")
    if scale == "integer" and math.ceil(low) > math.floor(high):
        raise ValueError("give a range that contains a whole number")
    return Prior(low, high, scale)


def _numbers(texts: Sequence[str]) -> list[float]:
    """Parse the numbers. Return [] if a text is not a number, or if an absolute value exceeds `LARGEST_VALUE`."""
    try:
        numbers = [float(text) for text in texts]
    except ValueError:
        return []
    return numbers if all(abs(number) <= LARGEST_VALUE for number in numbers) else []


def _check_legal(spec: HyperSpec, ends: Range) -> None:
    low, high = spec.limits
    if ends[0] < low or ends[1] > high:
        raise ValueError(f"give a range within {low:g}..{high:g}")
    if spec.scale == "integer" and math.ceil(ends[0]) > math.floor(ends[1]):
        raise ValueError("give a range that contains a whole number")


def _example(spec: HyperSpec) -> str:
    return f"{spec.low:g}:{spec.high:g}"
