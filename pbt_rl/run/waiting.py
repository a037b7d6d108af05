"""A comparison that waits long for episodes: members are not compared meanwhile, though nothing fails."""

from __future__ import annotations

from pbt_rl.display.view import RunView

LONG_WAIT = 3
"""Periods that a comparison may wait before that is said, if any episode has ended; else it is one."""


class WaitingComparison:
    """Says once that a comparison has been due for long."""

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
