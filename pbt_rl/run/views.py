"""The run as its displays see it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pbt_rl.display.view import RunView
from pbt_rl.pbt.decisions import Controller
from pbt_rl.population.dispatch import Dispatch
from pbt_rl.population.population import Population
from pbt_rl.run.discards import discarded_share
from pbt_rl.run.outlook import seconds_to_comparison, seconds_to_end
from pbt_rl.run.resolved import ResolvedRun
from pbt_rl.run.throughput import Throughput
from pbt_rl.wire.messages import Replayed

VIEW_SECONDS, MOST_VIEW_SECONDS = 1.0, 10.0
"""Between two views."""
PROGRESS_SECONDS, MOST_PROGRESS_SECONDS = 10.0, 60.0
"""Between two records of the members' progress."""
CURVE_POINTS = 2_000
"""A curve does not show more: a record of progress waits for this share of the run's time."""


def view_gap(took_seconds: float) -> float:
    """Return the seconds from one view to the next: of a thousand members one takes a good part of a second."""
    return min(max(VIEW_SECONDS, 10 * took_seconds), MOST_VIEW_SECONDS)


def progress_gap(run_seconds: float) -> float:
    """Return the seconds from one record of progress to the next: of 64 members each takes 8 kB of the journal."""
    return min(max(PROGRESS_SECONDS, run_seconds / CURVE_POINTS), MOST_PROGRESS_SECONDS)


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
) -> RunView:
    """Return the view of now. environment_seconds: CPU-seconds that environments took since the view before."""
    config, rate = resolved.config, throughput.rate()
    return RunView(
        env_id=config.env,
        name=str(config.name),
        seconds=throughput.seconds,
        frames=population.frames,
        steps=population.steps,
        frames_per_second=rate,
        seconds_left=seconds_to_end(config, population, rate, throughput.training_seconds),
        seconds_left_at_most=config.searches,
        comparison_in_seconds=seconds_to_comparison(controller, population, rate),
        members=population.views(),
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
        replayed=_of_all(population.replayed.values()),
    )


def _of_all(learners: Iterable[Mapping[str, Replayed]]) -> dict[str, Replayed]:
    """Add up what is replayed, over the learners."""
    found: dict[str, Replayed] = {}
    for learner in learners:
        for name, one in learner.items():
            so_far = found.get(name, Replayed(0, 0))
            found[name] = Replayed(
                so_far.replayed + one.replayed, so_far.of + one.of, so_far.why_not or one.why_not
            )
    return found
