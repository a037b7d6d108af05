"""Plain data about a run at one moment, the input of all displays.

Each statistic of a run is a field of `RunView`. The field's metadata contain its TensorBoard tag and its key in
summary.json. To add a statistic, add a field here and its value in `run/views.py`. Statistics of a loss need no code
here, because TensorBoard and trackers show all of them (`MemberView.learning_stats`).

`trackers` contains the displays besides the terminal and TensorBoard.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any

from pbt_rl.actors.messages import Replayed
from pbt_rl.controllers.hypers import Values

EXTRA = "stats/"
"""Prefix of the environment's statistics (`episode_extra_stats`) and of metrics of callbacks."""
EPISODE_STATS = ("raw_return", "shaped_return", "length_steps")
"""Statistics in `MemberView.stats` that are means over a member's latest episodes since its last change."""
MATCHUP_STATS = ("elo", "win_rate")
"""Statistics in `MemberView.stats` that only multi-agent environments have."""


@dataclass(frozen=True)
class TaskView:
    """Scores of one member in one task: means over the window.

    episodes: number of episodes since the member's last change.
    """

    objective: float
    raw_return: float
    episodes: int


@dataclass(frozen=True)
class FinalEvaluation:
    """Final evaluation of a member. mean, spread: mean and std of the true objective over the episodes."""

    mean: float
    spread: float
    episodes: int
    halves: tuple[float, float] | None = None
    """Mean over the even episodes, and mean over the odd episodes. To score the best of several members without
    bias, one half selects the best member, and the other half scores this member. None without a control group, and for
    a single episode."""


@dataclass(frozen=True)
class Evaluation:
    """Evaluation of the best member during training. frames: population clock of the evaluated checkpoint."""

    frames: int
    all_frames: int
    """Sum of the frames of all members at the evaluated checkpoint."""
    member: int
    generation: int
    mean: float = 0.0
    """Mean true objective over the episodes. With tasks: mean over the tasks' means."""
    spread: float = 0.0
    """Std of the true objective over the episodes. With tasks: std over the tasks' means."""
    episodes: int = 0
    seconds: float = 0.0
    """Duration of the evaluation."""


@dataclass(frozen=True)
class MemberView:
    """State of one member at one moment."""

    member: int
    objective: float | None
    """Mean true objective over the window, or over the newest episodes of the window. None while the window is empty.

    With PBT's ready rules `synchronous` and `timed`, the mean is over the newest N episodes of the window. N is the
    number of episodes since the last decision about the member, but at least --pbt.min-episodes and at least the number
    of the member's environments. With other rules and controllers, the mean is over the whole window."""
    episodes: int
    """Number of finished episodes in all generations."""
    generation: int
    frames: int
    values: Values
    """Present hyperparameters and shaping."""
    initial: Values
    """Hyperparameters and shaping at the start of the run."""
    stats: dict[str, float]
    """Name -> latest value. Names: `EPISODE_STATS`, `MATCHUP_STATS`, `stats/NAME` from `episode_extra_stats` and from
    callbacks. All other names are learning statistics (`MemberStats.values`)."""
    stopped: bool = False
    """True if the controller has ended the member's training."""
    parked: bool = False
    """True if the member has no slot, for example because it waits for a slot or a decision."""
    complete: bool = True
    """True if each environment has ended an episode since the last change. Otherwise, means are biased towards short
    episodes."""
    ended: int = 0
    """Number of environments that have ended an episode since the last change."""
    environments: int = 0
    """Number of the member's environments."""
    early: float | None = None
    """Mean objective over the latest episodes that began since the last change, including episodes outside the window.
    None without such an episode, and if results of games against other members determine the objective."""
    tasks: dict[str, TaskView | None] = field(default_factory=dict)
    """Task name -> scores in this task. None for a task without an episode. Empty without tasks."""
    final: FinalEvaluation | None = None
    """Result of the final evaluation. None before the final evaluation, and for members that do not play it."""
    control: bool = False
    """True if the member is in the control group, which PBT never compares, changes or copies."""

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
    """Metadata of a `RunView` field.

    tag: TensorBoard tag. "" if TensorBoard does not show the field.
    key: key in summary.json; `a.b` is key `b` of object `a`. "" if summary.json does not contain the field.
    """

    tag: str = ""
    key: str = ""


def shown(default: Any = MISSING, **how: Any) -> Any:
    """Return a dataclass field with a `Statistic` in its metadata. how: arguments of the `Statistic`."""
    return field(default=default, metadata={"statistic": Statistic(**how)})


