"""The events of a journal, typed. This is the only place that reads the records of a journal, whoever wrote them.

Kinds that nothing is drawn or decided from are `Other`, so that journals of other versions can be read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pbt_rl.errors import ConfigError
from pbt_rl.pbt.decisions import Decision, PopulationReport, decision_from_dict, report_from_dict
from pbt_rl.pbt.fields import Fields
from pbt_rl.pbt.hypers import Values

LAST_TIME = 253402300800.0
"""Seconds since the epoch until the year 10000, which no calendar of Python has."""
DEEPEST_CONFIG = 8
"""Levels of nested options; a config has three."""


@dataclass(frozen=True)
class Event:
    """What all events hold. time: seconds since the epoch. frames: the population's clock."""

    time: float
    frames: int


@dataclass(frozen=True)
class Start(Event):
    """The first event. config: JSON types, of whatever version. shaping: defaults of the environment's shaping."""

    config: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    git: str | None = None
    shaping: Mapping[str, float] = field(default_factory=dict)
    tasks: int = 0
    """Of the environment; 0 for one without."""


@dataclass(frozen=True)
class Initial(Event):
    """The members' values at the start, in order of id."""

    values: tuple[Values, ...]


@dataclass(frozen=True)
class Round(Event):
    """A comparison: what the controller was passed and what it returned.

    Members of the report have values only in journals of older versions: the lineage knows them (`audit.with_values`).
    """

    report: PopulationReport
    decisions: tuple[Decision, ...]
    incomplete: tuple[int, ...] = ()
    """Members whose window holds only the shortest of the episodes since their change."""


@dataclass(frozen=True)
class MemberProgress:
    """One member of a `Progress`. objective: the mean of its window; None without an episode.

    complete: the window holds whole episodes of every environment, not only the shortest ones since the last change.
    """

    member: int
    generation: int
    frames: int
    objective: float | None
    episodes: int
    complete: bool = True


@dataclass(frozen=True)
class Progress(Event):
    """How far the members are. busy_threads: by stage, mean over the last minute."""

    members: tuple[MemberProgress, ...]
    busy_threads: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class SlotChange(Event):
    """A slot changes hands. enters: the member that holds it from now on, if any."""

    pack: int
    slot: int
    enters: int | None


@dataclass(frozen=True)
class ActorRestart(Event):
    """An actor was started again."""


@dataclass(frozen=True)
class Resume(Event):
    """The run was continued. config: from here on, JSON types. changed: names of the options that differ."""

    config: Mapping[str, Any]
    changed: tuple[str, ...]


@dataclass(frozen=True)
class Final(Event):
    """Final games: member -> mean objective, and number of episodes of each."""

    means: Mapping[int, float]
    episodes: int


@dataclass(frozen=True)
class Evaluation(Event):
    """Games beside training. at_frames: the clock at the checkpoint that the member played from."""

    at_frames: int
    member: int
    mean: float
    spread: float
    episodes: int


@dataclass(frozen=True)
class Lost(Event):
    """Events that could not be written. rounds: the comparisons among them."""

    rounds: int


@dataclass(frozen=True)
class End(Event):
    """ended: why the run ended."""

    ended: str


@dataclass(frozen=True)
class Other(Event):
    """Any other event."""

    kind: str


def read_events(records: Iterable[object], first: int = 1) -> list[Event]:
    """Return the events of a journal's records, the first of which stands in line `first`.

    Raises ConfigError that names the line for a record that is none.
    """
    return [read_event(record, line) for line, record in enumerate(records, start=first)]


def read_event(record: object, line: int) -> Event:
    """Return the event of the record in this line of a journal. Raises ConfigError as `read_events`."""
    return _read(record, f"line {line} of the journal")


def _read(record: object, place: str) -> Event:
    given = Fields(record, place)
    kind, time, frames = given.text("event"), given.number("time"), given.whole("frames")
    if not 0 <= time < LAST_TIME:
        raise ConfigError(f"time of {place} is {time}: it should be seconds since 1970")
    match kind:
        case "start":
            spec = given.inner("spec") if given.has("spec") else None
            return Start(
                time,
                frames,
                given.plain("config", DEEPEST_CONFIG),
                given.whole_or_none("seed"),
                given.texts("versions"),
                given.text_or_none("git"),
                spec.values("shaping") if spec is not None and spec.has("shaping") else {},
                len(spec.items("tasks")) if spec is not None and spec.has("tasks") else 0,
            )
        case "initial":
            return Initial(time, frames, given.members_values("values"))
        case "round":
            decisions = [decision_from_dict(d, f"a decision in {place}") for d in given.items("decisions")]
            report = report_from_dict(given.raw("report"), f"the report in {place}")
            incomplete = given.wholes("incomplete") if given.has("incomplete") else ()
            return Round(time, frames, report, tuple(decisions), incomplete)
        case "progress":
            threads = given.values("busy_threads") if given.has("busy_threads") else {}
            return Progress(time, frames, tuple(_progress(m) for m in given.objects("members")), threads)
        case "slot":
            return SlotChange(
                time, frames, given.whole("pack"), given.whole("slot"), given.whole_or_none("enters")
            )
        case "actor_restart":
            return ActorRestart(time, frames)
        case "resume":
            changed = tuple(name for name, _ in given.inner("changed").named())
            return Resume(time, frames, given.plain("config", DEEPEST_CONFIG), changed)
        case "final":
            judged = given.objects("members")
            means = {m.whole("member"): m.number("mean") for m in judged}
            return Final(time, frames, means, max((m.whole("episodes") for m in judged), default=0))
        case "evaluation":
            scores = given.number("mean"), given.number("spread"), given.whole("episodes")
            return Evaluation(time, frames, given.whole("at_frames"), given.whole("member"), *scores)
        case "lost":
            counts = given.inner("counts")
            return Lost(time, frames, counts.whole("round") if counts.has("round") else 0)
        case "end":
            return End(time, frames, given.text("ended"))
    return Other(time, frames, kind)


def _progress(given: Fields) -> MemberProgress:
    return MemberProgress(
        given.whole("member"),
        given.whole("generation"),
        given.whole("frames"),
        given.number_or_none("objective"),
        given.whole("episodes"),
        given.flag("complete") if given.has("complete") else True,
    )
