"""What lies ahead of a run: its end, and the next comparison. Estimates for people; nothing is decided by them."""

from __future__ import annotations

from pbt_rl.config import Config
from pbt_rl.pbt.controllers import PbtController
from pbt_rl.pbt.decisions import Controller
from pbt_rl.pbt.registry import controller_entry
from pbt_rl.pbt.start import Started
from pbt_rl.population.population import Population

LONG_SECONDS = 3600.0
"""A first comparison that is further away than this is pointed out."""


def seconds_to_end(
    config: Config, population: Population, rate: float, training_seconds: float
) -> float | None:
    """Return the time until a budget is spent; None if it is unknown. rate: frames/s of all members.

    Of a search it is an upper bound: that of a search which gives up no further member.
    """
    left = []
    full = controller_entry(config.controller).full_frames(config, config.train_for_frames)
    if rate > 0:
        left.append(population.missing_frames(full) / rate)
    if config.train_for_seconds > 0:
        left.append(max(0.0, config.train_for_seconds - training_seconds))
    return min(left, default=None)


def seconds_to_comparison(controller: Controller, population: Population, rate: float) -> float | None:
    """Return the time until the next comparison is due, 0 if it waits for episodes; None if it is unknown."""
    training = sum(not member.stopped for member in population.members)
    if isinstance(controller, Started):
        controller = controller.controller
    if not isinstance(controller, PbtController) or rate <= 0 or training < 2:
        return None
    return controller.frames_left(population.report()) * training / rate


def late_comparison_warning(config: Config, seconds: float | None, least_frames: int) -> str | None:
    """Return a line if the first comparison lies hours away. seconds: until the next. least_frames: of any member."""
    first = max(config.pbt.start_frames, config.pbt.period_frames)
    if seconds is None or seconds < LONG_SECONDS or least_frames >= first:
        return None
    return (
        f"note: the first comparison of members is about {seconds / 3600:.0f} h away (at {first:,} frames of each, "
        "--pbt.start-frames and --pbt.period-frames)"
    )
