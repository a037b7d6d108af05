"""Messages between the supervisor and its processes: frozen dataclasses.

    supervisor -> learner    `ToLearner`. Learners handle messages in order, between two optimiser steps. Exceptions:
                             TrainUntil, PauseTraining and StopLearner take effect immediately. So do Load, SetValues
                             and EvaluateMember if a learner computes its policies one by one on a CPU.
    learner -> supervisor    `FromLearner`
    actor -> supervisor      EnvironmentWarning
    any child -> its parent  `processes.child.ChildFailed`, before the child ends with an error

Steps and actions are exchanged through mailboxes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pbt_rl.actors.state_pool import Counts
from pbt_rl.controllers.hypers import Values

# -- parts of reports -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Episode:
    """Finished episode of a member.

    generation: generation of the member when the episode started. Episodes of older generations do not count for the
    objective.
    task: index in `EnvSpec.tasks`. 0 without tasks.
    environment: index among the member's environments, from 0.
    evaluation: True if the episode started while the member was evaluated.
    count: number of episodes, if the numbers are means over several episodes of a device simulator. Otherwise 1.
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
    environment: int = 0
    evaluation: bool = False
    count: int = 1


@dataclass(frozen=True)
class Game:
    """Finished episode of a multi-agent environment. Each field has one entry per agent."""

    members: tuple[int, ...]
    """Member that played the agent."""
    generations: tuple[int, ...]
    """Generation of the member when the episode started. Episodes of older generations do not count."""
    objectives: tuple[float, ...]


@dataclass(frozen=True)
class MemberStats:
    """Learning statistics of a member.

    values: means over the updates since the last report; empty without an update. Names: `policy_loss`, `value_loss`,
    `entropy`, `kl`, `clip_fraction`, `explained_variance`, `grad_norm`, `learning_rate_in_use` (after the schedule),
    `lag` (optimiser steps between acting and learning).
    """

    member: int
    steps: int
    """Total environment steps learned from, without masked and discarded steps."""
    frames: int
    """Total emulator frames sampled for the member, over all generations."""
    updates: int
    values: dict[str, float] = field(default_factory=dict)
    generation: int = 0
    """Generation that the learner trains."""
    broken: bool | None = None
    """True if all optimiser steps of this generation since the last report were skipped because gradients were not
    finite. None: no optimiser step.
    """


# -- to a learner ---------------------------------------------------------------------------------------------


NOTHING = Counts()
"""Counts of a new member."""


@dataclass(frozen=True)
class Load:
    """Load a member's state and values into a slot. If `member` is set, the answer is an Acknowledgement.

    The state has one of three sources:

    entry     entry of the pool. It must not be changed before the answer.
    of_slot   another slot of the pack, copied on the device
    drawn     (member, generation) that seeds newly initialised weights
    """

    slot: int
    member: int | None
    """None: discard the state of the slot and leave it empty."""
    generation: int
    values: Values
    entry: int | None = None
    of_slot: int | None = None
    initialised: tuple[int, int] | None = None
    counts: Counts = NOTHING
    """Totals of the member so far."""
    donor: int | None = None
    """Member whose state a decision copies. None if no decision copies a state."""


@dataclass(frozen=True)
class Save:
    """Write the state of a member in a slot to an entry of the pool. The answer is Saved.

    key: number of the request, repeated in the answer.
    """

    member: int
    key: int
    entry: int


@dataclass(frozen=True)
class SaveLearner:
    """Request the learner's own state, without its members. The answer is LearnerSaved.

    number: number of the checkpoint within the process.
    """

    number: int


@dataclass(frozen=True)
class SetValues:
    """Set the values of a member in a slot, which keeps its weights. The answer is an Acknowledgement.

    donor: member whose values a decision copies. None if no decision copies values.
    """

    member: int
    generation: int
    values: Values
    donor: int | None = None


@dataclass(frozen=True)
class EvaluateMember:
    """Start or end the evaluation of a member in a slot. During an evaluation the member acts but does not learn."""

    member: int
    begins: bool


@dataclass(frozen=True)
class TrainUntil:
    """Send a report as soon as a member reaches this number of frames. The member then waits for a decision."""

    member: int
    frames: int


@dataclass(frozen=True)
class PauseTraining:
    """Stop acting and learning at the end of a run. Messages are still handled."""


@dataclass(frozen=True)
class StopLearner:
    """End the learner process."""


ToLearner = Load | Save | SaveLearner | SetValues | EvaluateMember | TrainUntil | PauseTraining | StopLearner


# -- from a learner -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LearnerReady:
    """Sent when the pack is built and its actors receive actions."""

    note: str = ""
    """Warnings for the user about the pack."""


@dataclass(frozen=True)
class Replayed:
    """Number of calls of one kind on a GPU (`of`), and number of calls that replayed a CUDA graph (`replayed`)."""

    replayed: int
    of: int
    why_not: str = ""
    """Reason why the graph could not be captured, or ""."""


@dataclass(frozen=True)
class LearnerReport:
    """Progress of a learner since its last report."""

    device: str
    members: list[MemberStats]
    episodes: list[Episode]
    stage_seconds: dict[str, float]
    """Stage -> seconds, summed over threads. Stages: `inference`, `learning`, `waiting` (no rows were ready) ..."""
    lag_max: int
    """Maximum policy lag of a step learned from in the whole run, in optimiser steps."""
    discarded_rollouts: int
    """Number of rollouts discarded in the whole run, because of an older generation or the limit of the lag."""
    games: list[Game] = field(default_factory=list)
    """Finished episodes of multi-agent environments."""
    accelerated: dict[str, Any] = field(default_factory=dict)
    """Statistics of accelerated code paths over the whole run."""


@dataclass(frozen=True)
class Acknowledgement:
    """Acknowledgement of a decision, with the values that are in use afterwards.

    parked: True if the member has no slot, so no learner was involved. Its state has changed, but the `in_...` fields
    are empty. When the member takes a slot, another acknowledgement without a donor follows.
    """

    member: int
    donor: int | None
    generation: int
    milliseconds: float
    """Time from the start of handling until inference uses the new weights."""
    in_optimizer: dict[str, float]
    """Values read back from the optimiser."""
    in_loss: dict[str, float]
    """Values read back from the loss."""
    in_environment: dict[str, float]
    """Shaping values read back from the table of the actors, without the prefix `shaping.`."""
    donor_unchanged: bool
    parked: bool = False
    clock: dict[str, float] = field(default_factory=dict)
    """Times by time.perf_counter() on the learner's machine: `received`, `begun`, `written` (the new state is in
    place), `proved` (the values were read back).
    """


@dataclass(frozen=True)
class Saved:
    """Sent when a state is completely written to its entry of the pool."""

    key: int
    entry: int


@dataclass(frozen=True)
class LearnerSaved:
    """State of the learner without its members, as JSON types. number: see SaveLearner."""

    number: int
    learner: dict[str, Any]


FromLearner = LearnerReady | LearnerReport | Acknowledgement | Saved | LearnerSaved


# -- from an actor ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EnvironmentWarning:
    """Warning about an environment bug that raises no error (`ConventionWarnings` in envs/conventions.py)."""

    text: str
