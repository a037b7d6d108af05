"""The page of `--show`, below the plan: comparisons, values, and the options that differ from the defaults."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator

from pbt_rl.cli.parse import is_repeated
from pbt_rl.config import Config
from pbt_rl.controllers.hypers import OFF, HyperSpec, Values
from pbt_rl.controllers.registry import controller_entry
from pbt_rl.controllers.tuning import chosen
from pbt_rl.envs.registry import FAMILIES, SHORT_NAMES
from pbt_rl.options import Option, table
from pbt_rl.registry import READY_RULES
from pbt_rl.run.resolved import ResolvedRun


def page(resolved: ResolvedRun, first: Values) -> Iterator[str]:
    """Yield the lines. first: the values of member 0 at the start."""
    yield from describe_comparisons(resolved.config)
    yield from describe_values(resolved, first)
    yield "options that differ from the defaults (by recipes or as typed; --format toml prints all):"
    unread = ENVIRONMENT_GROUPS - read_groups(resolved.config.env, resolved.spec.seats)
    yield from (f"  {line}" for line in _differing(resolved.config, unread, resolved.table))
    if resolved.config.init_from:
        from pbt_rl.run.warm_start.saved import WarmStart  # noqa: PLC0415 - it reads other runs

        start = WarmStart.find(resolved, print)
        yield from () if start is None else start.described()


def describe_comparisons(config: Config) -> list[str]:
    """Return a line that says when members are compared and by which rules; none if they are not."""
    pbt = config.pbt
    if not (controller_entry(config.controller).compares and pbt.enabled and config.num_policies > 1):
        return []
    if READY_RULES[pbt.ready].by_time:
        start, period = pbt.start_seconds, pbt.period_seconds
        when = f"after {max(start, period):g} s of training and every {period:g} s"
    else:
        when = f"at {max(pbt.start_frames, pbt.period_frames):,} frames each and every {pbt.period_frames:,}"
    text = (
        f"members are compared {when} from there: --controller {config.controller}, --pbt.ready {pbt.ready}, "
        f"--pbt.exploit {pbt.exploit}, --pbt.explore {pbt.explore}"
    )
    return [text]


def comparison_note(config: Config) -> str:
    """Return a hint at comparisons for which the frames do not suffice, or nothing."""
    entry, pbt = controller_entry(config.controller), config.pbt
    if config.searches:
        return entry.note(config, config.num_policies, config.train_for_frames)
    if not (entry.compares and pbt.enabled and config.num_policies > 1):
        return ""
    if READY_RULES[pbt.ready].by_time:
        after = max(pbt.start_seconds, pbt.period_seconds)
        if 0 < config.train_for_seconds <= after:
            return (
                f"note: PBT compares members first after {after:g} s, and this run ends after "
                f"{config.train_for_seconds:g}: lower --pbt.start-seconds and --pbt.period-seconds to see it at work"
            )
        return entry.note(config, config.num_policies, config.train_for_frames)
    first, last = max(pbt.start_frames, pbt.period_frames), config.train_for_frames
    if first >= last:
        return (
            f"note: PBT compares members first at {first:,} frames each, and this run ends at {last:,}: "
            "lower --pbt.start-frames and --pbt.period-frames to see it at work"
        )
    return entry.note(config, config.num_policies, last)


def tuned_table(resolved: ResolvedRun) -> dict[str, HyperSpec]:
    """Return the table of a run with the user's choice of tuned values, bounds and priors. Raises ConfigError."""
    return chosen(resolved.table, resolved.config.pbt.tune, resolved.config.pbt.prior)


def describe_values(resolved: ResolvedRun, first: Values) -> list[str]:
    """Return a table of the values that the controller tunes, and a line of those that it does not.

    first: the values of member 0 at the start.
    """
    config, table = resolved.config, tuned_table(resolved)
    changes = config.searches or (config.pbt.enabled and config.controller != "schedule")
    tuned = [spec for spec in table.values() if spec.tuned and changes]
    rest = ", ".join(f"{name} {first[name]:g}" for name, spec in table.items() if spec not in tuned)
    lines = [f"not tuned: {rest}"] if rest else []
    if not tuned:
        return lines
    heads = ("tuned", "member 0", "prior", "mutation bounds", "legal")
    rows = [heads, *(_row(spec, first[spec.name]) for spec in tuned)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    shown = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    if config.pbt.explore == "perturb" and not config.searches:
        drawn = ", ".join(spec.name for spec in tuned if spec.drawn) or "none here"
        shown.append(
            "note: with --pbt.explore perturb the other members start around member 0, but for values with a range of "
            f"your own (--pbt.tune NAME=LOW:HIGH, --pbt.prior), which are drawn from the prior: {drawn}"
        )
    return shown + lines


def _row(spec: HyperSpec, first: float) -> tuple[str, ...]:
    low, high = spec.limits
    legal = f"{low:g}..{'off' if high == OFF else f'{high:g}'}"
    return spec.name, f"{first:g}", str(spec.start), f"{spec.low:g}..{spec.high:g}", legal


def _differing(config: Config, unread: Collection[str], values: Collection[str]) -> list[str]:
    """Return the options that differ from the defaults, as they are typed.

    unread: groups of options, and values: the hypers that are read.
    """
    found = []
    for one in table(config).values():
        group, value = one.path[0], one.of(config)
        shown = group not in unread and (group != "hypers" or one.path[-1] in values)
        if shown and value != one.default:
            found += as_typed(one, value)
    return found


ENVIRONMENT_GROUPS = frozenset(name for family in FAMILIES.values() for name in family.option_groups)
"""Groups of options that some families of environments read, and others do not."""


def read_groups(env: str, seats: int) -> frozenset[str]:
    """Return those of `ENVIRONMENT_GROUPS` that a run in this environment reads. seats: of one environment."""
    family = FAMILIES.get(str(SHORT_NAMES.get(env, env)).partition("/")[0])
    own = {*family.option_groups} if family is not None else set()
    return frozenset(own | {"matchup"} if seats > 1 else own - {"matchup"})


def as_typed(option: Option, value: object) -> list[str]:
    """Return a value of an option as it is typed: one text, or one for each entry of an option that is repeated."""
    if is_repeated(option):
        assert isinstance(value, tuple)
        return [f"--{option.name} {shlex.quote(str(entry))}" for entry in value]
    entries = value if isinstance(value, tuple) else (value,)
    return [shlex.join([f"--{option.name}", *map(_as_word, entries)])]


def _as_word(value: object) -> str:
    return (
        str(value).lower()
        if isinstance(value, bool)
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )
