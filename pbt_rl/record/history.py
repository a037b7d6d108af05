"""The history of a run, built from its journal: the run may have ended, still be running, or have been killed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, structs

from pbt_rl.config import number_of_controls
from pbt_rl.controllers.changes import Change, changes
from pbt_rl.controllers.decisions import Decision, MemberReport
from pbt_rl.controllers.events import (
    GPU_LEARNING,
    WAITING,
    ActorRestart,
    End,
    Evaluation,
    Event,
    Final,
    MemberProgress,
    Other,
    Progress,
    Remark,
    Resume,
    Round,
    SlotChange,
    Start,
)
from pbt_rl.controllers.lineage import Lineage, Node, Noise, mean
from pbt_rl.controllers.objectives import by_score
from pbt_rl.controllers.records import Whole, converted, finite
from pbt_rl.errors import ConfigError
from pbt_rl.options.renamed import present_config
from pbt_rl.record.folder import RunFolder
from pbt_rl.record.journal import journal_events

FRAMES = "frames"
"""Unit of training in column names and figure texts."""


@dataclass(frozen=True)
class Point:
    """One member at one moment. seconds: since the start of the run. frames: of the member."""

    seconds: float
    member: int
    generation: int
    frames: int
    objective: float | None
    episodes: int
    complete: bool = True
    """False while the window holds only the shortest episodes since the member's last change."""

    @property
    def drawn(self) -> float | None:
        """Objective for a curve: None while the window is incomplete, because the curve would drop at each change."""
        return self.objective if self.complete else None


@dataclass(frozen=True)
class Moment:
    """The population at one moment.

    nodes: of the members that were not stopped before the decisions of this moment. founders: number of initialised
    weights from which the population's members descend, counted over members that are not stopped after the decisions.
    """

    seconds: float
    frames: int
    points: tuple[Point, ...]
    nodes: tuple[Node, ...]
    founders: int

    @cached_property
    def present(self) -> frozenset[int]:
        """Members that were not stopped before the decisions of this moment."""
        return frozenset(node.member for node in self.nodes)


@dataclass(frozen=True)
class TakenDecision:
    """A decision, its time, and the objective of the member at that time."""

    seconds: float
    frames: int
    decision: Decision
    change: Change
    """Effect of the decision on its member."""
    objective: float | None


@dataclass(frozen=True)
class TimeSlice:
    """Interval in which a member held a slot. slot: counted over all packs."""

    slot: int
    member: int
    begin_seconds: float
    end_seconds: float


@dataclass(frozen=True)
class Phase:
    """A member's training between two decisions of a search.

    score: objective at the end of the phase. outcome: `on` (continued), `completed` or `evicted`. Both are None
    while the phase lasts.
    """

    member: int
    number: int
    begin_seconds: float
    end_seconds: float
    score: float | None
    outcome: str | None


@dataclass(frozen=True)
class SearchOptions:
    """Search options that a report reads."""

    eviction_rate: Annotated[float, Meta(ge=0, lt=1)] = 0.0


@dataclass(frozen=True)
class PbtOptions:
    """PBT options that a report reads."""

    ready: str = ""


