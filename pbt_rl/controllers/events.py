"""The events of a journal, typed, and their one reader: whoever asks what a journal says, asks for these.

`record/journal.py` writes them; docs/reference/run-files.md has all kinds.
"""

from __future__ import annotations

from typing import Annotated, Any, Union

from msgspec import Meta, Struct, ValidationError, field

from pbt_rl.controllers.decisions import Decision, PopulationReport
from pbt_rl.controllers.hypers import Values
from pbt_rl.controllers.records import Value, Whole, check_depth, decoder, reading

LAST_TIME = 253402300800.0
"""Seconds since the epoch until the year 10000, which no calendar of Python has."""
WAITING = "waiting"
"""Stage of `Progress.busy_threads`: idle time."""
GPU_LEARNING = "learning on the GPU"
"""Stage of `Progress.busy_threads` that belongs to no thread: from the start of an update to its end on the device."""


class Event(Struct, frozen=True):
    """Fields of all events. time: seconds since the epoch. frames: the population's clock."""

    time: Annotated[float, Meta(ge=0, lt=LAST_TIME)]
    frames: Whole


class Other(Event, frozen=True):
    """An event that nothing is drawn or decided from, such as `applied`."""

    kind: str = field(name="event")


class _Known(Event, frozen=True, tag_field="event"):
    """An event whose content is read; each class has its kind."""


class Spec(Struct, frozen=True):
    """Of the environment's, what a reader of the journal needs. shaping: defaults of the environment's shaping.

    obs, action, agents: as in `EnvSpec`; None in the journals of others. seats: former name of `agents`.
    """

    shaping: dict[str, Value] = {}
    tasks: list[Any] | None = None
    obs: dict[str, dict[str, Any]] | None = None
    action: dict[str, Any] | None = None
    agents: int | None = None
    seats: int | None = None


class Start(_Known, frozen=True, tag="start"):
    """The first event. config: JSON types, as `tune.run` or a run has them."""

    config: dict[str, Any]
    seed: Whole | None = None
    versions: dict[str, str] = {}
    git: str | None = None
    spec: Spec | None = None

    def __post_init__(self) -> None:
        check_depth(self.config)

    @property
    def shaping(self) -> Values:
        """Defaults of the environment's shaping."""
        return self.spec.shaping if self.spec else {}

    @property
    def tasks(self) -> int:
        """Number of tasks of the environment; 0 for one without."""
        return len(self.spec.tasks or ()) if self.spec else 0


class Initial(_Known, frozen=True, tag="initial"):
    """The members' values at the start, in order of id."""

    values: tuple[dict[str, Value], ...]


class Round(_Known, frozen=True, tag="round"):
    """A comparison: what the controller was passed, without the members' values, and what it returned."""

    report: PopulationReport
    decisions: tuple[Decision, ...]
    incomplete: tuple[Whole, ...] = ()
    """Members whose window holds only the shortest of the episodes since their change."""
    count: Whole = 1
    """Episodes whose mean one entry of an objective is: more than 1 in a simulator on the device."""


class MemberProgress(Struct, frozen=True):
    """One member of a `Progress`. objective: the mean of its window; None without an episode.

    complete: the window holds whole episodes of every environment, not only the shortest ones since the last change.
    early: mean objective of the episodes since that change, whether they count yet or not; ended: environments that
    have ended one of these, of `environments`. raw_return, length_steps: means over the last episodes.
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
    """How far the members are. busy_threads: by stage, mean over the last minute.

    training_seconds, seconds_left, frames_per_second: as the terminal showed them; None: unknown.
    lag_mean, lag_max: optimiser steps between the weights that acted and those that learned, so far.
    stalled: what the terminal shows in place of the speed if no frames are made; empty otherwise.
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
    """A slot changes hands. enters: the member that holds it from now on, if any."""

    pack: Whole
    slot: Whole
    enters: Whole | None


class ActorRestart(_Known, frozen=True, tag="actor_restart"):
    """An actor was started again."""


class CheckpointWritten(_Known, frozen=True, tag="checkpoint"):
    """The run was saved."""


class Resume(_Known, frozen=True, tag="resume"):
    """The run was continued. config: from here on, JSON types. changed: the options that differ -> old and new.

    new_episodes: those that ran when it was saved were lost, and all environments began others. values: that every
    member has from here on, as it was given other reward shaping: each begins a generation with its own weights.
    """

    config: dict[str, Any]
    changed: dict[str, Any]
    new_episodes: bool = False
    values: dict[str, Value] = {}

    def __post_init__(self) -> None:
        check_depth(self.config)


class FinalGames(Struct, frozen=True):
    """Final evaluation of a member. mean: of its objectives. halves: means of every other episode, and of the rest."""

    member: Whole
    mean: float
    episodes: Whole
    halves: tuple[float, float] | None = None


class Final(_Known, frozen=True, tag="final"):
    """Final games."""

    members: tuple[FinalGames, ...]
    random_play: float | None = None
    """Mean objective of random actions."""

    @property
    def means(self) -> dict[int, float]:
        """Member -> mean objective."""
        return {games.member: games.mean for games in self.members}

    @property
    def episodes(self) -> dict[int, int]:
        """Member -> episodes that it has played."""
        return {games.member: games.episodes for games in self.members}


class Evaluation(_Known, frozen=True, tag="evaluation"):
    """Games beside training.

    at_frames, all_frames: the clock at the checkpoint that the member played from, and the frames of all members then.
    """

    at_frames: Whole
    all_frames: Whole
    member: Whole
    generation: Whole
    mean: float
    spread: float
    episodes: Whole
    seconds: float


class Remark(_Known, frozen=True, tag="remark"):
    """A line that the terminal showed about what goes wrong unseen."""

    text: str


class Lost(_Known, frozen=True, tag="lost"):
    """Events that could not be written. counts: by kind."""

    counts: dict[str, Whole]


class End(_Known, frozen=True, tag="end"):
    """ended: why the run ended."""

    ended: str


_KNOWN = _Known.__subclasses__()
_KINDS = frozenset(kind.__struct_config__.tag for kind in _KNOWN)
_DECODER, _OTHERS = decoder(Union[tuple(_KNOWN)]), decoder(Other)  # noqa: UP007 - of classes that are listed at run time


def decode_event(line: bytes, number: int) -> Event:
    """Return the event in a line of a journal. number: of the line, from 1, for messages.

    Raises ConfigError for JSON that is not an event, and one of `NOT_JSON` for a line that is not JSON.
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
