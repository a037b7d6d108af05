"""History of a run, read from the run's journal. The run may have ended, may still train, or may have been killed."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from msgspec import structs

from pbt_rl.controllers.changes import Change, changes
from pbt_rl.controllers.decisions import Decision, MemberReport
from pbt_rl.controllers.events import (
    GPU_LEARNING,
    WAITING,
    ActorRestart,
    Comparison,
    End,
    Evaluation,
    Event,
    Final,
    MemberProgress,
    Other,
    Progress,
    Resume,
    RunWarning,
    SlotChange,
    Start,
)
from pbt_rl.controllers.lineage import Lineage, Node, Noise, mean
from pbt_rl.controllers.objectives import by_score
from pbt_rl.controllers.ready import since_comparison
from pbt_rl.controllers.records import converted, finite
from pbt_rl.errors import ConfigError
from pbt_rl.options.renamed import present_config
from pbt_rl.record.folder import RunFolder
from pbt_rl.record.journal import journal_events
from pbt_rl.record.run_options import RunOptions

E = TypeVar("E", bound=Event)


@dataclass(frozen=True)
class Point:
    """State of a member at one time. seconds: seconds since the start of the run. frames: frames of this member.

    episodes: finished episodes of all generations, at the last progress record. Before the first record: see
    `MemberReport.episodes`.
    """

    seconds: float
    member: int
    generation: int
    frames: int
    objective: float | None
    episodes: int
    complete: bool = True
    """False while an environment of the member has not finished an episode since the member's last change."""
    early: float | None = None
    """Mean objective of the latest episodes that began since the member's last change, inside or outside the window.
    None without such an episode, and at a comparison."""

    @property
    def drawn(self) -> float | None:
        """Objective for a curve. None while `complete` is False. (Otherwise curves would drop at each change.)"""
        return self.objective if self.complete else None


@dataclass(frozen=True)
class TakenDecision:
    """Decision of a controller.

    seconds: time of the decision, since the start of the run. frames: population clock at this time.
    objective: objective of the member at this time. None if unknown.
    """

    seconds: float
    frames: int
    decision: Decision
    change: Change
    objective: float | None

    @property
    def donor(self) -> int | None:
        """Donor of a replacement, even if only values are copied. None for another decision."""
        return getattr(self.decision, "donor", None)


@dataclass(frozen=True)
class TimeSlice:
    """Interval in which a member had a slot, in seconds since the start of the run.

    slot: number of the slot. The slots of all packs are numbered in the order of their first use, from 0.
    """

    slot: int
    member: int
    begin_seconds: float
    end_seconds: float


@dataclass(frozen=True)
class Phase:
    """Training of a member between two decisions of a search, in seconds since the start of the run.

    number: index of the phase (or rung) in the search.
    score: objective at the end of the phase, or None if unknown. outcome: `on` (continued), `completed` or `evicted`.
    `score` and `outcome` are None in a phase that has not ended.
    """

    member: int
    number: int
    begin_seconds: float
    end_seconds: float
    score: float | None
    outcome: str | None


