"""What a plan says of comparisons; and the page of `--show` below it: values, and options other than the defaults."""

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
from pbt_rl.run.warm_start import WarmStart


def page(resolved: ResolvedRun, first: Values) -> Iterator[str]:
    """Yield the lines. first: the values of member 0 at the start."""
    yield from describe_values(resolved, first)
    yield "options that differ from the defaults (by recipes or as typed; --format toml prints all):"
    unread = ENVIRONMENT_GROUPS - read_groups(resolved.config.env, resolved.spec.seats)
    yield from (f"  {line}" for line in _differing(resolved.config, unread, resolved.table))
    if resolved.config.init_from:
        start = WarmStart.find(resolved, print)
        yield from () if start is None else start.described()


SLOW_CORE = 1_000
"""Frames/s: that a core does more is not taken for granted."""


def compares(config: Config) -> bool:
    """Return whether members are compared with each other."""
    return controller_entry(config.controller).compares and config.pbt.enabled and config.num_policies > 1


def first_comparison(config: Config) -> float:
    """Return when members are compared first: frames of each, or seconds of training if that is the rule."""
    pbt = config.pbt
    if READY_RULES[pbt.ready].by_time:
        return max(pbt.start_seconds, pbt.period_seconds)
    return max(pbt.start_frames, pbt.period_frames)


def environments_each(resolved: ResolvedRun) -> int:
    """Return the environments, or rows of a simulator, of a member; with several learners the most."""
    return max(pack.environments // pack.slots for pack in resolved.plan.packs)


def _frames_of_episodes(resolved: ResolvedRun) -> int:
    """Return the most frames of a member in which each of its environments ends an episode; 0 if it is not known."""
    plan, spec = resolved.plan, resolved.spec
    rounds = -(-resolved.config.pbt.min_episodes // min(plan.environments_of.values()))
    return environments_each(resolved) * rounds * spec.time_limit * spec.frame_skip


def describe_comparisons(resolved: ResolvedRun) -> list[str]:
    """Return a line that says when members are compared and by which rules; none if they are not."""
    config, pbt = resolved.config, resolved.config.pbt
    if not compares(config):
        return []
    if READY_RULES[pbt.ready].by_time:
        when = f"after {first_comparison(config):g} s of training and every {pbt.period_seconds:g} s"
    else:
        when = f"at {first_comparison(config):,} frames each and every {pbt.period_frames:,}"
    known = _frames_of_episodes(resolved)
    rules = (
        f"members are compared {when} from there: --controller {config.controller}, --pbt.ready {pbt.ready}, "
        f"--pbt.exploit {pbt.exploit}, --pbt.explore {pbt.explore}"
    )
    needs = f"a comparison needs an episode of each of a member's {environments_each(resolved)} environments"
    limit = f": up to {known:,} frames" if known else ""
    return [rules] if resolved.spec.seats > 1 else [rules, needs + limit]


def comparison_notes(resolved: ResolvedRun) -> list[str]:
    """Return hints at comparisons that the budget does not reach, and at periods that are too short."""
    config = resolved.config
    entry, frames = controller_entry(config.controller), config.train_for_frames
    noted = [*filter(None, [entry.note(config, config.num_policies, frames)])]
    if config.searches:
        return noted
    if entry.compares and config.pbt.enabled and config.num_policies == 1:
        return ["note: with one policy PBT has nothing to compare: give --num-policies 4, or more"]
    if not compares(config):
        return []
    late = _late_comparison(resolved)
    return (
        [f"note: PBT compares members first {late} to see it at work"]
        if late
        else [*noted, *_short_period(resolved)]
    )


def _late_comparison(resolved: ResolvedRun) -> str:
    """Say that the first comparison is not within the budget; nothing if it is, as far as that is known."""
    config, first, members = resolved.config, first_comparison(resolved.config), resolved.config.num_policies
    frames, seconds = config.train_for_frames, config.train_for_seconds
    if READY_RULES[config.pbt.ready].by_time:
        if not 0 < seconds <= first:
            return ""
        return (
            f"after {first:g} s, and this run ends after {seconds:g}: "
            "lower --pbt.start-seconds and --pbt.period-seconds"
        )
    if first >= frames:
        said = f"and this run ends at {frames:,}"
    elif seconds and first * members > SLOW_CORE * resolved.plan.cpus * seconds:
        said = f"which takes {first * members / seconds:,.0f} frames/s in a run of {seconds:g} s"
    else:
        return ""
    return f"at {first:,} frames each, {said}: lower --pbt.start-frames and --pbt.period-frames"


def _short_period(resolved: ResolvedRun) -> list[str]:
    """Return a warning of a period in which nothing can be compared."""
    config, period = resolved.config, resolved.config.pbt.period_frames
    steps = max(pack.batch_rows for pack in resolved.plan.packs) * config.learner.rollout
    update, episodes = steps * resolved.spec.frame_skip, _frames_of_episodes(resolved)
    if READY_RULES[config.pbt.ready].by_time or period >= max(update, episodes):
        return []
    why = (
        f"{update:,}, which a member learns from at a time"
        if update >= episodes
        else f"{episodes:,}, which an episode of each of a member's environments may take"
    )
    return [f"warning: --pbt.period-frames {period:,} is less than {why}: comparisons will come later"]


def tuned_table(resolved: ResolvedRun) -> dict[str, HyperSpec]:
    """Return the table of a run with the user's choice of tuned values, bounds and priors. Raises ConfigError."""
    return chosen(resolved.table, resolved.config.pbt.tune, resolved.config.pbt.prior)


def tuned_names(resolved: ResolvedRun) -> frozenset[str]:
    """Return the names of the values that a population tunes; none for a single member, whose values stay."""
    several = resolved.config.num_policies > 1
    return frozenset(name for name, spec in tuned_table(resolved).items() if spec.tuned and several)


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
