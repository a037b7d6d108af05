"""The messages between the supervisor and its processes: frozen dataclasses, matched by their type.

    supervisor -> learner    `ToLearner`: each is handled between two optimiser steps, in order, except
                             TrainUntil, PauseTraining and StopLearner, which take effect at once; edits do, too, where
                             policies are computed one by one on a CPU
    learner -> supervisor    `FromLearner`
    actor -> supervisor      Remarked
    any child -> its parent  ChildFailed, before it ends with an error

Steps and actions do not pass here but through mailboxes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from pbt_rl.pbt.hypers import Values
from pbt_rl.wire.snapshot import MemberSnapshot, SnapshotHeader

# -- parts of reports -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Episode:
    """One finished episode of one member.

    generation: of the member when the episode began; an episode of an older one does not count for the objective.
    task: index in `EnvSpec.tasks`; 0 if there are none. environment: which of its member's it was played in, from 0.
    evaluation: it began while the member was evaluated.
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
    `learning_rate_in_use` (after the schedule), `lag` (updates between acting and learning); absent while the
    member has had no update since the last report.
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


@dataclass(frozen=True)
class Edit:
    """Change one member in place. `values` are final. Answered by Applied.

    weights: `keep`; `copy` those of `donor` (on this pack); `import` from the exchange memory; `fresh`.
    donor_generation: the donor's remembered state of that generation; None for the donor as it is.
    shrink_perturb: what becomes of weights that were copied or imported (see `Replace`).
    """

    member: int
    generation: int
    weights: Literal["keep", "copy", "import", "fresh"]
    donor: int | None
    values: Values
    donor_generation: int | None = None
    shrink_perturb: tuple[float, float] | None = None
    fresh_frames: int = 0
    """Of `import`: the donor's frames when its weights were drawn."""


@dataclass(frozen=True)
class SlotChange:
    """Let one slot of a pack change hands; None stands for no member. Answered by SlotChanged.

    generation, values: of the member that enters, which continues with them.
    """

    slot: int
    leaves: int | None
    enters: int | None
    generation: int
    values: Values


@dataclass(frozen=True)
class EvaluateMember:
    """Begin or end the evaluation of a member that holds a slot: meanwhile it acts, but does not learn."""

    member: int
    begins: bool


@dataclass(frozen=True)
class ExportMember:
    """Write a member's state into the exchange memory. Answered by MemberExported.

    generation: of a remembered state; None for the member as it is.
    """

    member: int
    generation: int | None


@dataclass(frozen=True)
class RememberMember:
    """Keep a member's present state under a generation."""

    member: int
    generation: int


@dataclass(frozen=True)
class ForgetMember:
    """Drop a remembered state."""

    member: int
    generation: int


@dataclass(frozen=True)
class ReleaseMember:
    """Let a parked member go, with its remembered states. Answered by MemberReleased."""

    member: int


@dataclass(frozen=True)
class AdmitMember:
    """Take in a member of another pack, parked.

    snapshots: its state, unless it never held a slot, and its remembered states. unproven: it has a change that is not
    in force anywhere yet.
    """

    member: int
    generation: int
    values: Values
    snapshots: tuple[MemberSnapshot, ...] = ()
    unproven: bool = False


@dataclass(frozen=True)
class BeginSnapshot:
    """Keep all members of the pack and all remembered states as they are now, to be staged. Answered by SnapshotBegun.

    A member that learns on is staged as it is when its turn comes; one that an edit or a slot change is about to change
    is copied before.
    """

    number: int
    """Of the checkpoint, among those of the process."""


@dataclass(frozen=True)
class StageMember:
    """Write the next member of the snapshot into this entry of the staging memory. Answered by MemberStaged."""

    entry: int


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


ToLearner = (
    Edit
    | EvaluateMember
    | SlotChange
    | ExportMember
    | RememberMember
    | ForgetMember
    | ReleaseMember
    | AdmitMember
    | BeginSnapshot
    | StageMember
    | TrainUntil
    | PauseTraining
    | StopLearner
)


# -- from a learner -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LearnerReady:
    """The pack is built and serves its actors."""

    note: str = ""
    """What it has found out, for whoever watches the run."""


@dataclass(frozen=True)
class LearnerReport:
    """Progress of one learner since its last report (sums and means over that time unless noted otherwise)."""

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
    """Finished games, if environments have several seats."""


@dataclass(frozen=True)
class Applied:
    """The proof that a decision was applied, read back from where it acts.

    parked: the member holds no slot. Its state was changed where it is kept, nothing acts on its values, and the
    `in_...` are empty; another proof, without a donor, follows when it takes a slot.
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
class SlotChanged:
    """A slot has changed hands. proof: of an edit made while the entering member was parked."""

    change: SlotChange
    proof: Applied | None


@dataclass(frozen=True)
class MemberExported:
    """The member's state lies in the exchange memory."""

    header: SnapshotHeader


@dataclass(frozen=True)
class MemberReleased:
    """A member has left the pack. admission: what another pack takes it in with."""

    admission: AdmitMember


@dataclass(frozen=True)
class SnapshotBegun:
    """What BeginSnapshot kept.

    members: number of states to be staged. learner: what the learner continues from besides its members (JSON types).
    """

    number: int
    members: int
    learner: dict[str, Any]


@dataclass(frozen=True)
class MemberStaged:
    """A state lies in this entry of the staging memory."""

    entry: int
    header: SnapshotHeader


FromLearner = (
    LearnerReady
    | LearnerReport
    | Applied
    | SlotChanged
    | MemberExported
    | MemberReleased
    | SnapshotBegun
    | MemberStaged
)


# -- from an actor ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Remarked:
    """An environment does something wrong though nothing breaks (see `Remarks` in envs/base.py)."""

    text: str


# -- from any child -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ChildFailed:
    """The last message of a child that ends with an error.

    user_error: `text` is the message of an error that only the user can mend; otherwise it is a traceback.
    """

    text: str
    user_error: bool
