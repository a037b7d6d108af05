"""How many replacements of a run are no more than the noise of the windows that they were decided by. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pbt_rl.controllers.decisions import Evaluate, Replace
from pbt_rl.controllers.welch import welch_p
from pbt_rl.record.events import Round

LEVEL = 0.05


@dataclass
class Noise:
    """Counts over the rounds of a journal.

    A replacement is within the noise if Welch's two-sided test does not tell the member's window of episodes from its
    donor's at `LEVEL`. Episodes of a window are of weights that learn meanwhile, so the test is a rough one.
    """

    comparisons: int = 0
    replacements: int = 0
    """By the present weights of another member; those by a remembered state have no window to compare."""
    within: int = 0
    first_frames: int = 0
    last_frames: int = 0
    """Of the population's clock at the first and last comparison."""

    def note(self, event: Round) -> None:
        """Count a round."""
        windows = {m.member: m.objectives for m in event.report.members}
        if not all(isinstance(d, Evaluate) for d in event.decisions):
            self.comparisons += 1
            self.first_frames = self.first_frames or event.frames
            self.last_frames = event.frames
        for decision in event.decisions:
            if not isinstance(decision, Replace) or decision.donor_generation is not None:
                continue
            if decision.donor == decision.member or not {decision.donor, decision.member} <= windows.keys():
                continue
            self.replacements += 1
            pair = windows[decision.member], windows[decision.donor]
            if all(map(math.isfinite, (*pair[0], *pair[1]))):  # a broken member is not replaced by luck
                self.within += welch_p(*pair) >= LEVEL
