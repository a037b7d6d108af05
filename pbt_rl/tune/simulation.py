"""A simulator in virtual time: any controller, with any number of slots, over members that only pretend to train.

loop      takes the chunks that end next (all that end at the same moment), passes the controller one report,
          applies its decisions, lets `SlotAssigner` fill the slots, and starts the chunks of holders that may train
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from pbt_rl.controllers.changes import Change, changes
from pbt_rl.controllers.decisions import Controller, Decision, PopulationReport
from pbt_rl.controllers.hypers import Values
from pbt_rl.controllers.member import MemberRecord
from pbt_rl.controllers.objectives import ObjectiveWindow
from pbt_rl.population.turns import Candidate, SlotAssigner

Model = Callable[[int, int, Values, Random], float]
"""(member, frames that its weights were trained on, values, generator) -> a speed or a score."""


@dataclass(frozen=True)
class Stay:
    """One chunk: a member held a slot and trained these frames, from `begin` to `end` in virtual time."""

    slot: int
    member: int
    begin: float
    end: float
    frames: int


@dataclass(frozen=True)
class Simulation:
    """The result of a simulation.

    stays: chunks of training, in order of their end. rounds: (time, report, decisions) of every comparison that
    returned decisions. frames: of each member, over all generations. stopped: members that the controller stopped.
    """

    slots: int
    stays: tuple[Stay, ...]
    rounds: tuple[tuple[float, PopulationReport, tuple[Decision, ...]], ...]
    frames: tuple[int, ...]
    stopped: frozenset[int]
    total_time: float

    def completion(self, frames: int) -> float:
        """Return alpha: the share of the work that was done, if all of it is `frames` for every member."""
        return sum(self.frames) / (len(self.frames) * frames)

    @property
    def busy_time(self) -> float:
        """Time that members trained, summed over the slots."""
        return math.fsum(stay.end - stay.begin for stay in self.stays)

    @property
    def occupancy(self) -> float:
        """Share of the slots' time in which members trained."""
        return self.busy_time / (self.slots * self.total_time) if self.total_time else 0.0

    def occupied(self, time: float) -> int:
        """Return the number of slots that train at this moment."""
        return sum(stay.begin <= time < stay.end for stay in self.stays)


@dataclass(eq=False)
class _Member:
    record: MemberRecord
    limit_frames: int | None
    trained: int = 0
    """Frames of its present weights."""
    slot: int | None = None
    chunk: _Chunk | None = None

    @property
    def candidate(self) -> Candidate:
        limits = [x for x in (self.record.until_frames, self.limit_frames) if x is not None]
        return Candidate(self.record.id, self.record.frames, min(limits, default=None))


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
        share_slots: bool,
    ) -> None:
        self._controller = controller
        self._slots = slots
        self._share_slots = share_slots
        self._speed, self._score, self._rng = speed, score, rng
        self._chunk_frames = chunk_frames
        self._members = [
            _Member(MemberRecord(i, values, ObjectiveWindow(tasks=1, window=1)), limit_frames)
            for i, values in enumerate(controller.initial(num_members))
        ]
        for slot, holder in enumerate(slots.holders):
            if holder is not None:
                self._members[holder].slot = slot
        self._reports = {m.record.id: m.record.report() for m in self._members}
        """Of the members that are not stopped, in order of id."""
        self._touched = dict.fromkeys(range(num_members))
        """Members that changed since the slots were assigned, in order; at first all."""
        self._queue: list[tuple[float, int]] = []
        """(end of a chunk, member); a chunk that was cut short stays here and is skipped."""
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
            while not self._queue and decided:  # no member trains: no chunk would end and bring a report
                decided = self._observe()
                self._slot()

    def _end_chunk(self, member: _Member, chunk: _Chunk, frames: int) -> None:
        record = member.record
        assert member.slot is not None
        member.chunk = None
        member.trained += frames
        self.stays.append(Stay(member.slot, record.id, chunk.begin, self.now, frames))
        record.frames += frames
        record.note_objective(self._score(record.id, member.trained, record.values, self._rng))
        self._touch(record)

    def _touch(self, record: MemberRecord) -> None:
        self._touched[record.id] = None
        if record.stopped:
            self._reports.pop(record.id, None)
        else:
            self._reports[record.id] = record.report()

    def _observe(self) -> bool:
        reports = tuple(self._reports.values())
        seen = PopulationReport(min((r.frames for r in reports), default=0), reports)
        decisions = self._controller.observe(seen)
        if decisions:
            self.rounds.append((self.now, seen, tuple(decisions)))
            made = changes(decisions, {r.member: r.generation for r in reports})
            trained = [self._trained_after(change) for change in made]  # before any of them is applied
            for change, frames in zip(made, trained, strict=True):
                member = self._members[change.member]
                member.record.apply(change)
                member.trained = frames
                self._touch(member.record)
        return bool(decisions)

    def _trained_after(self, change: Change) -> int:
        """Return the frames of the member's weights after a change. A remembered state has those of its member now."""
        if change.weights_from is not None:
            return self._members[change.weights_from[0]].trained
        return 0 if change.weights == "fresh" else self._members[change.member].trained

    def _slot(self) -> None:
        """Assign the slots, if that can make a difference, and start the chunks that can start."""
        touched = [self._members[i] for i in self._touched]
        if self._share_slots or any(
            m.slot is None or m.record.stopped or not m.candidate.may_train for m in touched
        ):
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
        record, until = member.record, member.candidate.until_frames
        sizes = [
            x for x in (self._chunk_frames, None if until is None else until - record.frames) if x is not None
        ]
        assert sizes, "without chunk_frames a controller must set limits"
        speed = self._speed(record.id, member.trained, record.values, self._rng)
        member.chunk = _Chunk(self.now, min(sizes), speed)
        heapq.heappush(self._queue, (self.now + min(sizes) / speed, record.id))

    def _cut(self, member: _Member) -> None:
        if member.chunk is not None:
            frames = int((self.now - member.chunk.begin) * member.chunk.speed)
            self._end_chunk(member, member.chunk, frames)

    def result(self, slots: int) -> Simulation:
        return Simulation(
            slots,
            tuple(self.stays),
            tuple(self.rounds),
            tuple(m.record.frames for m in self._members),
            frozenset(m.record.id for m in self._members if m.record.stopped),
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
    slot_frames: int | None = None,
) -> Simulation:
    """Let a fresh controller decide over simulated members until no member may train any more.

    speed: frames per unit of virtual time, drawn for every chunk. score: the member's objective from the end of the
    chunk to the end of its next one. Both are passed the frames that the weights were trained on: 0 again after a
    restart, the donor's after a copy.
    chunk_frames: a member reports after this many frames, and when it must wait for a decision; None for only then.
    limit_frames: a member trains no longer than this (needed if the controller stops none). slot_frames: see
    `SlotAssigner`.
    """
    slots = min(slots, num_members)
    simulator = _Simulator(
        controller,
        num_members,
        SlotAssigner(range(slots), slot_frames),
        speed,
        score,
        Random(seed),
        chunk_frames,
        limit_frames,
        share_slots=slot_frames is not None,
    )
    simulator.run()
    return simulator.result(slots)
