"""The history of a run, from its journal: the run may have ended, go on, or have been killed."""

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
from pbt_rl.record.folder import RunFolder
from pbt_rl.record.journal import journal_events

FRAMES = "frames"
"""What members of a run are trained for, in the names of columns and the texts of figures."""


@dataclass(frozen=True)
class Point:
    """One member at one moment. seconds: since the run began. frames: of the member."""

    seconds: float
    member: int
    generation: int
    frames: int
    objective: float | None
    episodes: int
    complete: bool = True
    """The window is more than the shortest episodes since the member's last change."""

    @property
    def drawn(self) -> float | None:
        """The objective that a curve shows: none while the window is not complete, or it would dive at each change."""
        return self.objective if self.complete else None


@dataclass(frozen=True)
class Moment:
    """The population at one moment.

    nodes: of the members that were not stopped before the decisions of this moment. founders: how many fresh weights
    the members of the population descend from that are not stopped after them.
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
    """What the decision did to its member."""
    objective: float | None


@dataclass(frozen=True)
class Turn:
    """The time in which a member held a slot. slot: counted over all packs."""

    slot: int
    member: int
    begin_seconds: float
    end_seconds: float


@dataclass(frozen=True)
class Phase:
    """A member's training between two decisions of a search.

    score: its objective at the end. outcome: what followed: `on`, `completed` or `evicted`. Both are None
    while the phase goes on.
    """

    member: int
    number: int
    begin_seconds: float
    end_seconds: float
    score: float | None
    outcome: str | None


@dataclass(frozen=True)
class SearchOptions:
    """Of the options of a search, those that a report reads."""

    eviction_rate: Annotated[float, Meta(ge=0, lt=1)] = 0.0


@dataclass(frozen=True)
class PbtOptions:
    """Of the options of PBT, those that a report reads."""

    ready: str = ""


@dataclass(frozen=True)
class RunOptions:
    """The options that a report reads. A run of `tune.run` has few of them."""

    env: str = "a run"
    controller: str = "pbt"
    num_policies: Whole = 0
    control: Annotated[float, Meta(ge=0, le=100_000)] = 0.0
    train_for_frames: Whole | None = None
    train_for_seconds: float | None = None
    search: SearchOptions = SearchOptions()
    pbt: PbtOptions = PbtOptions()
    api: str | None = None
    """Of a run of `tune.run`, which counts steps and evaluations."""
    choices: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Name of a value -> what its indices mean."""

    @property
    def controls(self) -> frozenset[int]:
        """Members of the control group."""
        first = self.num_policies
        return frozenset(range(first, first + number_of_controls(self.control, first)))

    @property
    def unit(self) -> str:
        """What members are trained for."""
        return FRAMES if self.api is None else "steps"

    def shown(self, name: str, value: float) -> float | str:
        """Return a value; of a choice its meaning."""
        texts = self.choices.get(name)
        return value if not texts else texts[min(max(round(value), 0), len(texts) - 1)]


