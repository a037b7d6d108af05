"""The end of a run: a budget is spent, all decisions are applied, and the run is saved, as far as learners answer."""

from __future__ import annotations

from collections.abc import Callable, Collection

from pbt_rl.config import Config
from pbt_rl.population.dispatch import Dispatch
from pbt_rl.population.population import Population
from pbt_rl.run.awake import Patience
from pbt_rl.run.checkpointing import Checkpointing
from pbt_rl.run.comparisons import Comparisons
from pbt_rl.run.fleet import ActorFailed, Event, Fleet, LearnerLost
from pbt_rl.wire.messages import PauseTraining

PATIENCE_SECONDS = 0.1
SAVE_SECONDS = 30.0
"""Without any progress for this long the run is not saved at its end. (40 members on a slow disk take minutes.)"""
ANSWER_SECONDS = 8.0
"""A learner that has started and gives no sign of life for this long is not waited for."""


def spent(
    config: Config, population: Population, comparisons: Comparisons, training_seconds: float
) -> str | None:
    """Return which budget is spent, or why no member trains any more; None if the run goes on."""
    if population.has_reached(config.stop_at_objective):
        return "objective"
    if 0 < config.train_for_seconds <= training_seconds:
        return "seconds"
    if population.all_stopped or comparisons.stuck:
        return "all members are done"
    if not config.searches and population.least_frames >= config.train_for_frames:
        return "frames"
    return None


def save_at_end(
    fleet: Fleet,
    packs: int,
    ready: Collection[int],
    checkpoints: Checkpointing,
    dispatch: Dispatch,
    handle: Callable[[Fleet, Event], None],
    begin: Callable[[Fleet], None],
    hurried: Callable[[], bool],
) -> str:
    """Pause all learners and save the run; return why it was not saved, or nothing.

    ready: packs whose learner has started. handle: takes the events of the fleet. begin: begins a checkpoint. hurried:
    whether nothing is to be waited for.
    """
    for pack in range(packs):
        fleet.send(pack, PauseTraining())
    checkpoints.ask_last()
    moved, patience = checkpoints.moved, Patience(SAVE_SECONDS)
    while checkpoints.busy or dispatch.busy:
        if hurried():
            return "it was interrupted again"
        if moved != checkpoints.moved:
            moved = checkpoints.moved
            patience.renew()
        if patience.over():
            return f"nothing could be written for {SAVE_SECONDS:.0f} s"
        for event in fleet.events(PATIENCE_SECONDS):
            if isinstance(event, LearnerLost):
                return event.text
            if not isinstance(event, ActorFailed):  # no actor is needed any more
                handle(fleet, event)
        silent = next((p for p in ready if fleet.silent_seconds(p) > ANSWER_SECONDS), None)
        if silent is not None:
            return f"learner {silent} does not answer"
        checkpoints.step()
        if checkpoints.due and not dispatch.busy:
            begin(fleet)
    return checkpoints.failure
