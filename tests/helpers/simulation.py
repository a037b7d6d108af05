"""A simulator in virtual time: any controller, with any number of slots, over members that only pretend to train."""

from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from pbt_rl.controllers.changes import changes
from pbt_rl.controllers.decisions import PopulationReport
from pbt_rl.controllers.member_record import MemberRecord
from pbt_rl.controllers.objectives import ObjectiveWindow
from pbt_rl.population.slot_assignment import Candidate, SlotAssigner


class Stay(NamedTuple):
    """One chunk: a member held a slot and trained these frames, from `begin` to `end` in virtual time."""

    slot: int
    member: int
    begin: float
    end: float
    frames: int


@dataclass(eq=False)
class _Member:
    record: MemberRecord
    limit: int | None
    trained: int = 0  # frames of its present weights
    slot: int | None = None
    begin: float = 0.0
    chunk: int = 0  # frames of the chunk that it trains, 0 for none
    speed: float = 1.0

    @property
    def end(self):
        return self.begin + self.chunk / self.speed

    @property
    def candidate(self):
        limits = [x for x in (self.record.until_frames, self.limit) if x is not None]
        return Candidate(self.record.id, self.record.frames, min(limits, default=None))


class Simulation:
    """See `simulate`. frames: of each member, over all generations. rounds: (time, report, decisions)."""

    def __init__(self, controller, num_members, slots, speed, score, seed, chunk_frames, limit):
        self._controller, self._speed, self._score, self._rng = controller, speed, score, Random(seed)
        self._slots, self._chunk_frames = SlotAssigner(range(slots), None), chunk_frames
        windows = [ObjectiveWindow(tasks=1, window=1) for _ in range(num_members)]
        values = controller.initial(num_members)
        records = [MemberRecord(i, *of) for i, of in enumerate(zip(values, windows, strict=True))]
        self._members = [_Member(record, limit) for record in records]
        for slot in range(slots):
            self._members[slot].slot = slot
        self._reports = {record.id: record.report() for record in records}
        self.now, self.stays, self.rounds = 0.0, [], []
        while self._goes_on():
            self._end_next_chunks()
        self.frames = tuple(record.frames for record in records)
        self.stopped = frozenset(record.id for record in records if record.stopped)
        self.total_time = max((stay.end for stay in self.stays), default=0.0)

    def completion(self, frames):
        """The share of the work that was done, if all of it is `frames` for every member."""
        return sum(self.frames) / (len(self.frames) * frames)

    def _goes_on(self):
        decided = self._observe()
        self._begin_chunks()
        return decided or any(member.chunk for member in self._members)

    def _observe(self):
        reports = tuple(self._reports.values())
        seen = PopulationReport(min((r.frames for r in reports), default=0), reports)
        decisions = tuple(self._controller.observe(seen))
        if decisions:
            self.rounds.append((self.now, seen, decisions))
        made = changes(decisions, {r.member: r.generation for r in reports})
        for change, trained in [(change, self._trained_after(change)) for change in made]:
            member = self._members[change.member]
            member.record.apply(change)
            member.trained = trained
            self._report(member.record)
        return bool(decisions)

    def _trained_after(self, change):
        if change.weights_from is not None:
            return self._members[change.weights_from[0]].trained
        return 0 if change.weights == "fresh" else self._members[change.member].trained

    def _report(self, record):
        if record.stopped:
            self._reports.pop(record.id, None)
        else:
            self._reports[record.id] = record.report()

    def _begin_chunks(self):
        for change in self._slots.assign([self._members[i].candidate for i in self._reports]):
            if change.leaves is not None:
                left = self._members[change.leaves]
                if left.chunk:
                    self._end_chunk(left, int((self.now - left.begin) * left.speed))
                left.slot = None
            if change.enters is not None:
                self._members[change.enters].slot = change.slot
        for member in [self._members[i] for i in self._slots.members if i is not None]:
            record, until = member.record, member.candidate.until_frames
            if member.candidate.may_train and not member.chunk:
                left = None if until is None else until - record.frames
                member.chunk = min(frames for frames in (self._chunk_frames, left) if frames is not None)
                member.begin = self.now
                member.speed = self._speed(record.id, member.trained, record.values, self._rng)

    def _end_next_chunks(self):
        training = [member for member in self._members if member.chunk]
        self.now = min((member.end for member in training), default=self.now)
        for member in training:
            if member.end == self.now:
                self._end_chunk(member, member.chunk)

    def _end_chunk(self, member, frames):
        record = member.record
        self.stays.append(Stay(member.slot, record.id, member.begin, self.now, frames))
        member.chunk, member.trained = 0, member.trained + frames
        record.frames += frames
        record.note_objective(self._score(record.id, member.trained, record.values, self._rng))
        self._report(record)


def simulate(controller, num_members, slots, *, speed, score, seed=0, chunk_frames=None, limit_frames=None):
    """Let a fresh controller decide over simulated members until no member may train any more.

    speed: frames per vector env of virtual time, drawn for every chunk. score: the member's objective from the end of
    the chunk to the end of its next one. Both are functions of (member, frames that its weights were trained on,
    values, generator); the frames are 0 again after a restart, the donor's after a copy.
    chunk_frames: a member reports after so many, and when it must wait for a decision; None for only then.
    limit_frames: a member trains no longer than this (needed if the controller stops none).
    """
    slots = min(slots, num_members)
    return Simulation(controller, num_members, slots, speed, score, seed, chunk_frames, limit_frames)
