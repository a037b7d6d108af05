"""What the displays draw: the population at one moment. Plain data."""

from __future__ import annotations

from dataclasses import dataclass, field

from pbt_rl.pbt.hypers import Values

EXTRA = "stats/"
"""What the names of the environment's own statistics begin with, in views and in TensorBoard."""


@dataclass(frozen=True)
class TaskView:
    """How a member stands in one task: means within the window, and episodes since the member changed."""

    objective: float
    raw_return: float
    episodes: int


@dataclass(frozen=True)
class MemberView:
    """One row of the leaderboard."""

    member: int
    objective: float | None
    """Mean true objective over the window; None while no episode counts, or not one of every task."""
    episodes: int
    """Episodes finished in total, over all generations."""
    generation: int
    frames: int
    values: Values
    """Present hypers and shaping."""
    initial: Values
    """What the member started the run with."""
    stats: dict[str, float]
    """Latest learning statistics (MemberStats.values), raw_return, shaped_return, length_steps (means); elo and
    win_rate where members meet; as `stats/NAME` the environment's own of the episodes that gave them (means)."""
    stopped: bool = False
    parked: bool = False
    """It waits for a slot, or for a decision, and may train again."""
    tasks: dict[str, TaskView | None] = field(default_factory=dict)
    """Every task by name, None for one without an episode; empty where there are no tasks."""

    @property
    def status(self) -> str:
        """In a word; empty where it trains."""
        return "stopped" if self.stopped else "parked" if self.parked else ""


@dataclass(frozen=True)
class RunView:
    """All that the monitor draws: the population at one moment."""

    env_id: str
    name: str
    seconds: float
    frames: int
    """Emulator frames of the whole population."""
    steps: int
    """Decisions of the whole population."""
    frames_per_second: float
    """Over the last reports; 0 until known."""
    seconds_left: float | None
    """None while unknown or without a limit."""
    members: list[MemberView]
    """In order of id."""
    replacements: int
    mutations: int
    actors: int
    actors_restarted: int
    discarded_rollouts: int
    lag_mean: float
    lag_max: int
    stage_seconds: dict[str, float]
    """Busy seconds by stage since the last view, summed over processes (`environment` from the actors)."""
    seats: int = 1
    """Of one environment: above 1 members meet."""
