"""Plain-data view of the population, with display metadata.

A run statistic is one field of `RunView`. TensorBoard, the terminal and summary.json show it as its metadata describes.
To add one, add a field here and its value in the supervisor. Loss statistics need no code: each name in
`MemberView.stats` that is not listed below is shown as a learning statistic.

For displays other than the terminal and TensorBoard see `trackers`.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from pbt_rl.actors.messages import Replayed
from pbt_rl.controllers.hypers import Values

EXTRA = "stats/"
"""Prefix of the environment's own statistics, in views and in TensorBoard."""
EPISODE_STATS = ("raw_return", "shaped_return", "length_steps")
"""Names in `MemberView.stats` of means over a member's last episodes."""
MATCHUP_STATS = ("elo", "win_rate")
"""Names in `MemberView.stats` that exist only for multi-agent environments."""


@dataclass(frozen=True)
class TaskView:
    """One member in one task: means over the window, and the number of episodes since the member's last change."""

    objective: float
    raw_return: float
    episodes: int


@dataclass(frozen=True)
class FinalGames:
    """Final evaluation of a member: mean and std of the true objective."""

    mean: float
    spread: float
    episodes: int
    halves: tuple[float, float] | None = None
    """Means of the even and the odd episodes: one half selects a member of a group, the other scores it."""


@dataclass(frozen=True)
class Evaluation:
    """Evaluation of the best member during training. frames: population clock at the evaluated checkpoint."""

    frames: int
    all_frames: int
    """Frames of the whole population at that checkpoint."""
    member: int
    generation: int
    mean: float = 0.0
    """Mean true objective over the episodes; with tasks, over the tasks."""
    spread: float = 0.0
    """Std over the same."""
    episodes: int = 0
    seconds: float = 0.0
    """Duration of the evaluation."""


@dataclass(frozen=True)
class MemberView:
    """One member at one moment: a row of the leaderboard."""

    member: int
    objective: float | None
    """Mean true objective over the window. None until an episode (with tasks: one of each) counts."""
    episodes: int
    """Number of finished episodes, over all generations."""
    generation: int
    frames: int
    values: Values
    """Current hypers and shaping."""
    initial: Values
    """Hypers and shaping at the start of the run."""
    stats: dict[str, float]
    """Latest statistics by name: `EPISODE_STATS`, `MATCHUP_STATS`, `stats/NAME` for those of the environment. All other
    names are learning statistics (`MemberStats.values`)."""
    stopped: bool = False
    parked: bool = False
    """Waits for a slot or a decision, and may train again."""
    complete: bool = True
    """True once each environment has ended an episode since the last change. Until then the means cover the shortest
    episodes."""
    ended: int = 0
    """Number of environments that have ended an episode since the last change."""
    environments: int = 0
    """Number of the member's environments, as far as their episodes can be told apart."""
    early: float | None = None
    """Mean objective of the last episodes since the last change, even if they do not count yet. None before any."""
    tasks: dict[str, TaskView | None] = field(default_factory=dict)
    """Task name -> view, None for a task without an episode. Empty if there are no tasks."""
    final: FinalGames | None = None
    """None before the end, and for a member without a final evaluation."""
    control: bool = False
    """Member of the control group: never compared, changed or copied."""

    @property
    def status(self) -> str:
        """`stopped`, `parked`, or empty for a training member."""
        return "stopped" if self.stopped else "parked" if self.parked else ""

    @property
    def learning_stats(self) -> dict[str, float]:
        """Statistics of the loss and the optimiser, under the learner's names."""
        known = (*EPISODE_STATS, *MATCHUP_STATS)
        return {k: v for k, v in self.stats.items() if k not in known and not k.startswith(EXTRA)}


@dataclass(frozen=True)
class Statistic:
    """Display of one field of a `RunView`. An empty part is not shown.

    tag: TensorBoard tag of the population. key: in summary.json; a dot nests.
    """

    tag: str = ""
    key: str = ""


def shown(default: Any = MISSING, **how: Any) -> Any:
    """Declare a field with a `Statistic`. how: arguments of the `Statistic`."""
    return field(default=default, metadata={"statistic": Statistic(**how)})