@dataclass(frozen=True)
class History:
    """History of a run: its events, and tables that are computed from the events. `history_of` builds it.

    A *node* of the lineage is a member between two changes. The config is the config of the last resume, if any.
    Seconds count from the start of the run. The time between an interruption and the next resume does not count.
    """

    name: str
    events: Sequence[Event]
    options: RunOptions
    noise: Noise | None = None
    """Counts of comparisons, of replacements, and of replacements without a significant difference of scores. None if
    unknown."""
    folder: RunFolder | None = None
    """Folder from which the events were read. None if the events have another source."""

    @property
    def start(self) -> Start:
        """First event, with config and versions."""
        start = self.events[0]
        assert isinstance(start, Start)
        return start

    @property
    def config(self) -> dict[str, Any]:
        """Config of the last resume, or else of the start. Renamed options have their new names."""
        return present_config(self.start.config)

    def of(self, kind: type[E]) -> list[E]:
        """Return the events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]

    def newest(self, kind: type[E]) -> E | None:
        """Return the newest event of one kind. None without an event of this kind."""
        return next((event for event in reversed(self.events) if isinstance(event, kind)), None)

    def since(self, event: Event) -> float:
        """Return the seconds from the start of the run to an event, at least 0."""
        return max(0.0, event.time - self.start.time)  # a clock may be set back

    @cached_property
    def seconds(self) -> float:
        """Seconds from the start of the run to the last event."""
        return self.since(self.events[-1])

    @property
    def ended(self) -> str | None:
        """Reason for the end. None if the run still trains or was killed."""
        end = self.newest(End)
        return None if end is None else end.ended

    @cached_property
    def final(self) -> Final | None:
        """Final evaluation. None without a final evaluation."""
        return self.newest(Final)

    @cached_property
    def told(self) -> Progress | None:
        """Latest progress record. None without a progress record."""
        return self.newest(Progress)

    @cached_property
    def evaluations(self) -> list[Evaluation]:
        """Evaluations that have a finite mean, without the final evaluation."""
        return [e for e in self.of(Evaluation) if math.isfinite(e.mean)]

    @property
    def warnings(self) -> list[str]:
        """Warnings in the journal, without repetitions."""
        return list(dict.fromkeys(e.text for e in self.of(RunWarning)))

    @property
    def actor_restarts(self) -> int:
        """Number of restarts of actors."""
        return len(self.of(ActorRestart))

    @property
    def learners_lost(self) -> list[float]:
        """Seconds from the start of the run to each replacement of a learner."""
        return [self.since(e) for e in self.of(Other) if e.kind == "pack_lost"]

    @property
    def entry_episodes(self) -> int:
        """Number of episodes that one entry of a window averages. More than 1 only for device simulators."""
        return max((e.count for e in self.of(Comparison)), default=1)

    @property
    def cpu_seconds(self) -> float:
        """Estimated CPU seconds of all learners and actors. 0 if the journal does not record them."""
        return self._spent(lambda stage: stage not in (WAITING, GPU_LEARNING))

    @property
    def gpu_seconds(self) -> float:
        """Estimated seconds of learning, summed over all GPUs. 0 without a GPU."""
        return self._spent(lambda stage: stage == GPU_LEARNING)

    def _spent(self, counts: Callable[[str], bool]) -> float:
        """Estimate the busy seconds of the stages for which `counts` returns True, summed over threads.

        A progress record contains the mean number of busy threads of each stage. This mean is used for the time since
        the preceding record. The first records of a run have no means. The first record with means is therefore used
        for all the time before it. A later record without means gets the means of the record before.
        """
        total, before, busy, known = 0.0, 0.0, 0.0, False
        for event in self.of(Progress):
            known = known or bool(event.busy_threads)
            if not known:
                continue
            now = self.since(event)
            threads = [x for stage, x in event.busy_threads.items() if counts(stage)]
            busy = math.fsum(threads) if threads else busy
            total += busy * max(0.0, now - before)
            before = max(before, now)
        return total

    @cached_property
    def lineage(self) -> Lineage:
        """Lineage of all members."""
        return self._walked[0]

    @cached_property
    def points(self) -> list[Point]:
        """State of each reported member at each comparison and progress record, oldest first."""
        return self._walked[1]

    @cached_property
    def decisions(self) -> list[TakenDecision]:
        """All decisions, oldest first."""
        return self._walked[2]

    @cached_property
    def _walked(self) -> tuple[Lineage, list[Point], list[TakenDecision]]:
        """Lineage, points and decisions, computed in one pass over the events.

        One pass is needed, because decisions depend on the generations of the members before the comparison.
        """
        lineage, points, decisions = Lineage(), list[Point](), list[TakenDecision]()
        ended: dict[int, int] = {}
        for event in self.events:
            generations = lineage.generations if isinstance(event, Comparison) else {}
            lineage.take(event)
            if not isinstance(event, Comparison | Progress):
                continue
            seconds = self.since(event)
            now = [p for p in _points(event, seconds, ended) if (p.member, 0) in lineage]
            points += now
            if isinstance(event, Comparison):
                known = {p.member: p.objective for p in now}
                made = zip(event.decisions, changes(event.decisions, generations), strict=True)
                decisions += [
                    TakenDecision(seconds, event.frames, d, change, known.get(d.member)) for d, change in made
                ]
        return lineage, points, decisions

    @cached_property
    def time_slices(self) -> list[TimeSlice]:
        """Time slices of all slots. The time slice of a member that has not left its slot ends with the run."""
        slots: dict[tuple[int, int], int] = {}
        held: dict[int, tuple[int, float]] = {}
        time_slices = list[TimeSlice]()
        for event in self.of(SlotChange):
            if event.enters is not None and (event.enters, 0) not in self.lineage:
                continue
            slot = slots.setdefault((event.pack, event.slot), len(slots))
            seconds = self.since(event)
            if slot in held:
                member, since = held.pop(slot)
                time_slices.append(TimeSlice(slot, member, since, seconds))
            if event.enters is not None:
                held[slot] = event.enters, seconds
        return time_slices + [
            TimeSlice(slot, *entered, self.seconds) for slot, entered in sorted(held.items())
        ]

    @cached_property
    def phases(self) -> list[Phase]:
        """Phases of a search, in order of their end. The journal's decisions contain the index of the member's phase.

        If the journal has slots, a member's first phase begins when the member first enters a slot. A member that never
        enters a slot has no phase.
        """
        entered: dict[int, float] = {}
        for one in self.time_slices:
            entered[one.member] = min(entered.get(one.member, math.inf), one.begin_seconds)
        present: dict[int, tuple[int, float]] = {}
        phases = list[Phase]()
        for taken in self.decisions:
            member, number = taken.decision.member, taken.change.phase
            if member in present and (taken.change.stopped or number not in (None, present[member][0])):
                past, since = present.pop(member)
                outcome = "on" if number is not None else "completed" if taken.change.completed else "evicted"
                phases.append(Phase(member, past, since, taken.seconds, taken.objective, outcome))
            if number is not None and member not in present and (not self.time_slices or member in entered):
                first = all(phase.member != member for phase in phases)
                present[member] = number, entered.get(member, taken.seconds) if first else taken.seconds
        return phases + [Phase(m, *begun, self.seconds, None, None) for m, begun in present.items()]

    @property
    def training_seconds(self) -> float:
        """Seconds of training, without start-up and shutdown. If the journal does not record them: `seconds`."""
        told = None if self.told is None else self.told.training_seconds
        return self.seconds if told is None else told

    def trained_until(self, seconds: float) -> float:
        """Convert seconds since the start of the run to training seconds, linearly between progress records.

        0 before the first record. If no record has training seconds, the seconds are returned unchanged.
        """
        times, trained = self._training_clock
        after = bisect_right(times, seconds)
        if not times or after == 0:
            return 0.0 if times else seconds
        begun = trained[after - 1]
        passed = seconds - times[after - 1]
        if after == len(times):
            return begun + passed
        share = passed / (times[after] - times[after - 1])
        return begun + share * (trained[after] - begun)

    @cached_property
    def _training_clock(self) -> tuple[list[float], list[float]]:
        """Seconds since the start, and training seconds. Both have an entry per record that has training seconds."""
        known = [(self.since(e), e.training_seconds) for e in self.of(Progress)]
        told = [(time, trained) for time, trained in known if trained is not None]
        return [time for time, _ in told], [trained for _, trained in told]

    @property
    def controls(self) -> frozenset[int]:
        """Members of the control group."""
        return self.options.controls

    def standard_error(self, evaluation: Evaluation) -> float:
        """Return the standard error of an evaluation's mean. Samples are episodes, or tasks in an env with tasks."""
        return evaluation.spread / math.sqrt(max(1, self.start.tasks or evaluation.episodes))

    @cached_property
    def last(self) -> dict[int, Node]:
        """Last node of each member in the lineage, including stopped members, in order of id."""
        return {m: self.lineage.path(m)[-1] for m in sorted({n.member for n in self.lineage.nodes})}

    @cached_property
    def curves(self) -> dict[int, list[Point]]:
        """Points of each member, oldest first."""
        curves: dict[int, list[Point]] = {m: [] for m in self.last}
        for point in self.points:
            curves[point.member].append(point)
        return curves

    def objective(self, node: Node) -> float | None:
        """Return the last objective of a node in the lineage. None if unknown, NaN, infinite, or too large to sum."""
        return finite(self.lineage.objectives.get(node.key))

    @cached_property
    def ranking(self) -> list[int]:
        """Members that have a score and are not controls, best first (see `by_score`)."""
        return [m for m in self._ranked if m not in self.controls]

    @property
    def best(self) -> int | None:
        """Best member that is not a control. None while no member has a score."""
        return self.ranking[0] if self.ranking else None

    @property
    def final_scores(self) -> Mapping[int, float]:
        """Member -> mean of the final evaluation."""
        return {} if self.final is None else self.final.means

    def score(self, member: int | None) -> float | None:
        """Return the mean of a member's final evaluation, or else its last objective. None if both are unknown."""
        if member is None or member not in self.last:
            return None
        final = finite(self.final_scores.get(member))
        return self.objective(self.last[member]) if final is None else final

    @cached_property
    def now(self) -> Mapping[int, MemberProgress]:
        """Member -> latest progress."""
        return {} if self.told is None else {one.member: one for one in self.told.members}

    @cached_property
    def everyone(self) -> list[int]:
        """All members, including controls, best first. Members without a score are last."""
        return [*self._ranked, *(m for m in self.last if m not in self._ranked)]

    @property
    def frames(self) -> int:
        """Population clock at the last comparison or progress record, or 0."""
        return next((e.frames for e in reversed(self.events) if isinstance(e, Comparison | Progress)), 0)

    @property
    def founders(self) -> int:
        """Number of different initial weights from which the present weights of the members descend.

        The new weights of a restart count as initial weights, too. Stopped members and controls are left out.
        """
        return sum(member not in self.controls for member, _ in self.lineage.surviving_roots())

    @property
    def all_frames(self) -> int:
        """Sum of the frames of all members."""
        return sum(points[-1].frames for points in self.curves.values() if points)

    @property
    def population(self) -> int:
        """Number of members that are not controls."""
        return len(self.last.keys() - self.controls)

    @cached_property
    def _ranked(self) -> list[int]:
        return by_score({m: self.objective(node) for m, node in self.last.items()}, self.final_scores)

    @cached_property
    def varied(self) -> list[str]:
        """Names of the values that differ between nodes of the lineage."""
        nodes = self.lineage.nodes
        return (
            [n for n in nodes[0].values if len({node.values.get(n) for node in nodes}) > 1] if nodes else []
        )

    @property
    def is_search(self) -> bool:
        """True if the journal has phases of a search, which can stop members early."""
        return bool(self.phases)


