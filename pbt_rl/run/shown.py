"""Description of a run before training: plan, times of comparisons, network inputs, unused options.

`page` adds more lines for `--show`: rollout age, tuned values, and options that differ from the defaults.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

from pbt_rl.algos.encoders import CNNS, is_grid, is_image, is_text
from pbt_rl.config import Config, LearnerConfig
from pbt_rl.config.budget import FOLLOW_HOURS, in_frames, timed
from pbt_rl.controllers.hypers import OFF, SHAPING, HyperSpec, Values, shaping_given
from pbt_rl.controllers.lookup import controller_entry
from pbt_rl.display.ranking import in_time
from pbt_rl.display.terminal import counted
from pbt_rl.envs.base import ACTION_MASK, LAST, EnvSpec
from pbt_rl.envs.lookup import FAMILIES, SHORT_NAMES, backend_of
from pbt_rl.learner.build import normalized_obs, obs_layouts
from pbt_rl.options.declare import table
from pbt_rl.options.words import as_words
from pbt_rl.plan import PackPlan
from pbt_rl.population.matchups import run_matchups as matchups
from pbt_rl.registry import CONTROLLERS, READY_RULES, RULES
from pbt_rl.run import control
from pbt_rl.run.limits import describe_rows, memory_notes
from pbt_rl.run.resolved import ResolvedRun
from pbt_rl.run.warm_start import WarmStart


def page(resolved: ResolvedRun, first: Values) -> Iterator[str]:
    """Yield the lines that `--show` prints after the plan. first: initial values of member 0."""
    config, (least, most) = resolved.config, resolved.plan.rollout_age
    if most:
        steps = config.optimizer_steps_of_batch
        yield f"rollout age: {least} to {most} optimiser steps, {steps} per batch (docs/lab/rollout-age.md)"
    yield from describe_rows(resolved)
    yield from describe_values(resolved, first)
    yield "options that differ from the defaults (set by a recipe or by you; --format toml prints all):"
    unread = ENVIRONMENT_GROUPS - read_groups(config.env, resolved.spec.agents)
    for one in table(config).values():
        group, value = one.path[0], one.of(config)
        shown = group not in unread and (group != "hypers" or one.path[-1] in resolved.table)
        if shown and value != one.default and value != FOLLOW_HOURS.get(one.field):
            yield from (f"  {line}" for line in as_words(one, value))
    if config.init_from:
        start = WarmStart.find(resolved, print)
        yield from () if start is None else start.described()


SLOW_CORE = 1_000
"""Assumed frames/s of one core with a slow environment."""
FAST_CORE = 4_000
"""Assumed frames/s of one core with a fast environment. Few environments are faster than this."""
USUAL_STEPS = 250
"""Assumed length of an episode in steps, if the time limit is unknown."""


def compares(config: Config) -> bool:
    """Check whether the run compares members with each other."""
    return controller_entry(config.controller).compares and config.pbt.enabled and config.num_policies > 1


def first_comparison(config: Config) -> float:
    """Return the time of the first comparison: frames per member, or training seconds if --pbt.ready counts seconds."""
    pbt = config.pbt
    if READY_RULES[pbt.ready].by_time:
        return max(pbt.start_seconds, pbt.period_seconds)
    return max(pbt.start_frames, pbt.period_frames)


def environments_each(resolved: ResolvedRun) -> int:
    """Return the largest number of environments (or simulator rows) that a member has on any learner."""
    return max(pack.environments // pack.slots for pack in resolved.plan.packs)


def episodes_each(resolved: ResolvedRun) -> int:
    """Return the number of episodes that a comparison needs in each environment (or simulator row) of a member."""
    return -(-resolved.config.pbt.min_episodes // min(resolved.plan.environments_of.values()))


def longest_wait(resolved: ResolvedRun) -> int:
    """Return the maximum frames of a member until each of its environments has ended `episodes_each` episodes.

    0 if the time limit is unknown.
    """
    spec = resolved.spec
    return environments_each(resolved) * episodes_each(resolved) * spec.time_limit * spec.frame_skip


def usual_wait(resolved: ResolvedRun) -> int:
    """Return the usual wait of a comparison for episodes, in frames of a member.

    The result is the maximum of one period, one batch, and `longest_wait`. `longest_wait` is left out if it exceeds a
    quarter of the budget.
    """
    config, longest = resolved.config, longest_wait(resolved)
    longest = longest if 4 * longest <= config.train_for_frames else 0
    return max(config.pbt.period_frames, batch_frames(resolved), longest)


def batch_frames(resolved: ResolvedRun) -> int:
    """Return the largest number of frames of a member in one batch."""
    rows = max(pack.batch_rows for pack in resolved.plan.packs)
    return rows * resolved.config.learner.rollout * resolved.spec.frame_skip


def describe_comparisons(resolved: ResolvedRun, *, begun: bool = False) -> list[str]:
    """Describe the times and rules of comparisons. Add a note or warning if comparisons come late or wait long.

    begun: True for a resumed run. A note on a late first comparison is then left out.
    """
    config, pbt, spec, plan = resolved.config, resolved.config.pbt, resolved.spec, resolved.plan
    entry = controller_entry(config.controller)
    frames, seconds = config.train_for_frames, config.train_for_seconds
    noted = [*filter(None, [entry.note(config, config.num_policies, frames)])]
    if config.searches:
        return noted
    if entry.compares and pbt.enabled and config.num_policies == 1:
        return ["note: PBT compares policies, but there is only one: give --num-policies 4 or more"]
    if not compares(config):
        return []
    by_time = READY_RULES[pbt.ready].by_time
    first, each = first_comparison(config), environments_each(resolved)
    rounds, episodes = episodes_each(resolved), longest_wait(resolved)
    when = f"at {first:,} frames each and then every {pbt.period_frames:,}"
    if by_time:
        when = f"after {in_time(first)} of training and then every {in_time(pbt.period_seconds)}"
    rules = f"--pbt.ready {pbt.ready}, --pbt.exploit {pbt.exploit}, --pbt.explore {pbt.explore}"
    update = batch_frames(resolved)
    if pbt.period_growth != 1:
        times = ""
    elif by_time:
        steps = 0 if spec.simulator else rounds * spec.time_limit * plan.environments
        longest = steps * spec.frame_skip / (SLOW_CORE * plan.cpus)
        times = _at_most(seconds, first, pbt.period_seconds, longest * (spec.agents == 1))
    else:
        times = _at_most(frames, first, max(pbt.period_frames, update), episodes * (spec.agents == 1))
    lines = [f"members are compared {when}{times}: --controller {config.controller}, {rules}"]
    if spec.agents == 1:
        limit = f": up to {episodes:,} frames" if episodes else ""
        lines.append(
            f"a comparison needs {counted(rounds, 'episode')} in each of a member's {each} environments{limit}"
        )
    if by_time and spec.agents == 1 and not spec.simulator:
        noted += _slow_episodes(resolved, rounds)
    late, needed = "", first * config.num_policies
    if by_time:
        if 0 < seconds <= first:
            late = f"after {in_time(first)}, but this run ends after {in_time(seconds)}"
    elif first >= frames:
        late = f"at {first:,} frames each, but this run ends at {frames:,}"
    elif seconds and needed > SLOW_CORE * plan.cpus * seconds:
        late = f"at {first:,} frames each, which needs {needed / seconds:,.0f} frames/s in a run of {in_time(seconds)}"
    if late and not begun:
        unit = "seconds" if by_time else "frames"
        lower = f"lower --pbt.start-{unit} and --pbt.period-{unit}"
        return [*lines, f"note: the first comparison is due {late}: {lower}"]
    given = pbt.period_frames != in_frames(frames)["pbt.period_frames"]
    if by_time or not given or pbt.period_frames >= max(update, episodes):
        return [*lines, *noted]
    why = f"{update:,}, the frames of one batch"
    if update < episodes:
        why = f"{episodes:,}, the maximum frames of {counted(rounds, 'episode')} in each of a member's environments"
    return [*lines, *noted, f"warning: --pbt.period-frames {pbt.period_frames:,} is less than {why}"]


def _slow_episodes(resolved: ResolvedRun, rounds: int) -> list[str]:
    """Return a note if comparisons at fixed intervals of seconds wait for episodes even on fast cores, otherwise [].

    rounds: number of episodes that a comparison needs in each environment.
    """
    spec, plan, period = resolved.spec, resolved.plan, resolved.config.pbt.period_seconds
    steps, speed = spec.time_limit or USUAL_STEPS, FAST_CORE * plan.cpus
    seconds = rounds * steps * spec.frame_skip * plan.environments / speed
    if seconds <= period:
        return []
    fewer = ", or give --envs-per-vector-env 1" * (plan.packs[0].envs_per_policy > 1)
    how = f"{steps:,} steps, even at {speed:,} frames/s on {counted(plan.cpus, 'core')}"
    due = f"Comparisons are due every {in_time(period)}, but wait for these episodes: train longer{fewer}"
    return [
        f"note: {counted(rounds, 'episode')} in each environment takes about {in_time(seconds)} ({how}). {due}"
    ]


def _at_most(budget: float, first: float, period: float, longest: float) -> str:
    """Describe the number of comparisons within a budget. Empty without comparisons.

    All arguments have equal units: frames of a member, or seconds.
    first: time of the first comparison. period: minimum interval between comparisons.
    longest: time until each environment has ended `episodes_each` episodes, if each episode reaches its time limit.
    0: unknown.
    """
    most = _comparisons_within(budget, max(first, period), period)
    least = _comparisons_within(budget, max(first, longest), max(period, longest))
    fewer = f" (about {least:,} if all episodes reach their time limit)" if least < most else ""
    return f", at most {most:,} times{fewer}" if most else ""


def _comparisons_within(budget: float, first: float, period: float) -> int:
    """Count the comparisons within a budget. All arguments have equal units: frames of a member, or seconds.

    first: time of the first comparison.
    """
    return max(0, math.ceil((budget - first) / period))


def tuned_names(resolved: ResolvedRun) -> frozenset[str]:
    """Return the names of the tuned values. Empty for a population of one member."""
    several = resolved.config.num_policies > 1
    return frozenset(name for name, spec in resolved.tuned.items() if spec.tuned and several)


def describe_values(resolved: ResolvedRun, first: Values) -> list[str]:
    """Format a table of the tuned values, and a line with the other values. first: initial values of member 0."""
    config, table = resolved.config, resolved.tuned
    compared = config.pbt.enabled and config.num_policies > 1 and config.controller != "schedule"
    changes = config.searches or compared
    tuned = [spec for spec in table.values() if spec.tuned and changes]
    rest = ", ".join(f"{name} {first[name]:g}" for name, spec in table.items() if spec not in tuned)
    lines = [f"not tuned: {rest}"] if rest else []
    if not tuned:
        return lines
    near = config.pbt.explore == "perturb" and not config.searches
    heads = ("tuned", "member 0", "other members", "mutation bounds", "legal")
    rows = [heads, *(_row(spec, first[spec.name], near and not spec.drawn) for spec in tuned)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    shown = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    if near and not all(spec.drawn for spec in tuned):
        shown.append("note: to sample the start of a value over a wide range, give --pbt.tune NAME=LOW:HIGH")
    return shown + lines


def _row(spec: HyperSpec, first: float, near: bool) -> tuple[str, ...]:
    """Return the cells of a tuned value. near: True if all members start near member 0, False if they use the prior."""
    low, high = spec.limits
    legal = f"{low:g}..{'off' if high == OFF else f'{high:g}'}"
    others = "near member 0" if near else str(spec.start)
    return spec.name, f"{first:g}", others, f"{spec.low:g}..{spec.high:g}", legal


ENVIRONMENT_GROUPS = frozenset(name for family in FAMILIES.values() for name in family.option_groups)
"""Option groups that only some environment families use."""


def read_groups(env: str, agents: int) -> frozenset[str]:
    """Return the groups of `ENVIRONMENT_GROUPS` that this environment uses. agents: its number of agents."""
    family = FAMILIES.get(str(SHORT_NAMES.get(env, env)).partition("/")[0])
    own = {*family.option_groups} if family is not None else set()
    return frozenset(own | {"matchup"} if agents > 1 else own - {"matchup"})


# -- the plan --------------------------------------------------------------------------------------------


def describe_plan(resolved: ResolvedRun, *, begun: bool = False) -> list[str]:
    """Describe the members, actors and threads of each device. Add notes and warnings.

    begun: see `describe_comparisons`.
    """
    spec, plan, config = resolved.spec, resolved.plan, resolved.config
    slots = sum(pack.slots for pack in plan.packs)
    at_a_time = f" ({slots} on the devices at a time)" if slots < config.members else ""
    controls = f" and {counted(config.controls, 'control')}" if config.controls else ""
    first_line = (
        f"{config.env}: {counted(config.num_policies, 'policy', 'policies')}{controls}{at_a_time}, "
        f"{config.algo}, {config.mode}; "
        f"{counted(plan.actors, 'actor')}, {counted(plan.environments // spec.agents, 'environment')}"
        f"{f' of {spec.agents} agents' if spec.agents > 1 else ''} on {counted(plan.cpus, 'core')}; "
        f"1 step = {counted(spec.frame_skip, 'frame')}"
    )
    lines = [first_line]
    for number, pack in enumerate(plan.packs):
        steps = pack.batch_rows * config.learner.rollout
        vector_envs = f"{counted(pack.vector_envs_per_actor, 'vector env')} of {pack.envs_per_policy}"
        by = (
            "1 simulator on the device" if pack.groups else f"{counted(pack.actors, 'actor')} x {vector_envs}"
        )
        lines.append(
            f"learner {number} on {pack.device}: member{'s' * (len(pack.members) > 1)} {_ids(pack.members)}"
            f"{'' if pack.slots == len(pack.members) else ' in ' + counted(pack.slots, 'slot')}; "
            f"{counted(pack.environments // pack.slots, 'row' if spec.agents > 1 else 'environment')} per member "
            f"({by}); "
            f"batch {steps} steps per policy{_other_batch(resolved, pack)}; "
            f"{counted(pack.threads, 'thread')}"
        )
    lines += [f"warning: {mistake}" for mistake in (*spec.mistakes, *resolved.warnings)]
    lines += [f"note: {note}" for note in spec.notes] + network_sees(config, spec)
    lines += describe_comparisons(resolved, begun=begun)
    lines += control.notes(config)
    if config.hours is not None:
        seconds = config.train_for_seconds
        given = "" if seconds == 3600 * config.hours else f", from --train-for-seconds {seconds:g}"
        lines.append(f"--hours {config.hours:g}: {in_time(seconds)} of training{given}")
    if spec.agents > 1:
        lines.append(matchups.note(config, plan.packs))
    if not resolved.spread:  # the memory of other machines is unknown
        lines += memory_notes(resolved)
    return [*lines, *unread(resolved)]


def _other_batch(resolved: ResolvedRun, pack: PackPlan) -> str:
    """Explain why the batch of a pack differs from --learner.batch. Empty if they are equal or the option is unused."""
    config, agents = resolved.config, resolved.spec.agents
    asked, rollout = config.learner.batch, config.learner.rollout
    if pack.batch_rows * rollout == asked or resolved.plan.sizing.per_vector_env:
        return ""
    who = "--learner.batch"
    if asked == recommended(resolved).get("learner.batch"):
        who = "the recipe's"
    elif asked == LearnerConfig.batch:
        who = "the default"
    needed = max(1, asked // rollout)
    if pack.environments // pack.slots < needed:
        return f" ({who} {asked} needs {needed} {'rows' if agents > 1 else 'environments'} per member)"
    if pack.groups:
        return f" (one rollout of each environment, not {who} {asked})"
    return f" ({who} {asked}, rounded to whole vector envs)"


def _ids(members: tuple[int, ...]) -> str:
    """Format ids of members. Of more than 16 ids, show only the first three, the last, and the number of all ids."""
    if len(members) <= 16:
        return ", ".join(map(str, members))
    return f"{', '.join(map(str, members[:3]))}, ... {members[-1]} ({len(members)})"


# -- options that this run does not use ---------------------------------------------------------------------

OF_CONTROLLERS = ("schedule", "search", "pbt.frequencies", "pbt.migrant_hypers")
"""Option groups and single options that only some controllers use."""


def unread(resolved: ResolvedRun) -> list[str]:
    """Return a note for each option that the user has changed but that this run does not use."""
    config = resolved.config
    by_time = timed(config.train_for_seconds) if config.train_for_seconds else {}
    usual = {**in_frames(config.train_for_frames), **by_time, **recommended(resolved)}
    reasons = dict([*_reasons(config, resolved.spec.agents), *_of_learning(resolved)])
    found = []
    for one in table(config).values():
        value = one.of(config)
        if one.field in reasons and value not in (one.default, usual.get(one.field, one.default)):
            found.append(f"note: {' '.join(as_words(one, value))} has no effect: {reasons[one.field]}")
    return [*found, *_ignored_weights(resolved)]


def recommended(resolved: ResolvedRun) -> Mapping[str, Any]:
    """Return the recipe of the run's environment: config field -> value."""
    config = resolved.config
    backend, name = backend_of(config.env, config.env_options)
    made = backend.recipe_of  # does not construct the environment again
    return backend.recipe(name, config.env_options) if made is None else made(resolved.spec)


