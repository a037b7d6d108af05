"""Both groups beside each other, below the leaderboard."""

from __future__ import annotations

from pbt_rl.display.ranking import CONTROL, SEPARATOR, number, standing
from pbt_rl.display.view import RunView


def control_lines(view: RunView) -> list[str]:
    """Return a line with both groups beside each other; none without controls, or before both have an objective."""
    own, others = standing(view.members), standing(view.members, control=True)
    if own is None or others is None:
        return []
    groups = (("population", own), (CONTROL, others))
    return [
        "in training: "
        + SEPARATOR.join(
            f"{name}: best {number(s.best)}, mean {number(s.mean)} ± {number(s.spread)}" for name, s in groups
        )
    ]
