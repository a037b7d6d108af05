"""Messages between the supervisor and its processes: frozen dataclasses.

    supervisor -> learner    `ToLearner`. Learners handle messages in order. In the modes sync and serial, messages take
                             effect between two updates, in mode async between two optimiser steps. Exceptions in mode
                             async: TrainUntil takes effect immediately, PauseTraining after the update in progress, and
                             StopLearner after the optimiser step in progress. On a CPU with packing `loop`, messages
                             may take effect during an optimiser step.
    learner -> supervisor    `FromLearner`
    actor -> supervisor      EnvironmentWarning
    any child -> its parent  `processes.child.ChildFailed`, before the child ends with an error

Steps and actions of vector envs are exchanged through mailboxes.
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

    objective: score of the episode, by which PBT ranks members (see `StepArrays.objective`).
    raw_return: sum of the environment's rewards, before shaping and clipping. In a device simulator: the objective.
    shaped_return: sum of the shaped and clipped rewards.
    length_steps: steps of the policy.
    generation: generation of the member when the episode started. Only episodes of the member's present generation
    count for the objective.
    task: index in `EnvSpec.tasks`, or 0 without tasks.
    environment: index among the member's environments, from 0.
    evaluation: True if the episode started while the member was evaluated.
    count: number of episodes over which the statistics are means (1, except in device simulators).
    """

    member: int
    generation: int
    objective: float
    raw_return: float
    shaped_return: float
    length_steps: int
    extra: dict[str, float] = field(default_factory=dict)
    """Extra statistics of the episode (`StepArrays.stat_values`, or `SimulatorStep.stats`)."""
    task: int = 0
    environment: int = 0
    evaluation: bool = False
    count: int = 1


@dataclass(frozen=True)
class Game:
    """Finished episode of a multi-agent environment. Each field has one entry per agent that acted in the episode."""

    members: tuple[int, ...]
    """Member that acted as the agent."""
    generations: tuple[int, ...]
    """Generation of the member when the episode started."""
    objectives: tuple[float, ...]
    """Objective of the agent's episode."""


@dataclass(frozen=True)
class MemberStats:
    """Learning statistics of a member.

    values: name -> mean over the optimiser steps since the last report. Skipped optimiser steps are left out. Empty if
    there was no update. The names depend on the algorithm. With appo: `policy_loss`, `value_loss`, `entropy`, `kl`,
    `clip_fraction`, `explained_variance`, `grad_norm`, `learning_rate_in_use` (after the schedule), and `lag`
    (optimiser steps between acting and learning, a mean over the batches).
    """

    member: int
    steps: int
    """Total environment steps that the member learned from. Masked and discarded steps do not count."""
    frames: int
    """Total frames that the member acted in, over all generations."""
    updates: int
    """Total updates."""
    values: dict[str, float] = field(default_factory=dict)
    generation: int = 0
    """Generation of the member's weights and values on the learner."""
    broken: bool | None = None
    """True if all optimiser steps of this generation since the last report were skipped, because gradients were not
    finite. None if there was no optimiser step.
    """


# -- to a learner ---------------------------------------------------------------------------------------------


NOTHING = Counts()
"""Counts of a new member."""


@dataclass(frozen=True)
class Load:
    """Command: load a member's state and values into a slot. If `member` is set, the answer is an Acknowledgement.

    If `member` is set, exactly one of three fields is the source of the state:

    entry         entry of the state pool. This entry must not be changed before the answer.
    of_slot       slot of the same pack, whose state is copied on the device
    initialised   (member, generation), from which weights are initialised. They are part of the random seed.
    """

    slot: int
    member: int | None
    """Member that gets the slot. None: discard the state of the slot. The slot is then empty."""
    generation: int
    values: Values
    entry: int | None = None
    of_slot: int | None = None
    initialised: tuple[int, int] | None = None
    counts: Counts = NOTHING
    """Total counts of the member so far."""
    donor: int | None = None
    """Member whose state is copied, if a decision to copy causes this load. Otherwise None."""


@dataclass(frozen=True)
class Save:
    """Command: write the state of a member in a slot to an entry of the state pool. The answer is `Saved`.

    key: number of the request. The answer contains this number. entry: index of the entry.
    """

    member: int
    key: int
    entry: int


@dataclass(frozen=True)
class SaveLearner:
    """Command: send the learner's state, without the states of its members. The answer is `LearnerSaved`.

    number: number of the checkpoint since the supervisor's start.
    """

    number: int