def _reasons(config: Config, agents: int) -> Iterator[tuple[str, str]]:
    """Yield (config field, reason) for each option that this environment, controller or rules do not use."""
    for group in ENVIRONMENT_GROUPS - read_groups(config.env, agents):
        yield from _of_group(config, group, f"{config.env} does not use it")
    if config.num_policies > 1:
        yield from of_rules(config)
    elif ":" not in config.controller:
        yield from _of_controllers(config)


def of_rules(config: Config) -> Iterator[tuple[str, str]]:
    """Yield (config field, reason) for each unused option of controllers and rules.

    Yield nothing for custom controllers, because they may use all options.
    """
    if ":" in config.controller:
        return
    yield from _of_controllers(config)
    entry, pbt = controller_entry(config.controller), config.pbt
    off = entry.compares and not pbt.enabled
    if off:
        yield "controller", "--pbt.no-enabled disables comparisons"
    why = f"{'--pbt.no-enabled' if off else f'--controller {config.controller}'} does not use it to compare members"
    if off or not entry.compares:
        yield from ((name, why) for name in ("pbt.copy", "pbt.custom_explore"))
    for option, rules in RULES.items():
        chosen = option.partition(".")[2]
        rule = getattr(pbt, chosen)
        of_kind = {name for other in rules.values() for name in other.options} - {*entry.options}
        if off or not entry.compares:
            yield from ((name, why) for name in (option, *of_kind))
        elif rule in rules:
            for name in of_kind.difference(rules[rule].options):
                readers = [other for other, declared in rules.items() if name in declared.options]
                yield name, f"it belongs to --{option} {', '.join(readers)}"