@dataclass(frozen=True, kw_only=True)
class RunView:
    """State of the population and of the run at one moment."""

    env_id: str
    name: str
    seconds: float = shown(key="seconds")
    """Seconds since the start of the run."""
    frames: int = shown(key="frames")
    """Sum of the frames of all members."""
    steps: int = shown(key="steps")
    """Sum of the environment steps of all members."""
    frames_per_second: float = shown(tag="throughput/frames_per_second")
    """Frames/s of all members together over the last reports, initially 0. summary.json contains another speed: the
    mean without start-up."""
    seconds_left: float | None
    """Estimated seconds until the end of training. None if this time is unknown or unlimited."""
    members: list[MemberView]
    """Members in order of id."""
    replacements: int = shown(tag="pbt/replacements", key="replacements")
    mutations: int = shown(tag="pbt/mutations")
    """Number of mutations: changes of a member's values without a donor, in which the member kept its weights."""
    actors: int
    actors_restarted: int = shown(tag="throughput/actors_restarted", key="actors_restarted")
    learners_replaced: int = shown(tag="throughput/learners_replaced", key="learners_replaced")
    lag_mean: float = shown(tag="throughput/lag_mean", key="policy_lag.mean")
    """Mean rollout age, in optimiser steps."""
    lag_max: int = shown(tag="throughput/lag_max", key="policy_lag.max")
    """Largest rollout age, in optimiser steps."""
    discarded_rollouts: int = shown(tag="throughput/discarded_rollouts", key="discarded_rollouts")
    busy_threads: dict[str, float]
    """Stage -> mean number of busy threads in all processes over the last minute. Empty in the first seconds.

    Stage `environment`: threads of the actors, or of learners for device simulators. The stages `waiting` and `learning
    on the GPU` count idle threads and GPUs instead."""
    training_seconds: float = shown(0.0, key="training_seconds")
    """Seconds of training, without start-up and shutdown. `--train-for-seconds` limits this time."""
    waits_for: str = ""
    """Present stage of the start-up. Empty after the first frames."""
    stalled_seconds: float = 0.0
    """Seconds without new frames, if the run is starting or the pause is unusually long. Otherwise 0."""
    learns: bool = False
    """True if a learner has a batch to learn from."""
    tuned: frozenset[str] = frozenset()
    """Names of the tuned values. Empty for a population of one member."""
    seconds_left_at_most: bool = False
    """True if `seconds_left` is an upper bound, because a search may stop members."""
    comparison_in_seconds: float | None = None
    """Estimated seconds until the next comparison. 0 if the comparison waits for episodes. None if the time is unknown
    or no comparison follows."""
    agents: int = 1
    """Number of agents per environment."""
    discarded_share: float = shown(0.0, key="discarded_share")
    """Discarded rollouts as an approximate share of all rollouts."""
    accelerated: list[dict[str, Any]] = field(default_factory=list)
    """One dict per learner that reports counts of CUDA graph replays: name -> `Replayed`."""
    evaluation: Evaluation | None = None
    """Latest evaluation during training (`--evaluate-every-frames`)."""
    random_policy: float | None = shown(None, key="random_play")
    """Mean objective of a random policy, from the final evaluation. None if unknown."""
    own: dict[str, float] = field(default_factory=dict)
    """Metrics of the whole run that callbacks returned: `stats/NAME` -> value. Metrics of members are in
    `MemberView.stats`."""


def copied(view: RunView) -> RunView:
    """Return a copy of a view for user code, which may change the copy's lists and dictionaries."""
    members = [
        replace(m, values=dict(m.values), initial=dict(m.initial), stats=dict(m.stats), tasks=dict(m.tasks))
        for m in view.members
    ]
    return replace(
        view,
        members=members,
        busy_threads=dict(view.busy_threads),
        accelerated=[*map(dict, view.accelerated)],
        own=dict(view.own),
    )


def run_statistics(view: RunView) -> dict[str, tuple[Statistic, Any]]:
    """Return field name -> (metadata, value) of the view's statistics, in the order of the fields."""
    return {
        f.name: (f.metadata["statistic"], getattr(view, f.name))
        for f in fields(view)
        if "statistic" in f.metadata
    }


def replayed(view: RunView) -> dict[str, Replayed]:
    """Return the counts of CUDA graph replays, summed over all learners. Empty if no learner reports counts.

    Names: "turns" (inference batches) and "steps" (optimiser steps).
    """
    found: dict[str, Replayed] = {}
    for learner in view.accelerated:
        for name, one in learner.items():
            so_far = found.get(name, Replayed(0, 0))
            found[name] = Replayed(
                so_far.replayed + one.replayed, so_far.of + one.of, so_far.why_not or one.why_not
            )
    return found


class GraphWarnings:
    """Collector of warnings about GPU work that is not replayed from CUDA graphs. Each reason is returned only once."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def __call__(self, view: RunView) -> list[str]:
        """Return the warnings with new reasons."""
        why = {one.why_not for one in replayed(view).values() if one.why_not}
        new = sorted(why - self._said)
        self._said |= why
        return [
            f"the GPU does not run all its work from CUDA graphs ({one}): the run is slower than with CUDA graphs"
            for one in new
        ]