def read_run(folder: Path) -> History:
    """Read the journal of a run. Raises ConfigError if the journal is missing or damaged.

    `light` reduces the windows in its events.
    """
    noise, events = Noise(), []
    for event in journal_events(folder):
        noise.take(event)
        events.append(light(event, whole_windows=noise.whole_windows))
    return history_of(folder.resolve().name, events, noise, RunFolder(folder))


def history_of(
    name: str, events: Sequence[Event], noise: Noise | None = None, folder: RunFolder | None = None
) -> History:
    """Build the history of a run.

    noise: see `History.noise`.
    Raises ConfigError if the first event is not `start`, or if its config is invalid.
    """
    if not events or not isinstance(events[0], Start):
        where = name if folder is None else folder.path
        raise ConfigError(
            f"{where} is not the folder of a run: its journal does not begin with the event `start`"
        )
    events = uninterrupted(events)
    assert isinstance(events[0], Start)
    options = converted(events[0].config, RunOptions, "the config in the journal")
    return History(name, events, options, noise, folder)


def _points(event: Comparison | Progress, seconds: float, ended: dict[int, int]) -> list[Point]:
    """Return the points of an event. ended: member -> episodes in the last progress record, which is updated."""
    told: list[tuple[MemberProgress | MemberReport, float | None, bool, float | None]]
    if isinstance(event, Progress):
        told = [(m, m.objective, m.complete, m.early) for m in event.members]
        ended |= {m.member: m.episodes for m in event.members}
    else:
        of = event.report.members
        told = [(m, mean(m.objectives), m.member not in event.incomplete, None) for m in of]
    return [
        Point(
            seconds,
            m.member,
            m.generation,
            m.frames,
            finite(objective),
            ended.get(m.member, m.episodes),
            complete,
            finite(early),
        )
        for m, objective, complete, early in told
    ]


