"""What lies ahead of a run: estimates for people. Nothing is decided by them."""

from __future__ import annotations

from pbt_rl.config import Config
from pbt_rl.pbt.controllers import PbtController, innermost
from pbt_rl.pbt.decisions import Controller
from pbt_rl.pbt.registry import controller_entry
from pbt_rl.population.population import Population


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
