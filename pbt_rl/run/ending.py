"""End conditions of a run: a signal, a callback, a spent budget, a reached objective, or no member left to train."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from signal import Signals

from pbt_rl.config import Config
from pbt_rl.population.population import Population
from pbt_rl.population.slots import Slots
from pbt_rl.run.callbacks import Callbacks
from pbt_rl.run.throughput import Throughput


@dataclass(eq=False)
class RunEnd:
    """End condition of a run. The properties have no side effects."""

    config: Config
    population: Population
    slots: Slots
    throughput: Throughput
    callbacks: Callbacks
    signal: int | None = field(default=None, init=False)
    """First received signal that ends the run. None: no signal was received."""

    @property
    def why(self) -> str | None:
        """Reason for the end. None while the run continues."""
        if self.signal is not None:
            return f"interrupted by {Signals(self.signal).name}"
        if self.callbacks.ended is not None:
            return self.callbacks.ended
        return self._spent()

    @property
    def remedy(self) -> str:
        """Text for the user: the reached limit with its option, or "the run is complete" if no limit ended the run."""
        config, frames = self.config, self.population.least_frames
        total, seconds = "is a total, and {:,} is reached".format, math.ceil(self.throughput.training_seconds)
        spent = {
            "frames": f"--train-for-frames {config.train_for_frames} {total(frames)}",
            "seconds": f"--train-for-seconds {config.train_for_seconds:g} {total(seconds)}",
            "objective": f"--stop-at-objective {config.stop_at_objective} is reached",
        }.get(self._spent() or "")
        return "the run is complete" if spent is None else f"{spent}: give more to continue"

    def _spent(self) -> str | None:
        """Return the reason for a planned end, such as "frames". None before the planned end."""
        config, population = self.config, self.population
        if population.has_reached(config.stop_at_objective):
            return "objective"
        if 0 < config.train_for_seconds <= self.throughput.training_seconds:
            return "seconds"
        if population.all_stopped or self.slots.stuck:
            return "all members are done"
        if not config.searches and population.least_frames >= config.train_for_frames:
            return "frames"
        return None
