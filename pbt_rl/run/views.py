"""The run as its displays see it: its plan, and how it is now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pbt_rl.config import Config
from pbt_rl.controllers.controllers import PbtController, innermost
from pbt_rl.controllers.decisions import Controller
from pbt_rl.controllers.registry import controller_entry
from pbt_rl.display.terminal import counted
from pbt_rl.display.view import MemberView, RunView
from pbt_rl.envs.registry import begins
from pbt_rl.learner.samplers import simulators
from pbt_rl.population.dispatch import Dispatch
from pbt_rl.population.matchups import run as matchups
from pbt_rl.population.population import Population
from pbt_rl.run import control
from pbt_rl.run.memory_check import memory_notes
from pbt_rl.run.network import network_sees
from pbt_rl.run.plan import PackPlan
from pbt_rl.run.resolved import ResolvedRun
from pbt_rl.run.shown import comparison_notes, describe_comparisons, tuned_names
from pbt_rl.run.throughput import Throughput
from pbt_rl.run.unread import unread


def discarded_share(resolved: ResolvedRun, discarded: int, steps: int) -> float:
    """Return the share of discarded rollouts among all. discarded: rollouts of one policy; steps: of all members."""
    sampled = rollouts_in(resolved, steps)
    return min(1.0, discarded / sampled) if sampled >= 1 else 0.0


def rollouts_in(resolved: ResolvedRun, steps: int) -> float:
    """Return how many rollouts of one policy these steps make."""
    packs = resolved.plan.packs
    envs = sum(pack.envs_per_policy for pack in packs) / len(packs)
    return steps / (envs * resolved.config.learner.rollout)


VIEW_SECONDS, MOST_VIEW_SECONDS = 1.0, 10.0
"""Between two views."""
LEAST_PROGRESS_SECONDS, PROGRESS_SECONDS, MOST_PROGRESS_SECONDS = 0.5, 10.0, 60.0
"""Between two records of the members' progress: at a run's first moments, usually, and in a run of days."""
CURVE_POINTS = 2_000
"""A curve does not show more: a record of progress waits for this share of the run's time."""


def view_gap(took_seconds: float) -> float:
    """Return the seconds from one view to the next: of a thousand members one takes a good part of a second."""
    return min(max(VIEW_SECONDS, 10 * took_seconds), MOST_VIEW_SECONDS)


def progress_gap(run_seconds: float) -> float:
    """Return the seconds from one record of progress to the next: of 64 members each takes 8 kB of the journal.

    A run of seconds has a curve as well: early gaps are a tenth of the time so far.
    """
    early = min(max(LEAST_PROGRESS_SECONDS, run_seconds / 10), PROGRESS_SECONDS)
    return max(early, min(run_seconds / CURVE_POINTS, MOST_PROGRESS_SECONDS))


def run_view(
    resolved: ResolvedRun,
    controller: Controller,
    population: Population,
    dispatch: Dispatch,
    throughput: Throughput,
    environment_seconds: float,
    *,
    actors_restarted: int,
    learners_replaced: int,
    begun: bool,
) -> RunView:
    """Return the view of now. environment_seconds: CPU-seconds that environments took since the view before.

    begun: all learners have been ready.
    """
    config, rate = resolved.config, throughput.steady_rate()
    return RunView(
        env_id=config.env,
        name=str(config.name),
        seconds=throughput.seconds,
        frames=population.frames,
        steps=population.steps,
        frames_per_second=throughput.rate(),
        seconds_left=seconds_to_end(config, population, rate, throughput.training_seconds),
        training_seconds=throughput.training_seconds,
        stalled_seconds=throughput.stalled_seconds,
        tuned=tuned_names(resolved),
        waits_for="" if throughput.trains else _waits_for(resolved, begun=begun),
        seconds_left_at_most=config.searches,
        comparison_in_seconds=seconds_to_comparison(
            controller, population, rate, throughput.training_seconds
        ),
        members=_marked(population.views(), config.num_policies),
        replacements=dispatch.replacements,
        mutations=dispatch.mutations,
        actors=resolved.plan.actors,
        actors_restarted=actors_restarted,
        learners_replaced=learners_replaced,
        discarded_rollouts=population.discarded,
        lag_mean=population.lag_mean,
        lag_max=population.lag_max,
        busy_threads=throughput.busy_threads(environment_seconds),
        seats=resolved.spec.seats,
        discarded_share=discarded_share(resolved, population.discarded, population.steps),
        accelerated=[*population.accelerated.values()],
    )


def seconds_to_end(
    config: Config, population: Population, rate: float, training_seconds: float
) -> float | None:
    """Return the time until a budget is spent; None if it is unknown. rate: frames/s of all members.

    Of a search it is an upper bound: that of a search which gives up no further member.
    """
    left = []
    full = controller_entry(config.controller).full_frames(config, config.train_for_frames)
    if rate > 0:
        missing = sum(max(0, full - one.frames) for one in population.members if not one.stopped)
        left.append(missing / rate)
    if config.train_for_seconds > 0:
        left.append(max(0.0, config.train_for_seconds - training_seconds))
    return min(left, default=None)


def seconds_to_comparison(
    controller: Controller, population: Population, rate: float, training_seconds: float = 0.0
) -> float | None:
    """Return the time until the next comparison is due, 0 if it waits for episodes; None if it is unknown."""
    training = sum(not member.stopped for member in population.members)
    controller, report = innermost(controller, population.report(training_seconds))
    if not isinstance(controller, PbtController) or rate <= 0 or min(training, len(report.members)) < 2:
        return None
    return controller.frames_left(report) * training / rate


