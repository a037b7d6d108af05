"""A virtual-time simulator: any controller, with any number of slots, over members that only pretend to train.

loop      takes the chunks that end next (all that end at the same moment), shows the controller one report,
          applies its decisions, lets `SlotAssigner` fill the slots, and starts the chunks of who sits and may train
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random

from pbt_rl.pbt.decisions import (
    Continue,
    Controller,
    Decision,
    MemberReport,
    Mutate,
    PopulationReport,
    Replace,
    Restart,
    Stop,
)
from pbt_rl.pbt.hypers import Values
from pbt_rl.population.assigner import Candidate, SlotAssigner

Model = Callable[[int, int, Values, Random], float]
"""(member, frames that its weights are trained on, values, generator) -> a speed or a score."""


@dataclass(frozen=True)
class Stay:
    """A member held a slot and trained, from `begin` to `end` (virtual time), for so many frames."""

    slot: int
    member: int
    begin: float
    end: float
    frames: int


@dataclass(frozen=True)
class Simulation:
    """What happened.

    stays: chunks of training, in order of their end. rounds: (time, report, decisions) of every answer that was not
    empty. frames: what each member trained, over all generations. stopped: members that the controller ended.
    """

    slots: int
    stays: tuple[Stay, ...]
    rounds: tuple[tuple[float, PopulationReport, tuple[Decision, ...]], ...]
    frames: tuple[int, ...]
    stopped: frozenset[int]
    total_time: float

    def completion(self, frames: int) -> float:
        """Alpha: share of the work that is done where every member would train `frames`."""
        return sum(self.frames) / (len(self.frames) * frames)

    @property
    def busy_time(self) -> float:
        """Time that the slots trained, summed over them."""
        return math.fsum(stay.end - stay.begin for stay in self.stays)

    @property
    def occupancy(self) -> float:
        """Share of the slots' time in which they trained."""
        return self.busy_time / (self.slots * self.total_time) if self.total_time else 0.0

    def occupied(self, time: float) -> int:
        """Places that train at this moment."""
        return sum(stay.begin <= time < stay.end for stay in self.stays)


@dataclass
class _Member:
    report: MemberReport
    candidate: Candidate
    trained: int = 0
    """Frames of its present weights."""
    stopped: bool = False
    slot: int | None = None
    chunk: _Chunk | None = None


@dataclass
class _Chunk:
    begin: float
    frames: int
    speed: float


