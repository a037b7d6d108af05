"""Settings that defeat their purpose, as notes on a plan."""

from __future__ import annotations

import math

from pbt_rl.advice.memory import memory_notes
from pbt_rl.config import Config
from pbt_rl.display.terminal import counted
from pbt_rl.pbt.hypers import HyperSpec
from pbt_rl.pbt.registry import controller_entry
from pbt_rl.pbt.rules import READY_RULES
from pbt_rl.pbt.tuning import chosen
from pbt_rl.plan import PackPlan
from pbt_rl.plan.sizes import LAG_OF_QUEUE, LEAST_SPARE_ROWS, Size
from pbt_rl.run.resolved import ResolvedRun

NEARLY_ALL_ACTORS = 0.9
"""Share of the actors that cores could serve; a plan of fewer is explained."""
MANY_PER_CORE = 10_000
"""More environments on a core are warned about: at 10 us a step each waits a tenth of a second for its turn."""
TURN_ROLLOUTS = 20
"""Turns shorter than this many rollouts waste more than 1/20 of their frames."""


def tuned_table(resolved: ResolvedRun) -> dict[str, HyperSpec]:
    """Return the table of a run with the user's choice of tuned values, bounds and priors. Raises ConfigError."""
    return chosen(resolved.table, resolved.config.pbt.tune, resolved.config.pbt.prior)


def notes(resolved: ResolvedRun) -> list[str]:
    """Return hints at settings that defeat their purpose."""
    config = resolved.config
    found = [*_lag_notes(resolved), *_idle_core_notes(resolved), *_crowd_notes(resolved)]
    if not resolved.spread:  # else the memory is that of other machines
        found += memory_notes(resolved)
    unroll, rollout = tuned_table(resolved).get("unroll"), config.learner.rollout
    if unroll is not None and unroll.default < rollout and not unroll.tuned:
        found.append(
            f"note: returns look {unroll.default:.0f} steps ahead (--hypers.unroll), although a rollout has {rollout} "
            f"(--learner.rollout): for longer ones give --hypers.unroll {rollout}, too"
        )
    if config.learner.lr_schedule == "kl-adaptive":
        found.append(
            "note: --learner.lr-schedule kl-adaptive sets the learning rate in use, so learning_rate is not tuned"
        )
    if controller_entry(config.controller).compares and config.pbt.enabled and config.num_policies > 1:
        found += filter(None, [_comparison_note(config)])
    if config.searches:
        note = controller_entry(config.controller).note(config, config.num_policies, config.train_for_frames)
        return [*found, note] if note else found
    for pack in resolved.plan.packs:
        lost = pack.units * pack.envs_per_policy * config.learner.rollout * resolved.spec.frame_skip
        if pack.slots < len(pack.members) and config.slot_frames < TURN_ROLLOUTS * lost:
            found.append(
                f"note: a member that leaves its slot loses unfinished rollouts, up to {lost:,} frames, and a turn is "
                f"{config.slot_frames:,}: raise --slot-frames"
            )
            break
    return found


def _comparison_note(config: Config) -> str:
    """Return a hint at comparisons for which the frames do not suffice, or nothing."""
    pbt = config.pbt
    if READY_RULES[pbt.ready].by_time:
        after = max(pbt.start_seconds, pbt.period_seconds)  # type: ignore[attr-defined] # of an extra
        if 0 < config.train_for_seconds <= after:
            return (
                f"note: PBT compares members first after {after:g} s, and this run ends after "
                f"{config.train_for_seconds:g}: lower --pbt.start-seconds and --pbt.period-seconds to see it at work"
            )
        return controller_entry(config.controller).note(config, config.num_policies, config.train_for_frames)
    first, last = max(pbt.start_frames, pbt.period_frames), config.train_for_frames
    if first >= last:
        return (
            f"note: PBT compares members first at {first:,} frames each, and this run ends at {last:,}: "
            "lower --pbt.start-frames and --pbt.period-frames to see it at work"
        )
    return controller_entry(config.controller).note(config, config.num_policies, last)