@dataclass(frozen=True)
class RunOptions:
    """Options that a report reads. A `tune.run` run has only a few of them."""

    env: str = "a run"
    controller: str = "pbt"
    num_policies: Whole = 0
    control: Annotated[float, Meta(ge=0, le=100_000)] = 0.0
    train_for_frames: Whole | None = None
    train_for_seconds: float | None = None
    search: SearchOptions = SearchOptions()
    pbt: PbtOptions = PbtOptions()
    api: str | None = None
    """Set for a `tune.run` run, which counts steps and evaluations."""
    choices: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Value name -> meaning of each index, for values that are choices."""

    @property
    def controls(self) -> frozenset[int]:
        """Members of the control group."""
        first = self.num_policies
        return frozenset(range(first, first + number_of_controls(self.control, first)))

    @property
    def unit(self) -> str:
        """Unit of training: frames or steps."""
        return FRAMES if self.api is None else "steps"

    def shown(self, name: str, value: float) -> float | str:
        """Return the value, or its meaning if it is a choice."""
        texts = self.choices.get(name)
        return value if not texts else texts[min(max(round(value), 0), len(texts) - 1)]


@dataclass(frozen=True)
class History:
    """All data of a report.

    config, versions: from the journal's first event; a resumed run has the config of its last resume. seconds: since
    the start, without interruptions. ended: reason for the end; None if the run still trains or was killed.
    """

    name: str
    config: Mapping[str, Any]
    options: RunOptions
    versions: Mapping[str, str]
    git: str | None
    began: float
    seconds: float
    ended: str | None
    seed: int | None
    lineage: Lineage
    moments: Sequence[Moment]
    decisions: Sequence[TakenDecision]
    time_slices: Sequence[TimeSlice]
    phases: Sequence[Phase]
    actor_restarts: int
    learners_lost: Sequence[float] = ()
    """Seconds at which a learner was replaced because it died or hung."""
    final: Final | None = None
    """Final evaluation; None without one."""
    evaluations: Sequence[Evaluation] = ()
    """Evaluations during training."""
    tasks: int = 0
    """Number of tasks of the environment; 0 without tasks."""
    entry_episodes: int = 1
    """Episodes averaged into one window entry: more than 1 for a device simulator."""
    noise: Noise | None = None
    """Noise of the comparisons; None if the windows were not read."""
    remarks: Sequence[str] = ()
    """Warnings that were shown in the terminal."""
    told: Progress | None = None
    """Latest progress record; None without one."""
    cpu_seconds: float = 0.0
    """CPU seconds of all learner and actor processes; 0 if not recorded."""
    gpu_seconds: float = 0.0
    """Seconds of learning on GPUs, summed over GPUs; 0 without one."""

    @property
    def training_seconds(self) -> float:
        """Seconds of training without start-up and shutdown, as in the terminal; `seconds` if not recorded."""
        told = None if self.told is None else self.told.training_seconds
        return self.seconds if told is None else told

    @property
    def controls(self) -> frozenset[int]:
        """Members of the control group."""
        return self.options.controls

    def standard_error(self, games: Evaluation) -> float:
        """Return the standard error of an evaluation's mean. With tasks, mean and std are over the tasks."""
        return games.spread / math.sqrt(max(1, self.tasks or games.episodes))

    @cached_property
    def last(self) -> dict[int, Node]:
        """Return each member's last node, stopped members included, in order of id."""
        return {m: self.lineage.path(m)[-1] for m in sorted({n.member for n in self.lineage.nodes})}

    @cached_property
    def curves(self) -> dict[int, list[Point]]:
        """Return each member's points, oldest first."""
        curves: dict[int, list[Point]] = {m: [] for m in self.last}
        for moment in self.moments:
            for point in moment.points:
                curves[point.member].append(point)
        return curves

    def objective(self, node: Node) -> float | None:
        """Return the node's last known objective; None if it is missing, NaN or infinite."""
        return finite(self.lineage.objectives.get(node.key))

    @cached_property
    def ranking(self) -> list[int]:
        """Return the population's members that have a score, best first: see `by_score`."""
        return [m for m in self._ranked if m not in self.controls]

    @property
    def best(self) -> int | None:
        """Return the best member; None while no member of the population has a score."""
        return self.ranking[0] if self.ranking else None

    @property
    def final_scores(self) -> Mapping[int, float]:
        """Return the final evaluation means, by member."""
        return {} if self.final is None else self.final.means

    def score(self, member: int | None) -> float | None:
        """Return a member's final evaluation mean, or its last known objective if it has none."""
        if member is None or member not in self.last:
            return None
        final = finite(self.final_scores.get(member))
        return self.objective(self.last[member]) if final is None else final

    @cached_property
    def now(self) -> Mapping[int, MemberProgress]:
        """Return each member's latest progress record, by member."""
        return {} if self.told is None else {one.member: one for one in self.told.members}

    @cached_property
    def everyone(self) -> list[int]:
        """Return all members (controls included), best first, those without a score last."""
        return [*self._ranked, *(m for m in self.last if m not in self._ranked)]

    @property
    def frames(self) -> int:
        """Return the least recorded frames of any member that trains."""
        return self.moments[-1].frames if self.moments else 0

    @property
    def all_frames(self) -> int:
        """Return the frames of all members, summed."""
        return sum(points[-1].frames for points in self.curves.values() if points)

    @property
    def population(self) -> int:
        """Return the number of members that are not controls."""
        return len(self.last.keys() - self.controls)

    @cached_property
    def _ranked(self) -> list[int]:
        return by_score({m: self.objective(node) for m, node in self.last.items()}, self.final_scores)

    @cached_property
    def varied(self) -> list[str]:
        """Return the names of the values that differ between any two nodes: the tuned or searched values."""
        nodes = self.lineage.nodes
        return (
            [n for n in nodes[0].values if len({node.values.get(n) for node in nodes}) > 1] if nodes else []
        )

    @property
    def is_search(self) -> bool:
        """True if members are configurations that are trained in phases and can be evicted."""
        return bool(self.phases)


