"""View of a run for its displays, and summary at its end."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

from pbt_rl.config import Config
from pbt_rl.controllers.controllers import PbtController, innermost
from pbt_rl.controllers.decisions import Controller
from pbt_rl.controllers.lineage import Lineage, Noise
from pbt_rl.display.ranking import best, best_member, in_time, number, replacements
from pbt_rl.display.terminal import counted
from pbt_rl.display.view import RunView
from pbt_rl.envs.lookup import backend_of
from pbt_rl.learner.simulators import plan as rows_of_simulators
from pbt_rl.population.dispatch import Dispatch
from pbt_rl.population.population import Population
from pbt_rl.record.journal import journal_events
from pbt_rl.registry import READY_RULES
from pbt_rl.run.resolved import ResolvedRun
from pbt_rl.run.shown import compares, environments_each, episodes_each, first_comparison, tuned_names
from pbt_rl.run.throughput import Throughput


def discarded_share(resolved: ResolvedRun, discarded: int, steps: int) -> float:
    """Return the fraction of rollouts that were discarded.

    discarded: number of discarded rollouts, each with the rows of one policy in one vector env.
    steps: steps of all members.
    """
    packs = resolved.plan.packs
    envs = sum(pack.envs_per_policy for pack in packs) / len(packs)
    sampled = steps / (envs * resolved.config.learner.rollout)
    return min(1.0, discarded / sampled) if sampled >= 1 else 0.0


UNCOMPARED = "members were never compared"
"""First words of the line that explains why a run had no comparison."""
VIEW_SECONDS, MOST_VIEW_SECONDS = 1.0, 10.0
"""Minimum and maximum seconds between two views."""
LEAST_PROGRESS_SECONDS, PROGRESS_SECONDS, MOST_PROGRESS_SECONDS = 0.5, 10.0, 60.0
"""Seconds between two progress records: in the first seconds of a run, later, and after days."""
CURVE_POINTS = 2_000
"""The interval of progress records is at least 1 / CURVE_POINTS of the run time, up to MOST_PROGRESS_SECONDS."""


def view_gap(took_seconds: float) -> float:
    """Return the seconds until the next view: longer after a slow view. (A view of 1,000 members takes almost 1 s.)

    took_seconds: duration of the last view.
    """
    return min(max(VIEW_SECONDS, 10 * took_seconds), MOST_VIEW_SECONDS)


def progress_gap(run_seconds: float) -> float:
    """Return the seconds until the next progress record. (With 64 members, a record has 8 kB in the journal.)

    In the first 100 s the interval is a tenth of the run time, at least LEAST_PROGRESS_SECONDS, because short runs need
    curves, too.
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
    learns: bool,
    actors_restarted: int,
    learners_replaced: int,
    begun: bool,
    stepping: int,
) -> RunView:
    """Build a view of the current state.

    environment_seconds: CPU-seconds of environments since the last view.
    learns: True if a learner has a batch to learn from. begun: True if training has begun.
    stepping: number of actors that have received actions.
    """
    config, rate, members = resolved.config, throughput.steady_rate(), population.views()
    controls = [replace(m, control=True) for m in members[config.num_policies :]]
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
        learns=learns,
        tuned=tuned_names(resolved),
        waits_for="" if throughput.trains else _waits_for(resolved, begun=begun, stepping=stepping),
        seconds_left_at_most=config.searches,
        comparison_in_seconds=seconds_to_comparison(
            controller, population, rate, throughput.training_seconds
        ),
        members=[*members[: config.num_policies], *controls],
        replacements=dispatch.replacements,
        mutations=dispatch.mutations,
        actors=resolved.plan.actors,
        actors_restarted=actors_restarted,
        learners_replaced=learners_replaced,
        discarded_rollouts=population.discarded,
        lag_mean=population.lag_mean,
        lag_max=population.lag_max,
        busy_threads=throughput.busy_threads(environment_seconds),
        agents=resolved.spec.agents,
        discarded_share=discarded_share(resolved, population.discarded, population.steps),
        accelerated=[*population.accelerated.values()],
    )


def seconds_to_end(
    config: Config, population: Population, rate: float, training_seconds: float
) -> float | None:
    """Estimate the seconds until a budget is spent. None if unknown. rate: frames/s of all members.

    In a search, the result is an upper bound, because the search may stop members early.
    """
    left = []
    full = config.full_frames
    if rate > 0:
        missing = sum(max(0, full - one.frames) for one in population.members if not one.stopped)
        left.append(missing / rate)
    if config.train_for_seconds > 0:
        left.append(max(0.0, config.train_for_seconds - training_seconds))
    return min(left, default=None)


def seconds_to_comparison(
    controller: Controller, population: Population, rate: float, training_seconds: float = 0.0
) -> float | None:
    """Estimate the seconds until the next comparison. None if unknown. 0 while the comparison waits for episodes.

    rate: frames/s of all members.
    """
    training = sum(not member.stopped for member in population.members)
    controller, report = innermost(controller, population.report(training_seconds))
    if not isinstance(controller, PbtController) or rate <= 0 or min(training, len(report.members)) < 2:
        return None
    return controller.frames_left(report) * training / rate


def _waits_for(resolved: ResolvedRun, *, begun: bool, stepping: int) -> str:
    if resolved.spec.simulator:
        return rows_of_simulators.waits_for(resolved.plan.packs, begun=begun)
    if begun:
        begins = backend_of(resolved.config.env, resolved.options)[0].begins
        ready = f" ({stepping} of {counted(resolved.plan.actors, 'actor')} ready)"
        return begins if resolved.spread else begins + ready  # nodes do not report `stepping`
    learners = "learners load" if len(resolved.plan.packs) > 1 else "the learner loads"
    return f"{learners} torch and the network"


