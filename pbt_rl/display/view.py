"""The population at one moment as plain data, and how each number of a run is shown.

A statistic of a run is one field of `RunView`: TensorBoard, the terminal and summary.json show it as its metadata
describes, so a new one is one field here and its value in the supervisor. A statistic of a loss needs no line at all:
every name in `MemberView.stats` that is not listed below is shown as a learning statistic.

A display of a run besides the terminal and TensorBoard: `trackers`.
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
"""Names in `MemberView.stats` that exist only if environments have several seats."""


@dataclass(frozen=True)
class TaskView:
    """One member in one task: means over the window, and the number of episodes since the member changed."""

    objective: float
    raw_return: float
    episodes: int


@dataclass(frozen=True)
class FinalGames:
    """Fresh episodes of a member, played after training: mean and standard deviation of the true objective."""

    mean: float
    spread: float
    episodes: int
    halves: tuple[float, float] | None = None
    """Means of every other episode, and of the rest: one picks a member of a group, the other scores it."""


@dataclass(frozen=True)
class Evaluation:
    """Fresh games of the best member beside training. frames: the population's clock at the checkpoint that played."""

    frames: int
    all_frames: int
    """Of the whole population there."""
    member: int
    generation: int
    mean: float = 0.0
    """Of the true objective over the episodes; with tasks, over the tasks."""
    spread: float = 0.0
    """Its standard deviation over the same."""
    episodes: int = 0
    seconds: float = 0.0
    """That the games took."""


@dataclass(frozen=True)
class MemberView:
    """One member at one moment: a line of the leaderboard."""

    member: int
    objective: float | None
    """Mean true objective over the window; None until an episode (with tasks: one episode of each) counts."""
    episodes: int
    """Episodes finished, over all generations."""
    generation: int
    frames: int
    values: Values
    """Present hypers and shaping."""
    initial: Values
    """Hypers and shaping at the start of the run."""
    stats: dict[str, float]
    """Latest statistics by name: `EPISODE_STATS`, `MATCHUP_STATS`, `stats/NAME` for the environment's own; every other
    name is a learning statistic (`MemberStats.values`)."""
    stopped: bool = False
    parked: bool = False
    """It waits for a slot or for a decision, and may train again."""
    complete: bool = True
    """Every environment has ended an episode since the last change. Before, the means are of the shortest ones."""
    ended: int = 0
    """Environments that have ended an episode since the last change."""
    environments: int = 0
    """In which it plays, as far as their episodes are told apart."""
    early: float | None = None
    """Mean objective of the last episodes since the last change, whether or not they count yet; None before any."""
    tasks: dict[str, TaskView | None] = field(default_factory=dict)
    """Every task by name, None for a task without an episode; empty if there are no tasks."""
    final: FinalGames | None = None
    """None before the end, and for a member that played none."""
    control: bool = False
    """It belongs to the control group: it is never compared, changed or copied."""

    @property
    def status(self) -> str:
        """`stopped`, `parked`, or empty for a member that trains."""
        return "stopped" if self.stopped else "parked" if self.parked else ""

    @property
    def learning_stats(self) -> dict[str, float]:
        """Statistics of the loss and of the optimiser, under whatever names the learner reports them."""
        known = (*EPISODE_STATS, *MATCHUP_STATS)
        return {k: v for k, v in self.stats.items() if k not in known and not k.startswith(EXTRA)}


@dataclass(frozen=True)
class Statistic:
    """How one field of a `RunView` is shown. An empty part means: not there.

    tag: in TensorBoard, of the population. key: in summary.json; a dot nests.
    """

    tag: str = ""
    key: str = ""


def shown(default: Any = MISSING, **how: Any) -> Any:
    """Declare a field that is a `Statistic`, with what that holds."""
    return field(default=default, metadata={"statistic": Statistic(**how)})


@dataclass(frozen=True, kw_only=True)
class RunView:
    """Everything that the displays show: the population and the run's statistics at one moment."""

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
    """Of members that kept their weights."""
    actors: int
    actors_restarted: int = shown(tag="throughput/actors_restarted", key="actors_restarted")
    learners_replaced: int = shown(tag="throughput/learners_replaced", key="learners_replaced")
    lag_mean: float = shown(tag="throughput/lag_mean", key="policy_lag.mean")
    """Optimiser steps between the weights that acted and those that learned."""
    lag_max: int = shown(tag="throughput/lag_max", key="policy_lag.max")
    discarded_rollouts: int = shown(tag="throughput/discarded_rollouts", key="discarded_rollouts")
    busy_threads: dict[str, float]
    """Busy threads by stage, mean over the last minute, of all processes (`environment`: those of the actors). Empty in
    the first seconds."""
    training_seconds: float = shown(0.0, key="training_seconds")
    """`seconds` without the start: what a budget of seconds counts."""
    waits_for: str = ""
    """What happens before the first frames; empty afterwards."""
    stalled_seconds: float = 0.0
    """Without new frames: since the start, or if that is longer than usual; else 0."""
    learns: bool = False
    """A learner has a batch to learn from."""
    tuned: frozenset[str] = frozenset()
    """Names of the hypers and shaping values that the controller may change."""
    seconds_left_at_most: bool = False
    """`seconds_left` is an upper bound, as a search may give members up."""
    comparison_in_seconds: float | None = None
    """Until the next comparison is due; 0 if it waits for episodes; None if unknown, or if there is none."""
    seats: int = 1
    """Of one environment; above 1, members play games."""
    discarded_share: float = shown(0.0, key="discarded_share")
    """Of all rollouts so far."""
    accelerated: list[dict[str, Any]] = field(default_factory=list)
    """What learners report of what makes them faster; of those alone that do."""
    evaluation: Evaluation | None = None
    """The newest one, with --evaluate-every-frames."""
    random_play: float | None = shown(None, key="random_play")
    """Mean objective of random actions in fresh games beside the final ones; None before the end, or without any."""
    own: dict[str, float] = field(default_factory=dict)
    """Metrics of the user's own, `stats/NAME`; those of members are among their statistics."""


def run_statistics(view: RunView) -> dict[str, tuple[Statistic, Any]]:
    """Return field name -> (how it is shown, its value), in the order of the fields."""
    return {
        f.name: (f.metadata["statistic"], getattr(view, f.name))
        for f in fields(view)
        if "statistic" in f.metadata
    }


def replayed(view: RunView) -> dict[str, Replayed]:
    """Return `turns` and `steps` of all learners; empty without a GPU."""
    found: dict[str, Replayed] = {}
    for learner in view.accelerated:
        for name, one in learner.items():
            so_far = found.get(name, Replayed(0, 0))
            found[name] = Replayed(
                so_far.replayed + one.replayed, so_far.of + one.of, so_far.why_not or one.why_not
            )
    return found


class Remarks:
    """Says once why not all is replayed."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def __call__(self, view: RunView) -> list[str]:
        """Return what is to be said now."""
        why = {one.why_not for one in replayed(view).values() if one.why_not}
        new = sorted(why - self._said)
        self._said |= why
        return [
            f"the GPU replays not all of its work ({one}): this run is slower than it could be" for one in new
        ]
