"""Typed events of a journal, and their decoder. Most readers of journals use these classes.

`record/journal.py` writes the events. docs/reference/run-files.md describes the kinds.
"""

from __future__ import annotations

from typing import Annotated, Any, Union

from msgspec import Meta, Struct, ValidationError, field

from pbt_rl.controllers.decisions import Decision, PopulationReport
from pbt_rl.controllers.hypers import Values
from pbt_rl.controllers.records import Value, Whole, check_depth, decoder, reading

LAST_TIME = 253402300800.0
"""Upper limit of times in seconds since the epoch: the start of the year 10000, because Python's `datetime` ends
there."""
WAITING = "waiting"
"""Key in `Progress.busy_threads` for the mean number of sampler threads that wait for a vector env."""
GPU_LEARNING = "learning on the GPU"
"""Key in `Progress.busy_threads` for the mean number of GPUs (instead of threads) with an update in progress."""


class Event(Struct, frozen=True):
    """Base of the events of a journal. time: seconds since the epoch. frames: population clock."""

    time: Annotated[float, Meta(ge=0, lt=LAST_TIME)]
    frames: Whole


class Other(Event, frozen=True):
    """Event of a kind without a separate class, such as `applied`."""

    kind: str = field(name="event")


class _Known(Event, frozen=True, tag_field="event"):
    """Event of a kind with a separate class. The class parameter `tag` is the kind."""


class SpecArray(Struct, frozen=True):
    """Shape and dtype of an observation array (some fields of `ArraySpec`)."""

    shape: tuple[Whole, ...] = ()
    dtype: str = ""


class SpecAction(Struct, frozen=True):
    """Components of an action (some fields of `ActionSpec`).

    nvec: number of choices of each discrete component. low, high: bounds of each continuous component. None in journals
    without bounds.
    """

    nvec: tuple[Whole, ...] = ()
    low: tuple[float, ...] | None = None
    high: tuple[float, ...] | None = None


class Spec(Struct, frozen=True):
    """Part of an environment's `EnvSpec` that readers of the journal use.

    shaping: default values of the reward shaping. tasks: names of the tasks.
    obs, action, agents: fields of `EnvSpec`. None if the run trained a function or class of the user (`tune.run`).
    seats: name of `agents` in older journals.
    """

    shaping: dict[str, Value] = {}
    tasks: list[Any] | None = None
    obs: dict[str, SpecArray] | None = None
    action: SpecAction | None = None
    agents: int | None = None
    seats: int | None = None


class Start(_Known, frozen=True, tag="start"):
    """Start of a run: the first event.

    config: options of the training run or of `tune.run`, as JSON types. versions: package -> version. git: commit of
    the code. None if unknown.
    """

    config: dict[str, Any]
    seed: Whole | None = None
    versions: dict[str, str] = {}
    git: str | None = None
    spec: Spec | None = None

    def __post_init__(self) -> None:
        check_depth(self.config)

    @property
    def shaping(self) -> Values:
        """Default values of the environment's reward shaping."""
        return self.spec.shaping if self.spec else {}

    @property
    def tasks(self) -> int:
        """Number of tasks of the environment, 0 for an environment without tasks."""
        return len(self.spec.tasks or ()) if self.spec else 0


class Initial(_Known, frozen=True, tag="initial"):
    """Start values of the members, in order of id."""

    values: tuple[dict[str, Value], ...]


class Comparison(_Known, frozen=True, tag="round"):
    """Report to the controller, without the members' values, and the controller's decisions.

    Not every event is a comparison. Repairs of members, evaluations and searches also cause decisions.
    """

    report: PopulationReport
    decisions: tuple[Decision, ...]
    incomplete: tuple[Whole, ...] = ()
    """Members with an environment that has not finished an episode since the member's last change."""
    count: Whole = 1
    """Number of episodes in each entry of `MemberReport.objectives`. Device simulators average over several
    episodes."""


class MemberProgress(Struct, frozen=True):
    """One member in a `Progress` event.

    objective: mean objective over the window, or over its episodes since the last comparison (see
    `MemberView.objective`). None before the first counted episode since the member's last change.
    complete: True if every environment has finished an episode that began since the member's last change.
    early: provisional objective, which is shown while `complete` is False. It is the mean of the latest episodes that
    began since the member's last change, even if they are not in the window. None without such an episode, and in
    games between members.
    ended: number of environments that have finished an episode since the member's last change.
    environments: number of the member's environments. raw_return, length_steps: means over the latest episodes since
    the member's last change.
    """

    member: Whole
    generation: Whole
    frames: Whole
    objective: float | None
    episodes: Whole
    complete: bool = True
    early: float | None = None
    ended: Whole = 0
    environments: Whole = 0
    raw_return: float | None = None
    length_steps: float | None = None