def _of_controllers(config: Config) -> Iterator[tuple[str, str]]:
    """Yield (config field, reason) for each option that only other controllers use."""
    for name in sorted({*OF_CONTROLLERS}.difference(controller_entry(config.controller).options)):
        readers = [other for other, entry in CONTROLLERS.items() if name in entry.options]
        yield from _of_group(config, name, f"it belongs to --controller {', '.join(readers)}")


def _of_group(config: Config, group: str, reason: str) -> Iterator[tuple[str, str]]:
    """Yield (config field, reason) for each option of a group. group: an option group, or a single option."""
    yield from ((one.field, reason) for one in table(config).values() if group in (one.path[0], one.field))


def _of_learning(resolved: ResolvedRun) -> Iterator[tuple[str, str]]:
    """Yield (config field, reason) for each unused option of algorithm, network, slots and final evaluation."""
    config, spec = resolved.config, resolved.spec
    random = _random_starts(resolved)
    for one in table(config).values():
        if one.path[0] == "hypers" and one.path[-1] in random:
            yield one.field, random[one.path[-1]]
        if one.path[0] == "hypers" and one.path[-1] not in resolved.table:
            how = f" with {'V-trace' if config.uses_vtrace else 'GAE'}" * (config.algo == "appo")
            yield one.field, f"--algo {config.algo} does not use it{how}"
    model, learner = config.model, config.learner
    longer = getattr(config.hypers, "unroll", 0) > learner.rollout
    one_step = learner.epochs * learner.minibatches == 1
    per_vector_env = f"--algo {config.algo} takes one optimiser step per rollout"
    current = f"with --mode {config.mode} rollouts are always of the current policy"
    opponents = "multi-agent runs have no final evaluation, because scores depend on the opponents"
    tasks = "runs with tasks have no final evaluation, because an episode per task takes too long"
    fun, no_memory = config.algo == "fun", config.algo in ("appo", "a3c", "unreal") and model.core == "none"
    rules = (
        (longer, "hypers.unroll", f"it is limited by --learner.rollout, {learner.rollout} steps"),
        (
            learner.lr_schedule != "kl-adaptive",
            "learner.lr_schedule_kl",
            "it belongs to --learner.lr-schedule kl-adaptive",
        ),
        (
            one_step,
            "learner.target_kl",
            "each batch takes one optimiser step (--learner.epochs, --learner.minibatches)",
        ),
        (len(model.hidden) > 1, "model.layers", "--model.hidden has a width for each layer"),
        (
            no_memory,
            "model.core_size",
            "the network has no memory (--model.core)",
        ),
        (
            fun and model.action_std == "state",
            "model.initial_std",
            "stds of fun begin at 1, because its policy head has no biases",
        ),
        (config.algorithm.learns_per_vector_env, "learner.epochs", per_vector_env),
        (config.algorithm.learns_per_vector_env, "learner.minibatches", per_vector_env),
        (config.mode != "async", "learner.max_policy_lag", current),
        (config.mode != "async", "learner.proximal", current),
        (not config.slots, "slot_frames", "all members train at the same time (--slots)"),
        (bool(spec.tasks), "final_episodes", tasks),
        (spec.agents > 1, "final_episodes", opponents),
    )
    yield from ((name, reason) for unused, name, reason in rules if unused)