def lag_remedies(resolved: ResolvedRun) -> list[str]:
    """Return options that make rollouts as young as a plan would (see plan/sizes.py); empty if they are."""
    sizing, packs = resolved.plan.sizing, resolved.plan.packs
    pack = _oldest(resolved)
    need = sizing.least_rollouts(pack.units)
    if not sizing.too_old(pack.units, Size(pack.envs_per_policy, pack.units_per_batch)):
        return []
    envs = int(sizing.batch_rows / need) // sizing.seats * sizing.seats
    actors = int(sizing.units_per_rollout * pack.units_per_batch / pack.units_per_actor) * len(packs)
    return [
        f"--learner.batch {need * pack.envs_per_policy * resolved.config.learner.rollout}",
        *([f"--envs-per-unit {envs}"] if envs else []),
        *([f"--actors {actors}"] if actors >= len(packs) else []),
        f"--learner.max-policy-lag {2 * _lag(pack)}",
    ]


def _oldest(resolved: ResolvedRun) -> PackPlan:
    return max(resolved.plan.packs, key=_lag)


def _lag(pack: PackPlan) -> int:
    """Return how many updates old a rollout is when it is learned from."""
    return math.ceil(pack.units / pack.units_per_batch) + LAG_OF_QUEUE


def _lag_notes(resolved: ResolvedRun) -> list[str]:
    """Warn if the user's numbers make rollouts older than a plan would."""
    remedies, pack = lag_remedies(resolved), _oldest(resolved)
    text = (
        f"warning: rollouts will be about {_lag(pack)} updates old when they are learned from, as {pack.units} units "
        f"are in flight and a batch has {pack.units_per_batch} rollout(s) of a unit; those older than "
        f"--learner.max-policy-lag {resolved.config.learner.max_policy_lag} are discarded. Use {' or '.join(remedies)}"
    )
    return [text] if remedies else []


def _idle_core_notes(resolved: ResolvedRun) -> list[str]:
    """Explain why many cores have no actor, or why units beside a GPU are too small for what their actors could do."""
    plan, config = resolved.plan, resolved.config
    idle = plan.actors < NEARLY_ALL_ACTORS * plan.wanted_actors
    rows = min(pack.rows for pack in plan.packs)
    planned = not (config.actors or config.envs_per_unit or plan.sizing.on_policy or plan.sizing.per_unit)
    small = planned and plan.sizing.on_gpu and rows < LEAST_SPARE_ROWS
    if not idle and not small:
        return []
    steps = max(config.learner.batch, *(pack.batch_rows * config.learner.rollout for pack in plan.packs))
    wanted = steps * plan.wanted_actors / plan.actors
    if small:
        units = plan.wanted_actors * config.units_per_actor / len(plan.packs)
        # Rows of a batch with which so many units beside a GPU are large and rollouts young.
        rows_wanted = LEAST_SPARE_ROWS / plan.sizing.slots * units / plan.sizing.units_per_rollout
        wanted = max(wanted, rows_wanted * config.learner.rollout)
    batch = math.ceil(wanted / 1024) * 1024
    why = "rollouts too old or " if config.mode == "async" else ""
    asked = f"batches of {config.learner.batch} steps"
    text = f"{counted(plan.actors, 'actor')}, although the cores could serve {plan.wanted_actors}: more would make "
    text += f"{why}units too small for {asked}; --learner.batch {batch} uses more"
    if not idle:
        text = f"units of {counted(rows, 'row')} are small: their actors wait for the GPU between steps, and more rows "
        text += f"would make rollouts too old for {asked}; --learner.batch {batch} makes them larger"
    return [f"note: {text}"]


def _crowd_notes(resolved: ResolvedRun) -> list[str]:
    """Warn of more environments than cores can step in a reasonable time."""
    plan, envs = resolved.plan, max(pack.envs_per_policy for pack in resolved.plan.packs)
    if plan.environments <= MANY_PER_CORE * plan.cpus:
        return []
    text = (
        f"warning: {plan.environments:,} environments on {plan.cpus} cores: making them takes long, and each is "
        f"stepped rarely; use fewer (--envs-per-unit, now {envs}) or fewer --num-policies"
    )
    return [text]
