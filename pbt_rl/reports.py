"""What the processes tell the supervisor, and what the supervisor tells the monitor. Plain data, no behaviour."""

from __future__ import annotations

from dataclasses import dataclass, field

from pbt_rl.pbt.hypers import Values

EXTRA = "stats/"
"""What the names of the environment's own statistics begin with, in views and in TensorBoard."""


@dataclass(frozen=True)
class Episode:
    """One finished episode of one member.

    generation: the member's generation when the episode began; an older one does not count for the objective.
    task: index in `EnvSpec.tasks`; 0 where there are none.
    """

    member: int
    generation: int
    objective: float
    raw_return: float
    shaped_return: float
    length_steps: int
    extra: dict[str, float] = field(default_factory=dict)
    """`info["episode_extra_stats"]`."""
    task: int = 0


@dataclass(frozen=True)
class Game:
    """One finished game of an environment of several agents, seat by seat. Only games whose players are all known."""

    members: tuple[int, ...]
    generations: tuple[int, ...]
    """Of each member when the game began; with an older one it does not count."""
    objectives: tuple[float, ...]


@dataclass(frozen=True)
class MemberStats:
    """One member's learning statistics since the last report (means over its updates).

    values: `policy_loss`, `value_loss`, `entropy`, `kl`, `clip_fraction`, `explained_variance`, `grad_norm`,
    `learning_rate_in_use` (after the schedule), `lag` (updates between acting and learning); absent while the
    member has had no update since the last report.
    """

    member: int
    steps: int
    """Steps learned from, in total (also counted: none that was masked or discarded)."""
    frames: int
    """Emulator frames sampled for it, in total, over all generations."""
    updates: int
    values: dict[str, float] = field(default_factory=dict)
    generation: int = 0
    """The generation that the learner knows it in: `broken` is told of that one."""
    broken: bool | None = None
    """All optimiser steps since the last report were left out, as no gradient was finite. None without any step."""


@dataclass(frozen=True)
class Seat:
    """One place of a pack changes hands; None stands for nobody.

    generation, values: of the member that enters, who goes on with them.
    """

    place: int
    leaves: int | None
    enters: int | None
    generation: int
    values: Values


@dataclass(frozen=True)
class LearnerReport:
    """What one learner process did since its last report (sums and means over that time unless said otherwise)."""

    device: str
    members: list[MemberStats]
    episodes: list[Episode]
    stage_seconds: dict[str, float]
    """Busy thread-seconds by stage: `inference`, `learning`, `waiting` (inference had nothing to serve)..."""
    lag_max: int
    """Largest policy lag of any step learned from, ever, in updates."""
    discarded_rollouts: int
    """Rollouts of older generations or over the lag limit that were thrown away, in total."""
    games: list[Game] = field(default_factory=list)
    """Finished games, where environments have several seats."""


@dataclass(frozen=True)
class Applied:
    """The proof that a decision was applied, read back from where it acts.

    parked: the member holds no place. Its state was changed where it is kept, nothing acts on its values, and the
    `in_...` are empty; another proof, without a donor, follows when it takes a place.
    """

    member: int
    donor: int | None
    generation: int
    milliseconds: float
    """From the moment the learner took up the message to new weights serving inference."""
    in_optimizer: dict[str, float]
    in_loss: dict[str, float]
    in_environment: dict[str, float]
    """The shaping table as the actors read it, without the prefix."""
    donor_unchanged: bool
    parked: bool = False


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
    """It waits for a place, or for a decision, and may train again."""
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
