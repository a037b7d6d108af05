"""Plain data about a run at one moment, the input of all displays.

Each statistic of a run is a field of `RunView`. The field's metadata determine its TensorBoard tag and its key in
summary.json. To add a statistic, add a field here and its value in the supervisor. Loss statistics need no code here:
displays show each name in `MemberView.stats` that is not listed below as a learning statistic.

For displays other than the terminal and TensorBoard see `trackers`.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from pbt_rl.actors.messages import Replayed
from pbt_rl.controllers.hypers import Values

EXTRA = "stats/"
"""Prefix of names from `episode_extra_stats` of the environment, in views and in TensorBoard."""
EPISODE_STATS = ("raw_return", "shaped_return", "length_steps")
"""Statistics in `MemberView.stats` that are means over a member's last episodes."""
MATCHUP_STATS = ("elo", "win_rate")
"""Statistics in `MemberView.stats` of multi-agent environments only."""


@dataclass(frozen=True)
class TaskView:
    """One member in one task: means over the window, and number of episodes since the member's last change."""

    objective: float
    raw_return: float
    episodes: int


@dataclass(frozen=True)
class FinalEvaluation:
    """Final evaluation of a member: mean and std of the true objective."""

    mean: float
    spread: float
    episodes: int
    halves: tuple[float, float] | None = None
    """Means of the even and of the odd episodes. One half selects a member of a group, and the other half scores it."""


@dataclass(frozen=True)
class Evaluation:
    """Evaluation of the best member during training. frames: population clock of the evaluated checkpoint."""

    frames: int
    all_frames: int
    """Frames of the whole population at the evaluated checkpoint."""
    member: int
    generation: int
    mean: float = 0.0
    """Mean true objective over the episodes. With tasks: mean over the tasks."""
    spread: float = 0.0
    """Std of the true objective over the episodes. With tasks: std over the tasks."""
    episodes: int = 0
    seconds: float = 0.0
    """Duration of the evaluation."""


@dataclass(frozen=True)
class MemberView:
    """One member at one moment, a row of the leaderboard."""

    member: int
    objective: float | None
    """Mean true objective over the window. None while the window is empty."""
    episodes: int
    """Number of finished episodes in all generations."""
    generation: int
    frames: int
    values: Values
    """Current hypers and reward weights."""
    initial: Values
    """Hypers and reward weights at the start of the run."""
    stats: dict[str, float]
    """Name -> latest value: `EPISODE_STATS`, `MATCHUP_STATS`, `stats/NAME` from `episode_extra_stats`. All other names
    are learning statistics (`MemberStats.values`)."""
    stopped: bool = False
    parked: bool = False
    """The member waits for a slot or a decision, and may train again."""
    complete: bool = True
    """True after each environment has ended an episode since the last change. Before this, means are biased towards
    short episodes."""
    ended: int = 0
    """Number of environments that have ended an episode since the last change."""
    environments: int = 0
    """Number of the member's environments."""
    early: float | None = None
    """Mean objective over all ended episodes since the last change, counted or not. None before any episode."""
    tasks: dict[str, TaskView | None] = field(default_factory=dict)
    """Task name -> view, or None for a task without an episode. Empty without tasks."""
    final: FinalEvaluation | None = None
    """Result of the final evaluation. None before it, and for members that it excludes."""
    control: bool = False
    """The member is in the control group: it is never compared, changed or copied."""

    @property
    def status(self) -> str:
        """`stopped`, `parked`, or empty for a training member."""
        return "stopped" if self.stopped else "parked" if self.parked else ""

    @property
    def learning_stats(self) -> dict[str, float]:
        """Statistics of the loss and the optimiser, with the learner's names."""
        known = (*EPISODE_STATS, *MATCHUP_STATS)
        return {k: v for k, v in self.stats.items() if k not in known and not k.startswith(EXTRA)}


@dataclass(frozen=True)
class Statistic:
    """Metadata of a `RunView` field. tag: TensorBoard tag. key: key in summary.json; `a.b` is key `b` of object `a`.

    An empty string means that the field is not shown there.
    """

    tag: str = ""
    key: str = ""


def shown(default: Any = MISSING, **how: Any) -> Any:
    """Return a dataclass field with a `Statistic`. how: arguments of the `Statistic`."""
    return field(default=default, metadata={"statistic": Statistic(**how)})


