"""The messages between the supervisor and its processes: frozen dataclasses, matched by their type.

    supervisor -> learner    `ToLearner`: each is handled between two optimiser steps, in order, except
                             TrainUntil, PauseTraining and StopLearner, which take effect at once; edits do, too, where
                             policies are computed one by one on a CPU
    learner -> supervisor    `FromLearner`
    actor -> supervisor      Remarked
    any child -> its parent  `processes.child.ChildFailed`, before it ends with an error

Steps and actions do not pass here but through mailboxes.
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

    generation: of the member when the episode began; an episode of an older one does not count for the objective.
    task: index in `EnvSpec.tasks`; 0 if there are none. environment: which of its member's it was played in, from 0.
    evaluation: it began while the member was evaluated.
    count: episodes whose means these are: 1, or a round of rows of a simulator on the device.
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
    """One finished game of an environment of several agents, seat by seat. The player of every seat is known."""

    members: tuple[int, ...]
    generations: tuple[int, ...]
    """Of each member when the game began; a game of an older one does not count."""
    objectives: tuple[float, ...]


@dataclass(frozen=True)
class MemberStats:
    """One member's learning statistics since the last report (means over its updates).

    values: `policy_loss`, `value_loss`, `entropy`, `kl`, `clip_fraction`, `explained_variance`, `grad_norm`,
    `learning_rate_in_use` (after the schedule), `lag` (optimiser steps between the weights that acted and those that
    learn); absent while the member has had no update since the last report.
    """

    member: int
    steps: int
    """Steps learned from, in total (masked and discarded ones are not counted)."""
    frames: int
    """Emulator frames sampled for it, in total, over all generations."""
    updates: int
    values: dict[str, float] = field(default_factory=dict)
    generation: int = 0
    """The generation that the learner trains; `broken` refers to that one."""
    broken: bool | None = None
    """All optimiser steps since the last report were left out, as no gradient was finite. None without any step."""


# -- to a learner ---------------------------------------------------------------------------------------------


NOTHING = Counts()
"""Of a member that has done nothing."""


@dataclass(frozen=True)
class Load:
    """Let a slot hold this member in this state with these values, whatever it held. Answered by Applied if it is one.

    The state lies in an `entry` of the pool, which nobody else writes until it is answered; or it is what another slot
    holds (`of_slot`), and is copied on the device; or it is `drawn`: (member, generation) of the weights.
    """

    slot: int
    member: int | None
    """None: nobody holds the slot from now on; its state is forgotten."""
    generation: int
    values: Values
    entry: int | None = None
    of_slot: int | None = None
    drawn: tuple[int, int] | None = None
    counts: Counts = NOTHING
    """What the member has done so far; for one that takes the slot."""
    donor: int | None = None
    """The member that the state is of, if a decision copied it."""


@dataclass(frozen=True)
class Save:
    """Write the state of a member that holds a slot into an entry of the pool. Answered by Saved."""

    member: int
    key: int
    entry: int


@dataclass(frozen=True)
class SaveLearner:
    """Tell what the learner continues from besides its members. Answered by LearnerSaved.

    number: of the checkpoint, among those of the process.
    """

    number: int


@dataclass(frozen=True)
class SetValues:
    """Give a member that holds a slot these values; it keeps its weights. Answered by Applied.

    donor: the member that the values are of, if a decision copied them.
    """

    member: int
    generation: int
    values: Values
    donor: int | None = None


@dataclass(frozen=True)
class EvaluateMember:
    """Begin or end the evaluation of a member that holds a slot: meanwhile it acts, but does not learn."""

    member: int
    begins: bool


@dataclass(frozen=True)
class TrainUntil:
    """Report at once when a member has this many frames: it then waits for a decision."""

    member: int
    frames: int


@dataclass(frozen=True)
class PauseTraining:
    """Act and learn no more, but carry out messages: the run is about to end."""


@dataclass(frozen=True)
class StopLearner:
    """End the process."""


ToLearner = Load | Save | SaveLearner | SetValues | EvaluateMember | TrainUntil | PauseTraining | StopLearner


# -- from a learner -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LearnerReady:
    """The pack is built and serves its actors."""

    note: str = ""
    """What it has found out, for whoever watches the run."""


@dataclass(frozen=True)
class Replayed:
    """Calls of one kind on a GPU, and how many of them replayed a recording."""

    replayed: int
    of: int
    why_not: str = ""
    """Why recording failed, if it did."""


@dataclass(frozen=True)
class LearnerReport:
    """Progress of one learner since its last report (sums and means over that time unless noted otherwise)."""

    device: str
    members: list[MemberStats]
    episodes: list[Episode]
    stage_seconds: dict[str, float]
    """Busy thread-seconds by stage: `inference`, `learning`, `waiting` (inference had nothing to serve)..."""
    lag_max: int
    """Largest policy lag of any step learned from, ever, in optimiser steps."""
    discarded_rollouts: int
    """Rollouts of older generations or over the lag limit that were thrown away, in total."""
    games: list[Game] = field(default_factory=list)
    """Finished games, if environments have several seats."""
    accelerated: dict[str, Any] = field(default_factory=dict)
    """What is said of itself by what makes it faster, in total."""


@dataclass(frozen=True)
class Applied:
    """The proof that a decision was applied, read back from where it acts.

    parked: the member holds no slot, and no learner was asked. It has another state from now on, nothing acts on its
    values, and the `in_...` are empty; another proof, without a donor, follows when it takes a slot.
    """

    member: int
    donor: int | None
    generation: int
    milliseconds: float
    """From the moment the learner began with the message to new weights serving inference."""
    in_optimizer: dict[str, float]
    in_loss: dict[str, float]
    in_environment: dict[str, float]
    """The shaping table as the actors read it, without the prefix."""
    donor_unchanged: bool
    parked: bool = False
    clock: dict[str, float] = field(default_factory=dict)
    """time.perf_counter() of the learner's machine when it `received` the edit, had `begun` with it, had `written` the
    new state and had `proved` it."""


@dataclass(frozen=True)
class Saved:
    """The bytes of a state lie in its entry of the pool."""

    key: int
    entry: int


@dataclass(frozen=True)
class LearnerSaved:
    """What the learner continues from besides its members (JSON types). number: of the checkpoint."""

    number: int
    learner: dict[str, Any]


FromLearner = LearnerReady | LearnerReport | Applied | Saved | LearnerSaved


# -- from an actor ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Remarked:
    """An environment does something wrong though nothing breaks (see `conventions.Remarks`)."""

    text: str