def light(event: Event, *, whole_windows: bool) -> Event:
    """Return a comparison without the members' values, and with the mean of the compared episodes as each window.

    Return other events unchanged. (In a run of many members, windows are 90 % of the journal.)
    whole_windows: True if the ready rule compares whole windows. False if it compares only episodes since the last
    comparison. A member without such episodes gets the mean of its whole window.
    """
    if not isinstance(event, Comparison):
        return event
    members = []
    for m in event.report.members:
        newest = () if whole_windows else since_comparison(m).objectives
        objective = mean(newest or m.objectives)
        kept = () if objective is None else (objective,)
        members.append(replace(m, objectives=kept, recent=None, values={}))
    report = replace(event.report, members=tuple(members))
    return structs.replace(event, report=report)


def uninterrupted(events: Iterable[Event]) -> Sequence[Event]:
    """Remove the interruptions from the events of a resumed run.

    - The times of a `Resume` and of all later events are reduced by the length of the interruption.
    - Each `End` and `Final` before a `Resume` is removed.
    - Before each `Resume`, each occupied slot is emptied by an additional `SlotChange`, because members may enter other
      slots afterwards.
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
    """Return (pack, slot) for each slot that holds a member after the last event."""
    held = {(e.pack, e.slot): e.enters for e in events if isinstance(e, SlotChange)}
    return [place for place, member in held.items() if member is not None]
