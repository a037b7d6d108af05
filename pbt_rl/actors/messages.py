"""Messages between the supervisor and its processes: frozen dataclasses, matched by type.

    supervisor -> learner    `ToLearner`, handled in order between two optimiser steps. TrainUntil, PauseTraining and
                             StopLearner take effect at once; so do edits where policies run one by one on a CPU
    learner -> supervisor    `FromLearner`
    actor -> supervisor      Remarked
    any child -> its parent  `processes.child.ChildFailed`, before it ends with an error

Steps and actions pass through mailboxes instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pbt_rl.actors.store import Counts
from pbt_rl.controllers.hypers import Values

# -- parts of reports -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Episode:
    """One finished episode of one member.

    generation: of the member when the episode started. Episodes of older generations do not count for the objective.
    task: index in `EnvSpec.tasks`; 0 if there are none. environment: index among the member's environments, from 0.
    evaluation: the episode started while the member was evaluated.
    count: number of episodes that these means cover. 1, or a round of rows of a device simulator.
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
    """One finished episode of a multi-agent environment, agent by agent. The member of each agent is known."""

    members: tuple[int, ...]
    generations: tuple[int, ...]
    """Of each member when the episode started. Episodes of older generations do not count."""
    objectives: tuple[float, ...]


@dataclass(frozen=True)
class MemberStats:
    """One member's learning statistics since the last report (means over updates).

    values: `policy_loss`, `value_loss`, `entropy`, `kl`, `clip_fraction`, `explained_variance`, `grad_norm`,
    `learning_rate_in_use` (after the schedule), `lag` (optimiser steps between the acting and the learning weights).
    Empty if the member had no update since the last report.
    """

    member: int
    steps: int
    """Total environment steps learned from, without masked and discarded ones."""
    frames: int
    """Total emulator frames sampled for the member, over all generations."""
    updates: int
    values: dict[str, float] = field(default_factory=dict)
    generation: int = 0
    """Generation that the learner trains. `broken` refers to it."""
    broken: bool | None = None
    """True if all optimiser steps since the last report were skipped for non-finite gradients. None: no step."""


# -- to a learner ---------------------------------------------------------------------------------------------


NOTHING = Counts()
"""Counts of a new member."""


@dataclass(frozen=True)
class Load:
    """Load a member's state and values into a slot. Answered by Acknowledgement if `member` is set.

    The state has one of three sources. `entry`: an entry of the pool, which must not be written until the answer.
    `of_slot`: another slot, copied on the device. `drawn`: initialised weights for (member, generation).
    """

    slot: int
    member: int | None
    """None: empty the slot and discard its state."""
    generation: int
    values: Values
    entry: int | None = None
    of_slot: int | None = None
    drawn: tuple[int, int] | None = None
    counts: Counts = NOTHING
    """Totals of the member before it takes the slot."""
    donor: int | None = None
    """Member whose state it is, if a decision copied it."""


@dataclass(frozen=True)
class Save:
    """Write a slotted member's state into an entry of the pool. Answered by Saved."""

    member: int
    key: int
    entry: int


@dataclass(frozen=True)
class SaveLearner:
    """Send the learner's own state, without its members. Answered by LearnerSaved.

    number: number of the checkpoint within the process.
    """

    number: int


@dataclass(frozen=True)
class SetValues:
    """Set new values for a slotted member. It keeps its weights. Answered by Acknowledgement.

    donor: member that the values are from, if a decision copied them.
    """

    member: int
    generation: int
    values: Values
    donor: int | None = None


@dataclass(frozen=True)
class EvaluateMember:
    """Start or end the evaluation of a member in a slot. Meanwhile it acts but does not learn."""

    member: int
    begins: bool


@dataclass(frozen=True)
class TrainUntil:
    """Report at once when a member reaches this many frames. It then waits for a decision."""

    member: int
    frames: int


@dataclass(frozen=True)
class PauseTraining:
    """Stop acting and learning, but handle messages. The run is about to end."""


@dataclass(frozen=True)
class StopLearner:
    """End the process."""


ToLearner = Load | Save | SaveLearner | SetValues | EvaluateMember | TrainUntil | PauseTraining | StopLearner


# -- from a learner -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LearnerReady:
    """Sent when the pack is built and its actors are served."""

    note: str = ""
    """Notes for the user from building the pack."""


@dataclass(frozen=True)
class Replayed:
    """Calls of one kind on a GPU, and how many of them replayed a recording."""

    replayed: int
    of: int
    why_not: str = ""
    """Why recording failed, if it did."""


@dataclass(frozen=True)
class LearnerReport:
    """Progress of one learner since its last report. Sums and means cover that time unless noted otherwise."""

    device: str
    members: list[MemberStats]
    episodes: list[Episode]
    stage_seconds: dict[str, float]
    """Busy thread-seconds by stage: `inference`, `learning`, `waiting` (inference had no ready rows)..."""
    lag_max: int
    """Largest policy lag of any step learned from in the whole run, in optimiser steps."""
    discarded_rollouts: int
    """Total number of discarded rollouts: of older generations, or over the lag limit."""
    games: list[Game] = field(default_factory=list)
    """Finished episodes of multi-agent environments."""
    accelerated: dict[str, Any] = field(default_factory=dict)
    """Total statistics of the accelerated code paths."""


@dataclass(frozen=True)
class Acknowledgement:
    """Acknowledgement of a decision: values read back from optimiser, loss and environments.

    parked: the member holds no slot, so no learner was involved. Its state has changed, but its values are not in use
    and the `in_...` fields are empty. Another acknowledgement, without a donor, follows when it takes a slot.
    """

    member: int
    donor: int | None
    generation: int
    milliseconds: float
    """Time from the start of handling until inference uses the new weights."""
    in_optimizer: dict[str, float]
    in_loss: dict[str, float]
    in_environment: dict[str, float]
    """Shaping table as read by the actors, without the prefix."""
    donor_unchanged: bool
    parked: bool = False
    clock: dict[str, float] = field(default_factory=dict)
    """Times by time.perf_counter() on the learner's machine, in the order `received`, `begun`, `written`, `proved`.
    `written`: the new state is in place. `proved`: the values were read back."""


@dataclass(frozen=True)
class Saved:
    """Sent when a state is complete in its entry of the pool."""

    key: int
    entry: int


@dataclass(frozen=True)
class LearnerSaved:
    """Learner's own state, without its members (JSON types). number: number of the checkpoint."""

    number: int
    learner: dict[str, Any]


FromLearner = LearnerReady | LearnerReport | Acknowledgement | Saved | LearnerSaved


# -- from an actor ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Remarked:
    """Warning about an environment bug without an error (`Remarks` in envs/conventions.py)."""

    text: str