def _random_starts(resolved: ResolvedRun) -> dict[str, str]:
    """Return the tuned values that have a random start value in every member: name -> reason for the random values."""
    config = resolved.config
    changes = config.searches or compares(config)
    if not changes or ":" in config.controller or config.pbt.start_values:
        return {}
    if config.searches:
        why = "the search draws the start value of each member, because it is tuned (--pbt.tune)"
        return {name: why for name, spec in resolved.tuned.items() if spec.tuned}
    return {
        name: f"it is outside {spec.low:g} to {spec.high:g} (--pbt.tune), so each member starts with a random value"
        for name, spec in resolved.tuned.items()
        if spec.starts_outside
    }


def _ignored_weights(resolved: ResolvedRun) -> list[str]:
    """Return a note for each reward weight in --shaping with which no member starts."""
    random = _random_starts(resolved)
    return [
        f"note: --shaping.{name} {value:g} has no effect: {random[SHAPING + name]}"
        for name, value in shaping_given(resolved.config.shaping).items()
        if SHAPING + name in random
    ]


# -- inputs of the network -----------------------------------------------------------------------------------

SHOWN = 6
"""Maximum number of action bounds to print."""


def network_sees(config: Config, spec: EnvSpec) -> list[str]:
    """Describe the input arrays of the network, and the range to which actions are scaled.

    The action mask, and the last action and reward, are left out.
    """
    normalized, encoder = normalized_obs(config, spec), config.model.encoder
    parts = []
    for name, layout in obs_layouts(spec).items():
        if name in (ACTION_MASK, LAST):
            continue
        (shape, dtype), given = layout.seen, spec.obs[name].given
        size = "x".join(map(str, shape))
        if is_text(shape, dtype):
            what = f"a text of {shape[0]} words"
        elif is_grid(shape, dtype):
            what = f"a grid {size}"
        elif is_image(shape, dtype):
            what = f"an image {size}"
        else:
            what = f"{prod(shape):,} number{'s' * (prod(shape) != 1)}"
        read = _reader(encoder, shape, dtype)
        how = f"{read}, normalised" if name in normalized else read
        alone = ", for the critic only" * (name in spec.critic)
        parts.append(f"{name}: {what}{f' ({given})' * bool(given)}, by {how}{alone}")
    lines = [f"network inputs: {'; '.join(parts)}"]
    scaled = _scaled(spec) if config.model.action_bounds == "clip" else ""
    return [*lines, scaled] if scaled else lines


def _reader(encoder: str, shape: tuple[int, ...], dtype: str) -> str:
    if ":" in encoder:
        return encoder
    if is_text(shape, dtype):
        return "an embedding of each word"
    if is_image(shape, dtype) and encoder != "mlp":
        return f"the CNN {'nature' if encoder not in CNNS else encoder}"
    return "an MLP"


def _scaled(spec: EnvSpec) -> str:
    centres, halves = spec.action.units
    bounds = [
        f"{low:g}..{high:g}"
        for low, high, centre, half, free in zip(
            spec.action.low, spec.action.high, centres, halves, spec.action.unbounded, strict=True
        )
        if (centre, half) != (0, 1) and not free
    ]
    if not bounds:
        return ""
    shown = ", ".join(dict.fromkeys(bounds[:SHOWN])) + (", ..." if len(bounds) > SHOWN else "")
    squashes = "" if any(spec.action.unbounded) else " (--model.action-bounds tanh squashes instead)"
    return f"actions: network outputs -1..1 are scaled to {shown}{squashes}"