class Progress(_Known, frozen=True, tag="progress"):
    """Progress of all members.

    busy_threads: stage, such as `environment` -> mean number of busy threads in the last minute.
    training_seconds: duration of the training without start-up and shutdown. seconds_left: estimated seconds until the
    end of training (an upper bound in a search). frames_per_second: recent speed of all members together. Each of these
    three fields is None if unknown.
    lag_mean, lag_max: mean and maximum policy lag since the start of the run, in optimiser steps.
    stalled: text that replaces the speed in the terminal while no frame count increases, otherwise "".
    """

    members: tuple[MemberProgress, ...]
    busy_threads: dict[str, Value] = {}
    training_seconds: float | None = None
    seconds_left: float | None = None
    frames_per_second: float | None = None
    lag_mean: float | None = None
    lag_max: Whole | None = None
    stalled: str = ""


class SlotChange(_Known, frozen=True, tag="slot"):
    """Change of the member in a slot. enters: the new member, or None for an empty slot.

    pack: number of the pack (the policies that are stacked on one device). slot: position in the pack.
    """

    pack: Whole
    slot: Whole
    enters: Whole | None


class ActorRestart(_Known, frozen=True, tag="actor_restart"):
    """Restart of an actor."""


class CheckpointWritten(_Known, frozen=True, tag="checkpoint"):
    """Checkpoint of the run."""


class Resume(_Known, frozen=True, tag="resume"):
    """Resume of the run.

    config: options after the resume, as JSON types. changed: changed option -> old and new value.
    new_episodes: True if all environments were reset. The reset loses unfinished episodes.
    values: reward shaping that the user changed, with its new values. All members that have not been stopped
    enter a new generation with these values and unchanged weights.
    """

    config: dict[str, Any]
    changed: dict[str, Any]
    new_episodes: bool = False
    values: dict[str, Value] = {}

    def __post_init__(self) -> None:
        check_depth(self.config)


class FinalScores(Struct, frozen=True):
    """Final evaluation of a member.

    mean: mean objective. halves: (mean over episodes with even numbers, mean over episodes with odd numbers). One half
    selects a member, and the other half scores it. `halves` is None without a control group.
    """

    member: Whole
    mean: float
    episodes: Whole
    halves: tuple[float, float] | None = None


class Final(_Known, frozen=True, tag="final", rename={"random_policy": "random_play"}):
    """Final evaluation."""

    members: tuple[FinalScores, ...]
    random_policy: float | None = None
    """Mean objective of a random policy."""

    @property
    def means(self) -> dict[int, float]:
        """Member -> mean objective."""
        return {one.member: one.mean for one in self.members}

    @property
    def episodes(self) -> dict[int, int]:
        """Member -> number of its evaluation episodes."""
        return {one.member: one.episodes for one in self.members}


class Evaluation(_Known, frozen=True, tag="evaluation"):
    """Evaluation of the best member during training.

    at_frames: population clock at the checkpoint of the evaluated weights.
    all_frames: sum of the frames of all members at this checkpoint.
    mean, spread: mean and standard deviation of the objective over the episodes. With tasks: over the means of the
    tasks.
    seconds: duration of the evaluation.
    """

    at_frames: Whole
    all_frames: Whole
    member: Whole
    generation: Whole
    mean: float
    spread: float
    episodes: Whole
    seconds: float


class RunWarning(_Known, frozen=True, tag="remark"):
    """Warning in the terminal about a problem that raises no error."""

    text: str


class Lost(_Known, frozen=True, tag="lost"):
    """Events that could not be written to the journal. counts: kind of event -> number of lost events."""

    counts: dict[str, Whole]


class End(_Known, frozen=True, tag="end"):
    """End of the run. ended: reason for the end."""

    ended: str


_KNOWN = _Known.__subclasses__()
_KINDS = frozenset(kind.__struct_config__.tag for kind in _KNOWN)
_DECODER, _OTHERS = decoder(Union[tuple(_KNOWN)]), decoder(Other)  # noqa: UP007 - of classes that are listed at run time


def decode_event(line: bytes, number: int) -> Event:
    """Decode the event in a line of a journal. number: line number, from 1, for messages.

    Raises ConfigError for JSON that is not an event. Raises one of the exceptions in `NOT_JSON` for a line that is not
    JSON.
    """
    with reading(f"line {number} of the journal"):
        try:
            event: Event = _DECODER.decode(line)
        except ValidationError as error:
            other: Other = _OTHERS.decode(line)
            if other.kind in _KINDS:
                raise error from None
            return other
        return event