@dataclass(frozen=True)
class SetValues:
    """Command: set the values of a member in a slot. The member keeps its weights. The answer is an Acknowledgement.

    donor: member whose values are copied, if a decision to copy causes this change. Otherwise None.
    """

    member: int
    generation: int
    values: Values
    donor: int | None = None


@dataclass(frozen=True)
class EvaluateMember:
    """Command: start or end the evaluation of a member in a slot, in which the member acts but does not learn.

    begins: True starts the evaluation, and False ends it.
    """

    member: int
    begins: bool


@dataclass(frozen=True)
class TrainUntil:
    """Command: send a report as soon as a member reaches this number of frames, because a decision is then due.

    In the modes sync and serial, this message has no effect, because the learner reports after each update.
    """

    member: int
    frames: int


@dataclass(frozen=True)
class PauseTraining:
    """Command: stop acting and learning, at the end of a run. The learner still handles messages."""


@dataclass(frozen=True)
class StopLearner:
    """Command: end the learner process."""


ToLearner = Load | Save | SaveLearner | SetValues | EvaluateMember | TrainUntil | PauseTraining | StopLearner


# -- from a learner -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LearnerReady:
    """First message of a learner, sent when the pack is built and inference can start."""

    note: str = ""
    """Log line for the user about packing, CUDA graphs and the kernel of the optimiser. Empty if there is nothing to
    log."""


@dataclass(frozen=True)
class Replayed:
    """Use of CUDA graphs for inference batches, or for optimiser steps ("runs").

    of: number of all runs. replayed: number of runs that replayed a CUDA graph.
    """

    replayed: int
    of: int
    why_not: str = ""
    """Reason why a graph could not be captured. Empty if no capture failed."""


@dataclass(frozen=True)
class LearnerReport:
    """Report of a learner: episodes and statistics since its last report, and total counts."""

    device: str
    members: list[MemberStats]
    episodes: list[Episode]
    stage_seconds: dict[str, float]
    """Stage -> seconds since the last report. `waiting`: time in which the main thread had no work (0 in serial mode).
    `learning on the GPU`: GPU time of updates. Other stages (`inference`, `environment`, `learning`): CPU time."""
    lag_max: int
    """Largest rollout age of a step that was learned from, in optimiser steps, since the learner's start."""
    discarded_rollouts: int
    """Number of discarded rollouts since the learner's start: rollouts of replaced weights, and rollouts older than the
    maximum policy lag. A rollout that two policies discard counts twice."""
    games: list[Game] = field(default_factory=list)
    """Finished episodes of multi-agent environments."""
    accelerated: dict[str, Any] = field(default_factory=dict)
    """Use of CUDA graphs since the learner's start: "turns" (inference batches) or "steps" (optimiser steps) ->
    `Replayed`. Empty without CUDA graphs."""


@dataclass(frozen=True)
class Acknowledgement:
    """Confirmation that a `Load` or `SetValues` was applied, with the values that are in use afterwards.

    parked: True if the member has no slot. The supervisor then changed the member's state without a learner, and the
    `in_...` fields are empty. When the member takes a slot, a second acknowledgement with `donor` None follows.
    """

    member: int
    donor: int | None
    generation: int
    milliseconds: float
    """Time from the start of the change until the values were read back."""
    in_optimizer: dict[str, float]
    """Hyperparameters of the optimiser, read back from the device."""
    in_loss: dict[str, float]
    """All other hyperparameters, such as those of loss and returns, read back from the device."""
    in_environment: dict[str, float]
    """Shaping, read back from the memory that the environments read. Names have no prefix `shaping.`."""
    donor_unchanged: bool
    """False if a copy from another slot changed the state in that slot. Otherwise True."""
    parked: bool = False
    clock: dict[str, float] = field(default_factory=dict)
    """Event -> time.perf_counter() on the learner's machine. `received`: the message arrived. `begun`: the change
    started. `written`: the change ended. `proved`: the values were read back.
    """


@dataclass(frozen=True)
class Saved:
    """Answer to `Save`: the state is completely written to the entry. key, entry: as in the request."""

    key: int
    entry: int


@dataclass(frozen=True)
class LearnerSaved:
    """Answer to `SaveLearner`: state of the learner as JSON types, without the states of its members.

    number: as in the request.
    """

    number: int
    learner: dict[str, Any]


FromLearner = LearnerReady | LearnerReport | Acknowledgement | Saved | LearnerSaved


# -- from an actor ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EnvironmentWarning:
    """Warning about an environment bug that raises no error (envs/conventions.py)."""

    text: str