def read_run(folder: Path) -> History:
    """Read the journal of a run's folder. Raises ConfigError if it is not the folder of a run."""
    noise, events = Noise(), []
    for event in journal_events(folder):
        if isinstance(event, Round):
            noise.note(event)
        events.append(light(event))
    if not events or not isinstance(events[0], Start):
        raise ConfigError(
            f"{folder} is not the folder of a run: {RunFolder(folder).journal} does not begin with the event `start`"
        )
    return history_of(folder.resolve().name, events, noise)


def history_of(name: str, events: Sequence[Event], noise: Noise | None = None) -> History:
    """Build the history from a run's events. The first event is `Start`. Raises ConfigError.

    noise: of the same run, or None if its windows were not read.
    """
    events = uninterrupted(events)
    start = events[0]
    assert isinstance(start, Start)
    began = start.time
    options = converted(start.config, RunOptions, "the config in the journal")
    controls = options.controls
    lineage = Lineage()
    moments: list[Moment] = []
    decisions: list[TakenDecision] = []
    for event in events:
        seconds = _since(began, event)
        present = (
            tuple(lineage.present(m) for m in lineage.members) if isinstance(event, Round | Progress) else ()
        )
        generations = lineage.generations if isinstance(event, Round) else {}
        lineage.take(event)
        if not isinstance(event, Round | Progress):
            continue
        points = tuple(p for p in _points(event, seconds) if (p.member, 0) in lineage)
        founders = sum(member not in controls for member, _ in lineage.surviving_roots())
        moments.append(Moment(seconds, event.frames, points, present, founders))
        if isinstance(event, Round):
            known = {p.member: p.objective for p in points}
            made = zip(event.decisions, changes(event.decisions, generations), strict=True)
            decisions += [
                TakenDecision(seconds, event.frames, d, change, known.get(d.member)) for d, change in made
            ]
    total = _since(began, events[-1])
    changed = (e for e in events if isinstance(e, SlotChange))
    time_slices = _time_slices(
        (e for e in changed if e.enters is None or (e.enters, 0) in lineage), began, total
    )
    return History(
        name=name,
        config=present_config(start.config),
        options=options,
        versions=start.versions,
        git=start.git,
        began=began,
        seconds=total,
        ended=next((e.ended for e in reversed(events) if isinstance(e, End)), None),
        seed=start.seed,
        lineage=lineage,
        moments=moments,
        decisions=decisions,
        time_slices=time_slices,
        phases=_phases(decisions, time_slices, total),
        actor_restarts=sum(isinstance(e, ActorRestart) for e in events),
        learners_lost=[_since(began, e) for e in events if isinstance(e, Other) and e.kind == "pack_lost"],
        final=next((e for e in reversed(events) if isinstance(e, Final)), None),
        evaluations=[e for e in events if isinstance(e, Evaluation) and math.isfinite(e.mean)],
        tasks=start.tasks,
        entry_episodes=max((e.count for e in events if isinstance(e, Round)), default=1),
        noise=noise,
        told=next((e for e in reversed(events) if isinstance(e, Progress)), None),
        remarks=list(dict.fromkeys(e.text for e in events if isinstance(e, Remark))),
        cpu_seconds=_spent(events, began, lambda stage: stage not in (WAITING, GPU_LEARNING)),
        gpu_seconds=_spent(events, began, lambda stage: stage == GPU_LEARNING),
    )


def _spent(events: Sequence[Event], began: float, counts: Callable[[str], bool]) -> float:
    """Integrate the busy threads of some stages over time.

    Each progress record holds means over the preceding interval. The first records of a run have none, so the first
    record with means covers the time since the start.
    """
    total, before, busy, known = 0.0, 0.0, 0.0, False
    for event in events:
        if not isinstance(event, Progress):
            continue
        known = known or bool(event.busy_threads)
        if not known:
            continue
        now = _since(began, event)
        threads = [x for stage, x in event.busy_threads.items() if counts(stage)]
        busy = math.fsum(threads) if threads else busy
        total += busy * max(0.0, now - before)
        before = max(before, now)
    return total