LONG_WAIT = 3
"""Number of usual waits after which a late comparison gets a warning. If no episode has ended, one wait is enough."""


class WaitingComparison:
    """Detector of a comparison that waits much longer for episodes than usual. It returns at most one warning.

    usual_frames: usual wait of a comparison for episodes, in frames of a member.
    """

    def __init__(self, usual_frames: int) -> None:
        self._usual = usual_frames
        self._due_frames: int | None = None
        """Population clock at which the comparison was due. None: no comparison is due."""
        self._warned = False

    def note_decisions(self) -> None:
        """Record that the controller has decided, and the present wait is over.

        (Without this call, several short waits of a fast run could look like one long wait.)
        """
        self._due_frames = None

    def __call__(self, view: RunView) -> list[str]:
        """Return the warnings for this view."""
        frames = min((one.frames for one in view.members if not (one.stopped or one.control)), default=0)
        if view.comparison_in_seconds != 0 or self._due_frames is None:
            self._due_frames = frames if view.comparison_in_seconds == 0 else None
            return []
        waited, ended = frames - self._due_frames, any(one.episodes for one in view.members)
        if self._warned or waited < (LONG_WAIT if ended else 1) * self._usual:
            return []
        self._warned = True
        text = (
            "WARNING: a comparison has been overdue for longer than is usual in this run. It needs ended episodes in "
            f"each environment of a member, but {'episodes are long' if ended else 'no episode has ended'}: limit the "
            "length of episodes (gymnasium.wrappers.TimeLimit), or use fewer environments (--envs-per-vector-env)"
        )
        return [text]


# -- the result of a run ------------------------------------------------------------------------------------


def verdict(resolved: ResolvedRun, view: RunView, folder: Path) -> tuple[str, str]:
    """Return (summary, reason). The summary contains the best member, the comparisons and the lineage.

    reason: explanation if a whole run had no comparison, or an empty text.
    folder: folder of the run, whose journal is read. Raises ConfigError if the journal is damaged.
    """
    lineage, noise = Lineage(), Noise()
    for event in journal_events(folder):
        lineage.take(event)
        noise.take(event)
    parts = [_best(view)]
    if not compares(resolved.config):
        return parts[0], ""
    if not noise.comparisons:
        return parts[0], _uncompared(resolved, view)
    parts.append(f"{replacements(view)} in {counted(noise.comparisons, 'comparison')}")
    population = [m for m in lineage.members if m < resolved.config.num_policies]
    founders = Counter(lineage.line(lineage.present(m).key)[0].member for m in population)
    if view.replacements:
        shares = (f"{n} of {len(population)} from member {founder}" for founder, n in founders.most_common(3))
        rest = f" and {len(founders) - 3} more" if len(founders) > 3 else ""
        parts.append(f"members descend: {', '.join(shares)}{rest}")
    return "; ".join(parts), ""


def _best(view: RunView) -> str:
    """Format the best member with the score in the final evaluation, or else with the score in training."""
    named = best_member(view.members)
    final = next((m.final for m in view.members if m.member == named), None)
    if final is None:
        return best(view)
    chance = "" if view.random_policy is None else f", random policy {number(view.random_policy)}"
    return f"best: member {named}, {number(final.mean)} in {counted(final.episodes, 'evaluation episode')}{chance}"


def _uncompared(resolved: ResolvedRun, view: RunView) -> str:
    """Explain why there was no comparison, with a remedy. Empty if the run ended before its budget was spent."""
    config, pbt = resolved.config, resolved.config.pbt
    first, trained = first_comparison(config), view.training_seconds
    by_time = READY_RULES[pbt.ready].by_time
    frames = min((m.frames for m in view.members if not m.stopped), default=0)
    reached = trained if by_time else frames
    unit = "s" if by_time else "frames each"
    said = f"{UNCOMPARED}: the first comparison is due at {first:,.0f} {unit}, "
    if reached < first:
        scale = first / max(reached, 1)
        if config.train_for_seconds:
            longer = float(f"{1.5 * scale * trained:.2g}")
            enough = longer < config.train_for_seconds
            budget = f"give --train-for-seconds {longer:.0f}" + f" ({in_time(longer)})" * (longer >= 120)
        else:
            needed = float(f"{scale * frames:.2g}") if by_time else first
            enough = needed < config.train_for_frames
            budget = f"give --train-for-frames {2 * needed:.0f}"
        if enough:
            return ""  # it ended before its budget was spent
        kind = "seconds" if by_time else "frames"
        lower = f"lower --pbt.start-{kind} and --pbt.period-{kind}"
        return f"{said}but this run ended at {reached:,.0f}: {budget}, or {lower}"
    if episodes_each(resolved) == 1 and all(m.complete for m in view.members):
        return f"{said}but this run ended first: train longer"
    nearest = max(view.members, key=lambda m: m.ended)
    option = "--rows" if resolved.plan.packs[0].groups else "--envs-per-vector-env"
    fewer = max(1, resolved.plan.packs[0].envs_per_policy // 2)
    return (
        f"{said}but needs {counted(episodes_each(resolved), 'episode')} in each of a member's "
        f"{environments_each(resolved)} environments "
        f"(member {nearest.member}: {nearest.ended} of {nearest.environments}): "
        f"give {option} {fewer}, or train longer"
    )