class _Simulator:
    def __init__(
        self,
        controller: Controller,
        num_members: int,
        slots: SlotAssigner,
        speed: Model,
        score: Model,
        rng: Random,
        chunk_frames: int | None,
        limit_frames: int | None,
        take_turns: bool,
    ) -> None:
        self._controller = controller
        self._slots = slots
        self._take_turns = take_turns
        self._speed, self._score, self._rng = speed, score, rng
        self._chunk_frames, self._limit_frames = chunk_frames, limit_frames
        self._members = [
            _Member(MemberReport(i, 0, (), 0, 0, values), Candidate(i, 0, limit_frames))
            for i, values in enumerate(controller.initial(num_members))
        ]
        for slot, occupant in enumerate(slots.occupants):
            if occupant is not None:
                self._members[occupant].slot = slot
        self._reports = {m.report.member: m.report for m in self._members}
        """Of the members that are not stopped, in order of id."""
        self._touched = dict.fromkeys(range(num_members))
        """Members to which something happened since the slots were given, in order; at first all."""
        self._queue: list[tuple[float, int]] = []
        """(when a chunk ends, member); one that was cut short stays in it and is passed over."""
        self.now = 0.0
        self.stays: list[Stay] = []
        self.rounds: list[tuple[float, PopulationReport, tuple[Decision, ...]]] = []

    def run(self) -> None:
        self._observe()
        self._slot()
        while self._queue:
            self.now = self._queue[0][0]
            while self._queue and self._queue[0][0] == self.now:
                _, i = heapq.heappop(self._queue)
                chunk = self._members[i].chunk
                if chunk is not None and chunk.begin + chunk.frames / chunk.speed == self.now:
                    self._end_chunk(self._members[i], chunk, chunk.frames)
            decided = self._observe()
            self._slot()
            while not self._queue and decided:  # nobody trains: no report would come by itself
                decided = self._observe()
                self._slot()

    def _end_chunk(self, member: _Member, chunk: _Chunk, frames: int) -> None:
        report = member.report
        assert member.slot is not None
        member.chunk = None
        member.trained += frames
        self.stays.append(Stay(member.slot, report.member, chunk.begin, self.now, frames))
        score = self._score(report.member, member.trained, report.values, self._rng)
        self._set_report(
            member,
            replace(report, frames=report.frames + frames, objectives=(score,), episodes=report.episodes + 1),
        )
        member.candidate = replace(member.candidate, frames=member.report.frames)

    def _set_report(self, member: _Member, report: MemberReport) -> None:
        member.report = report
        self._touched[report.member] = None
        if not member.stopped:
            self._reports[report.member] = report

    def _observe(self) -> bool:
        reports = tuple(self._reports.values())
        seen = PopulationReport(min((r.frames for r in reports), default=0), reports)
        decisions = self._controller.observe(seen)
        if decisions:
            self.rounds.append((self.now, seen, tuple(decisions)))
            trained = [
                self._members[d.donor].trained if isinstance(d, Replace) else 0 for d in decisions
            ]  # before any of them
            for decision, donor_trained in zip(decisions, trained, strict=True):
                self._apply(self._members[decision.member], decision, donor_trained)
        return bool(decisions)

    def _apply(self, member: _Member, decision: Decision, donor_trained: int) -> None:
        self._touched[decision.member] = None
        if isinstance(decision, Continue | Restart):
            limits = [x for x in (decision.until_frames, self._limit_frames) if x is not None]
            member.candidate = replace(member.candidate, until_frames=min(limits, default=None))
        if isinstance(decision, Stop):
            member.stopped = True
            del self._reports[decision.member]
        if isinstance(decision, Mutate | Replace | Restart):
            old = member.report
            new = replace(
                old, objectives=(), episodes=0, generation=old.generation + 1, values=decision.values
            )
            self._set_report(member, new)
        if isinstance(decision, Restart):
            member.trained = 0
        elif isinstance(decision, Replace) and decision.copy != "hypers":
            member.trained = donor_trained

    def _slot(self) -> None:
        """Give the slots anew where that can make a difference, and start the chunks that can be."""
        touched = [self._members[i] for i in self._touched]
        if self._take_turns or any(m.slot is None or m.stopped or not m.candidate.may_train for m in touched):
            touched += self._move()
        self._touched.clear()
        for member in touched:
            if member.slot is not None and member.chunk is None and member.candidate.may_train:
                self._begin_chunk(member)

    def _move(self) -> list[_Member]:
        entered = []
        for change in self._slots.assign([self._members[i].candidate for i in self._reports]):
            if change.leaves is not None:
                left = self._members[change.leaves]
                self._cut(left)
                left.slot = None
            if change.enters is not None:
                entered.append(self._members[change.enters])
                entered[-1].slot = change.slot
        return entered

    def _begin_chunk(self, member: _Member) -> None:
        report, until = member.report, member.candidate.until_frames
        sizes = [
            x for x in (self._chunk_frames, None if until is None else until - report.frames) if x is not None
        ]
        assert sizes, "without chunk_frames a controller must say until when"
        speed = self._speed(report.member, member.trained, report.values, self._rng)
        member.chunk = _Chunk(self.now, min(sizes), speed)
        heapq.heappush(self._queue, (self.now + min(sizes) / speed, report.member))

    def _cut(self, member: _Member) -> None:
        if member.chunk is not None:
            frames = int((self.now - member.chunk.begin) * member.chunk.speed)
            self._end_chunk(member, member.chunk, frames)

    def result(self, slots: int) -> Simulation:
        return Simulation(
            slots,
            tuple(self.stays),
            tuple(self.rounds),
            tuple(m.report.frames for m in self._members),
            frozenset(m.report.member for m in self._members if m.stopped),
            max((stay.end for stay in self.stays), default=0.0),
        )


def simulate(
    controller: Controller,
    num_members: int,
    slots: int,
    *,
    speed: Model,
    score: Model,
    seed: int = 0,
    chunk_frames: int | None = None,
    limit_frames: int | None = None,
    turn_frames: int | None = None,
) -> Simulation:
    """Let a fresh controller decide over simulated members until nobody may train any more.

    speed: frames in one unit of virtual time, drawn for every chunk. score: what the chunk ends with; it is the
    member's objective until its next chunk. Both see the frames that the weights are trained on: 0 again after
    a restart, the donor's after a copy.
    chunk_frames: a member reports after so many frames, and when it must wait for a decision; None for only then.
    limit_frames: nobody trains longer (needed where the controller stops nobody). turn_frames: see `SlotAssigner`.
    """
    slots = min(slots, num_members)
    simulator = _Simulator(
        controller,
        num_members,
        SlotAssigner(num_members, slots, turn_frames),
        speed,
        score,
        Random(seed),
        chunk_frames,
        limit_frames,
        take_turns=turn_frames is not None,
    )
    simulator.run()
    return simulator.result(slots)


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean of independent values, and its standard error."""
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, math.nan
    return mean, math.sqrt(math.fsum((x - mean) ** 2 for x in values) / (len(values) - 1) / len(values))