@dataclass(frozen=True)
class History:
    """Everything that a report shows.

    config, versions: as in the journal's first event; the config of a resumed run is that of its last resume. seconds:
    since the run began, without the time in which it stood still. ended: why the run ended; None if it goes on or was
    cut off.
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
    turns: Sequence[Turn]
    phases: Sequence[Phase]
    actor_restarts: int
    learners_lost: Sequence[float] = ()
    """Seconds at which a learner died or hung and was replaced."""
    final: Final | None = None
    """The games after training, if there were any."""
    evaluations: Sequence[Evaluation] = ()
    """The games beside training, if there were any."""
    tasks: int = 0
    """Of the environment; 0 for one without."""
    entry_episodes: int = 1
    """Episodes whose mean is one entry of a window: more than 1 in a simulator on the device."""
    noise: Noise | None = None
    """Of the comparisons; None if the windows were not read."""
    remarks: Sequence[str] = ()
    """What the terminal showed about what went wrong unseen."""
    told: Progress | None = None
    """The newest record of progress; None if there is none."""
    cpu_seconds: float = 0.0
    """Of all processes, on the learners' and actors' side; 0 if it was not recorded."""
    gpu_seconds: float = 0.0
    """In which GPUs learned, added up; 0 without one."""

    @property
    def training_seconds(self) -> float:
        """Without start and end, as the terminal shows them; of a run that records none, `seconds`."""
        told = None if self.told is None else self.told.training_seconds
        return self.seconds if told is None else told

    @property
    def controls(self) -> frozenset[int]:
        """Members of the control group."""
        return self.options.controls

    def standard_error(self, games: Evaluation) -> float:
        """Return that of the mean of games beside training; with tasks, mean and spread are over these."""
        return games.spread / math.sqrt(max(1, self.tasks or games.episodes))

    @cached_property
    def last(self) -> dict[int, Node]:
        """Return each member's last node, stopped or not, in order of id."""
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
        """Return the node's last known objective; None if there is none, or if it is NaN or infinite."""
        return finite(self.lineage.objectives.get(node.key))

    @cached_property
    def ranking(self) -> list[int]:
        """Return the population's members with a score, best first: see `by_score`."""
        return [m for m in self._ranked if m not in self.controls]

    @property
    def best(self) -> int | None:
        """Return the best member; None while no member of the population has a score."""
        return self.ranking[0] if self.ranking else None

    @property
    def finals(self) -> Mapping[int, float]:
        """Return the means of final games, of the members that played any."""
        return {} if self.final is None else self.final.means

    def score(self, member: int | None) -> float | None:
        """Return a member's mean of final games; if it has played none, its last known objective."""
        if member is None or member not in self.last:
            return None
        final = finite(self.finals.get(member))
        return self.objective(self.last[member]) if final is None else final

    @cached_property
    def now(self) -> Mapping[int, MemberProgress]:
        """Return the newest record of each member's progress, by member."""
        return {} if self.told is None else {one.member: one for one in self.told.members}

    @cached_property
    def everyone(self) -> list[int]:
        """Return all members, controls among them, best first; last those without a score."""
        return [*self._ranked, *(m for m in self.last if m not in self._ranked)]

    @property
    def frames(self) -> int:
        """Return how far the members are: the least frames of any that trains, as their records have it."""
        return self.moments[-1].frames if self.moments else 0

    @property
    def all_frames(self) -> int:
        """Return the sum over all members."""
        return sum(points[-1].frames for points in self.curves.values() if points)

    @property
    def population(self) -> int:
        """Return the number of members that are not controls."""
        return len(self.last.keys() - self.controls)

    @cached_property
    def _ranked(self) -> list[int]:
        return by_score({m: self.objective(node) for m, node in self.last.items()}, self.finals)

    @cached_property
    def varied(self) -> list[str]:
        """Return the names of the values in which any two nodes differ: what was tuned or searched."""
        nodes = self.lineage.nodes
        return (
            [n for n in nodes[0].values if len({node.values.get(n) for node in nodes}) > 1] if nodes else []
        )

    @property
    def is_search(self) -> bool:
        """Return whether members are configurations that are trained phase by phase and stopped."""
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
    """Build the history from a run's events, the first of which is `Start`. Raises ConfigError.

    noise: of the same run, if its windows were read.
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
    turns = _turns((e for e in changed if e.enters is None or (e.enters, 0) in lineage), began, total)
    return History(
        name=name,
        config=start.config,
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
        turns=turns,
        phases=_phases(decisions, turns, total),
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
    """Integrate the busy threads of some stages; each record of progress has them as means over the time before it.

    The first ones of a run have none yet: the first that has them stands for the time since the start.
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


def _turns(changes: Iterable[SlotChange], began: float, total: float) -> list[Turn]:
    """Pair every entry into a slot with the exit; turns without an exit last to the end."""
    slots: dict[tuple[int, int], int] = {}
    holders: dict[int, tuple[int, float]] = {}
    turns = []
    for event in changes:
        slot = slots.setdefault((event.pack, event.slot), len(slots))
        seconds = _since(began, event)
        if slot in holders:
            member, since = holders.pop(slot)
            turns.append(Turn(slot, member, since, seconds))
        if event.enters is not None:
            holders[slot] = event.enters, seconds
    turns += [Turn(slot, member, since, total) for slot, (member, since) in sorted(holders.items())]
    return turns


def _phases(decisions: Iterable[TakenDecision], turns: Sequence[Turn], total: float) -> list[Phase]:
    """Return the phases of a search, as its decisions number them, in order of their end.

    The first phase of a member begins with its first turn; a member that never held a slot has no phase.
    """
    entered: dict[int, float] = {}
    for turn in turns:
        entered[turn.member] = min(entered.get(turn.member, math.inf), turn.begin_seconds)
    present: dict[int, tuple[int, float]] = {}
    phases = []
    for taken in decisions:
        member, number = taken.decision.member, taken.change.phase
        if member in present and (taken.change.stopped or number not in (None, present[member][0])):
            past, since = present.pop(member)
            outcome = "on" if number is not None else "completed" if taken.change.completed else "evicted"
            phases.append(Phase(member, past, since, taken.seconds, taken.objective, outcome))
        if number is not None and member not in present and (not turns or member in entered):
            first = all(phase.member != member for phase in phases)
            present[member] = number, entered.get(member, taken.seconds) if first else taken.seconds
    phases += [Phase(m, number, since, total, None, None) for m, (number, since) in present.items()]
    return phases


def light(event: Event) -> Event:
    """Return the event; of a round, keep of each window the mean alone: a tenth of a journal of many members."""
    if not isinstance(event, Round):
        return event
    means = [(m, mean(m.objectives)) for m in event.report.members]
    members = tuple(replace(m, objectives=() if x is None else (x,), values={}) for m, x in means)
    return structs.replace(event, report=replace(event.report, members=members))


def uninterrupted(events: Iterable[Event]) -> Sequence[Event]:
    """Return the events with the interruptions taken out.

    - All times after a `Resume` are earlier by the time in which the run stood still: from the event before it to it.
    - An `End` and a `Final` that a `Resume` follows are left out.
    - Every slot is left at a `Resume`, at which others may take other slots.
    - The config of the first event is that of the last `Resume`.
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
    """Return (pack, slot) of every slot that a member holds after the events."""
    held = {(e.pack, e.slot): e.enters for e in events if isinstance(e, SlotChange)}
    return [place for place, member in held.items() if member is not None]