def _since(began: float, event: Event) -> float:
    return max(0.0, event.time - began)  # a clock may be set back


def _points(event: Round | Progress, seconds: float) -> list[Point]:
    told: list[tuple[MemberProgress | MemberReport, float | None, bool]]
    if isinstance(event, Progress):
        told = [(m, m.objective, m.complete) for m in event.members]
    else:
        told = [(m, mean(m.objectives), m.member not in event.incomplete) for m in event.report.members]
    return [
        Point(seconds, m.member, m.generation, m.frames, finite(objective), m.episodes, complete)
        for m, objective, complete in told
    ]


def _time_slices(changes: Iterable[SlotChange], began: float, total: float) -> list[TimeSlice]:
    """Pair each slot entry with its exit. Without an exit the interval lasts to the end of the run."""
    slots: dict[tuple[int, int], int] = {}
    holders: dict[int, tuple[int, float]] = {}
    time_slices = []
    for event in changes:
        slot = slots.setdefault((event.pack, event.slot), len(slots))
        seconds = _since(began, event)
        if slot in holders:
            member, since = holders.pop(slot)
            time_slices.append(TimeSlice(slot, member, since, seconds))
        if event.enters is not None:
            holders[slot] = event.enters, seconds
    time_slices += [
        TimeSlice(slot, member, since, total) for slot, (member, since) in sorted(holders.items())
    ]
    return time_slices


def _phases(
    decisions: Iterable[TakenDecision], time_slices: Sequence[TimeSlice], total: float
) -> list[Phase]:
    """Return the phases of a search, numbered as in its decisions, in order of their end.

    A member's first phase begins when it first enters a slot. A member that never held a slot has no phase.
    """
    entered: dict[int, float] = {}
    for time_slice in time_slices:
        entered[time_slice.member] = min(entered.get(time_slice.member, math.inf), time_slice.begin_seconds)
    present: dict[int, tuple[int, float]] = {}
    phases = []
    for taken in decisions:
        member, number = taken.decision.member, taken.change.phase
        if member in present and (taken.change.stopped or number not in (None, present[member][0])):
            past, since = present.pop(member)
            outcome = "on" if number is not None else "completed" if taken.change.completed else "evicted"
            phases.append(Phase(member, past, since, taken.seconds, taken.objective, outcome))
        if number is not None and member not in present and (not time_slices or member in entered):
            first = all(phase.member != member for phase in phases)
            present[member] = number, entered.get(member, taken.seconds) if first else taken.seconds
    phases += [Phase(m, number, since, total, None, None) for m, (number, since) in present.items()]
    return phases


def light(event: Event) -> Event:
    """Reduce each window of a round to its mean.

    The reason: the full windows take nine tenths of the journal of many members.
    """
    if not isinstance(event, Round):
        return event
    means = [(m, mean(m.objectives)) for m in event.report.members]
    members = tuple(replace(m, objectives=() if x is None else (x,), values={}) for m, x in means)
    return structs.replace(event, report=replace(event.report, members=members))


def uninterrupted(events: Iterable[Event]) -> Sequence[Event]:
    """Return the events without interruptions.

    - All times after a `Resume` are shifted back by the length of the interruption, which precedes the event.
    - An `End` or a `Final` before a `Resume` is dropped.
    - Each slot is vacated at a `Resume`, because its member may then enter another slot.
    - The first event gets the config of the last `Resume`.
    """
    told: list[Event] = []
    paused, config = 0.0, None
    for event in events:
        if isinstance(event, Resume):
            if told:
                paused = event.time - told[-1].time
            config = event.config
            told = [e for e in told if not isinstance(e, End | Final)]
            time = event.time - paused
            told += [SlotChange(time, event.frames, pack, slot, None) for pack, slot in _held(told)]
        told.append(structs.replace(event, time=event.time - paused))
    if config is not None and told and isinstance(told[0], Start):
        told[0] = structs.replace(told[0], config=config)
    return told


def _held(events: Iterable[Event]) -> list[tuple[int, int]]:
    """Return (pack, slot) of each slot that a member holds after the events."""
    held = {(e.pack, e.slot): e.enters for e in events if isinstance(e, SlotChange)}
    return [place for place, member in held.items() if member is not None]