@dataclass(frozen=True, kw_only=True)
class RunView:
    """Input of all displays: the population and the run's statistics at one moment."""

    env_id: str
    name: str
    seconds: float = shown(key="seconds")
    frames: int = shown(key="frames")
    """Emulator frames of the whole population."""
    steps: int = shown(key="steps")
    """Environment steps of the whole population."""
    frames_per_second: float = shown(tag="throughput/frames_per_second")
    """Over the last reports; 0 until known. (summary.json has the mean over the steady part of the run.)"""
    seconds_left: float | None
    """None if unknown or unlimited."""
    members: list[MemberView]
    """In order of id."""
    replacements: int = shown(tag="pbt/replacements", key="replacements")
    mutations: int = shown(tag="pbt/mutations")
    """Mutations of members that kept their weights."""
    actors: int
    actors_restarted: int = shown(tag="throughput/actors_restarted", key="actors_restarted")
    learners_replaced: int = shown(tag="throughput/learners_replaced", key="learners_replaced")
    lag_mean: float = shown(tag="throughput/lag_mean", key="policy_lag.mean")
    """Optimiser steps between the behaviour policy and the policy that learns from its rollouts."""
    lag_max: int = shown(tag="throughput/lag_max", key="policy_lag.max")
    discarded_rollouts: int = shown(tag="throughput/discarded_rollouts", key="discarded_rollouts")
    busy_threads: dict[str, float]
    """Busy threads by stage, summed over processes, mean over the last minute. `environment`: threads of the actors.
    Empty in the first seconds."""
    training_seconds: float = shown(0.0, key="training_seconds")
    """`seconds` without start-up: counts towards a budget of seconds."""
    waits_for: str = ""
    """Start-up step before the first frames; empty afterwards."""
    stalled_seconds: float = 0.0
    """Seconds without new frames, since the start or if unusually long; otherwise 0."""
    learns: bool = False
    """True while a learner has a batch to learn from."""
    tuned: frozenset[str] = frozenset()
    """Names of the hypers and shaping values that the controller may change."""
    seconds_left_at_most: bool = False
    """`seconds_left` is an upper bound, because a search may evict members."""
    comparison_in_seconds: float | None = None
    """Seconds until the next comparison; 0 if it waits for episodes; None if unknown or if there is none."""
    agents: int = 1
    """Agents per environment."""
    discarded_share: float = shown(0.0, key="discarded_share")
    """Share of all rollouts so far."""
    accelerated: list[dict[str, Any]] = field(default_factory=list)
    """CUDA graph statistics of each learner that reports them."""
    evaluation: Evaluation | None = None
    """The latest one, with --evaluate-every-frames."""
    random_play: float | None = shown(None, key="random_play")
    """Mean objective of the random policy in the final evaluation; None before the end or without one."""
    own: dict[str, float] = field(default_factory=dict)
    """User-defined metrics of the run, `stats/NAME`; those of members are in their statistics."""


def run_statistics(view: RunView) -> dict[str, tuple[Statistic, Any]]:
    """Return field name -> (display, value), in the order of the fields."""
    return {
        f.name: (f.metadata["statistic"], getattr(view, f.name))
        for f in fields(view)
        if "statistic" in f.metadata
    }


def replayed(view: RunView) -> dict[str, Replayed]:
    """Sum `turns` and `steps` over all learners; empty without a GPU."""
    found: dict[str, Replayed] = {}
    for learner in view.accelerated:
        for name, one in learner.items():
            so_far = found.get(name, Replayed(0, 0))
            found[name] = Replayed(
                so_far.replayed + one.replayed, so_far.of + one.of, so_far.why_not or one.why_not
            )
    return found


class Remarks:
    """Warns once for each reason why work is not replayed from CUDA graphs."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def __call__(self, view: RunView) -> list[str]:
        """Return the new warnings."""
        why = {one.why_not for one in replayed(view).values() if one.why_not}
        new = sorted(why - self._said)
        self._said |= why
        return [
            f"the GPU does not run all of its work from CUDA graphs ({one}): this run is slower than possible"
            for one in new
        ]
