"""Options of the controller that follows a recorded run."""

from __future__ import annotations

from dataclasses import dataclass

from pbt_rl.options import option


@dataclass(frozen=True)
class ScheduleConfig:
    """Follow the schedule of a recorded run: every member does, with its own weights."""

    run: str = ""
    """Folder of the recorded run."""
    member: str = option(
        "best",
        test=lambda member: member == "best" or member.isdecimal(),
        remedy="`best` or the id of a member",
    )
    """Member whose schedule is followed, along its ancestry: `best` or an id."""
    hold_final: bool = False
    """Hold the schedule's last values from the start (the paper's ablation) instead of following it."""