@dataclass(frozen=True, kw_only=True)
class RunView:
    """The population and the run's statistics at one moment, the input of all displays."""

    env_id: str
    name: str
    seconds: float = shown(key="seconds")
    frames: int = shown(key="frames")
    """Emulator frames of the whole population."""
    steps: int = shown(key="steps")
    """Environment steps of the whole population."""
    frames_per_second: float = shown(tag="throughput/frames_per_second")
    """Speed over the last reports, initially 0. summary.json has the mean over the steady part of the run instead."""
    seconds_left: float | None
    """Remaining seconds. None if unknown or unlimited."""
    members: list[MemberView]
    """Members in order of id."""
    replacements: int = shown(tag="pbt/replacements", key="replacements")
    mutations: int = shown(tag="pbt/mutations")
    """Number of mutations that kept the member's weights."""
    actors: int
    actors_restarted: int = shown(tag="throughput/actors_restarted", key="actors_restarted")
    learners_replaced: int = shown(tag="throughput/learners_replaced", key="learners_replaced")
    lag_mean: float = shown(tag="throughput/lag_mean", key="policy_lag.mean")
    """Rollout age: optimiser steps between the behaviour policy and the policy that learns from its rollouts."""
    lag_max: int = shown(tag="throughput/lag_max", key="policy_lag.max")
    discarded_rollouts: int = shown(tag="throughput/discarded_rollouts", key="discarded_rollouts")
    busy_threads: dict[str, float]
    """Stage -> number of busy threads of all processes, mean over the last minute. Stage `environment`: threads of the
    actors. Empty in the first seconds."""
    training_seconds: float = shown(0.0, key="training_seconds")
    """`seconds` without the start-up. `--train-for-seconds` limits these."""
    waits_for: str = ""
    """Current start-up step. Empty after the first frames."""
    stalled_seconds: float = 0.0
    """Seconds without new frames. 0 unless the run is starting or the pause is unusually long."""
    learns: bool = False
    """True while a learner has a batch to learn from."""
    tuned: frozenset[str] = frozenset()
    """Names of the hypers and reward weights that the controller may change."""
    seconds_left_at_most: bool = False
    """True if `seconds_left` is an upper bound, because a search may evict members."""
    comparison_in_seconds: float | None = None
    """Seconds until the next comparison. 0 if it waits for episodes. None if unknown or without a next comparison."""
    agents: int = 1
    """Agents per environment."""
    discarded_share: float = shown(0.0, key="discarded_share")
    """Discarded rollouts as a share of all rollouts."""
    accelerated: list[dict[str, Any]] = field(default_factory=list)
    """CUDA graph statistics of each learner that reports them."""
    evaluation: Evaluation | None = None
    """Latest evaluation during training (`--evaluate-every-frames`)."""
    random_policy: float | None = shown(None, key="random_play")
    """Mean objective of the random policy in the final evaluation. None before it."""
    own: dict[str, float] = field(default_factory=dict)
    """`stats/NAME` -> user-defined metric of the run. Metrics of members are in `MemberView.stats`."""


def run_statistics(view: RunView) -> dict[str, tuple[Statistic, Any]]:
    """Return field name -> (metadata, value), in the order of the fields."""
    return {
        f.name: (f.metadata["statistic"], getattr(view, f.name))
        for f in fields(view)
        if "statistic" in f.metadata
    }


def replayed(view: RunView) -> dict[str, Replayed]:
    """Return name -> CUDA graph statistics summed over all learners. Empty without a GPU."""
    found: dict[str, Replayed] = {}
    for learner in view.accelerated:
        for name, one in learner.items():
            so_far = found.get(name, Replayed(0, 0))
            found[name] = Replayed(
                so_far.replayed + one.replayed, so_far.of + one.of, so_far.why_not or one.why_not
            )
    return found


class GraphWarnings:
    """Collector of reasons why work does not run from CUDA graphs. It returns each reason once."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def __call__(self, view: RunView) -> list[str]:
        """Return the new warnings."""
        why = {one.why_not for one in replayed(view).values() if one.why_not}
        new = sorted(why - self._said)
        self._said |= why
        return [
            f"the GPU does not run all its work from CUDA graphs ({one}): the run is slower than with CUDA graphs"
            for one in new
        ]