def _marked(members: Sequence[MemberView], population: int) -> list[MemberView]:
    """Mark the controls, whose ids follow those of the population."""
    return [*members[:population], *(replace(m, control=True) for m in members[population:])]


def _waits_for(resolved: ResolvedRun, *, begun: bool) -> str:
    own = simulators(resolved.spec)
    if own is not None:
        return own.waits_for(resolved.plan.packs, begun=begun)
    if begun:
        return begins(resolved.config.env, resolved.options)
    learners = "learners load" if len(resolved.plan.packs) > 1 else "the learner loads"
    return f"{learners} torch and the network"


# -- the plan --------------------------------------------------------------------------------------------


def describe_plan(resolved: ResolvedRun) -> list[str]:
    """Return lines that name the members, actors and threads of each device, and notes."""
    spec, plan, config = resolved.spec, resolved.plan, resolved.config
    resident = sum(pack.slots for pack in plan.packs)
    turns = f" ({resident} resident at a time)" if resident < config.members else ""
    controls = f" and {counted(config.controls, 'control')}" if config.controls else ""
    first_line = (
        f"{config.env}: {counted(config.num_policies, 'policy', 'policies')}{controls}{turns}, "
        f"{config.algo}, {config.mode}; "
        f"{counted(plan.actors, 'actor')}, {counted(plan.environments // spec.seats, 'environment')}"
        f"{f' of {spec.seats} seats' if spec.seats > 1 else ''} on {counted(plan.cpus, 'core')}; "
        f"1 step = {counted(spec.frame_skip, 'frame')}"
    )
    lines = [first_line]
    for number, pack in enumerate(plan.packs):
        steps, asked = pack.batch_rows * config.learner.rollout, config.learner.batch
        wanted = f" ({asked} asked for)" if steps != asked and not plan.sizing.per_unit else ""
        lines.append(
            f"learner {number} on {pack.device}: member{'s' * (len(pack.members) > 1)} {_ids(pack.members)}"
            f"{'' if pack.slots == len(pack.members) else ' in ' + counted(pack.slots, 'slot')}; "
            f"{counted(pack.environments // pack.slots, 'row' if spec.seats > 1 else 'environment')} of each "
            f"({_sampled_by(pack)}); "
            f"batch {steps} steps per policy{wanted}; "
            f"{counted(pack.threads, 'thread')}"
        )
    least, most = plan.rollout_age
    if most:
        lines.append(
            f"rollouts are learned from when they are {least} to {most} optimiser steps old, "
            f"{config.optimizer_steps_of_batch} of which are a batch (docs/lab/rollout-age.md)"
        )
    lines += [f"warning: {mistake}" for mistake in spec.mistakes]
    lines += [f"note: {note}" for note in spec.notes] + network_sees(config, spec)
    lines += [*describe_comparisons(resolved), *comparison_notes(resolved)]
    lines += [*control.notes(config), *hours_note(config)]
    if spec.seats > 1:
        lines.append(matchups.note(config, plan.packs))
    if not resolved.spread:  # else the memory is that of other machines
        lines += memory_notes(resolved)
    return [*lines, *unread(resolved)]


def hours_note(config: Config) -> list[str]:
    """Return what `--hours` means."""
    if config.hours is None:
        return []
    times = f", compared every {config.pbt.period_seconds:.3g} s" if config.pbt.ready == "timed" else ""
    return [f"--hours {config.hours:g}: {config.train_for_seconds:,.0f} s of training{times}"]


def _sampled_by(pack: PackPlan) -> str:
    if pack.groups:
        return "1 simulator on the device"
    return (
        f"{counted(pack.actors, 'actor')} x {counted(pack.units_per_actor, 'unit')} of {pack.envs_per_policy}"
    )


def _ids(members: tuple[int, ...]) -> str:
    """List all ids, or the first and the last of many."""
    if len(members) <= 16:
        return ", ".join(map(str, members))
    return f"{', '.join(map(str, members[:3]))}, ... {members[-1]} ({len(members)})"


LONG_WAIT = 3
"""Periods that a comparison may wait before that is said, if any episode has ended; else it is one."""


class WaitingComparison:
    """Says once that a comparison has waited long for episodes: members are not compared, though nothing fails."""

    def __init__(self, period_frames: int) -> None:
        self._period = period_frames
        self._due_frames: int | None = None
        """Frames of the member with the fewest, when the comparison was due."""

    def __call__(self, view: RunView) -> list[str]:
        """Return what is to be said now."""
        frames = min((one.frames for one in view.members if not (one.stopped or one.control)), default=0)
        if view.comparison_in_seconds != 0 or self._due_frames is None:
            self._due_frames = frames if view.comparison_in_seconds == 0 else None
            return []
        waited, ended = frames - self._due_frames, any(one.episodes for one in view.members)
        if waited < (LONG_WAIT if ended else 1) * self._period:
            return []
        text = (
            "WARNING: a comparison of members has waited for more than --pbt.period-frames: "
            f"{'episodes are long' if ended else 'no episode has ended'}, and every environment of a member has to end "
            "one. Let episodes end (such as by a TimeLimit), or give each member fewer environments"
        )
        return [text]
