"""Searches with a barrier: each bracket is one Successive Halving, and several run at once."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pbt_rl.controllers.decisions import Continue, Decision, MemberReport, PopulationReport, Restart
from pbt_rl.controllers.exploit import rank
from pbt_rl.controllers.search.base import Ended, Search


@dataclass(frozen=True)
class Rung:
    """One phase of a bracket: its number of members, and their frames at its end, since their weights were fresh."""

    members: int
    frames: int


@dataclass(frozen=True)
class Bracket:
    """The members of one Successive Halving, and its rungs."""

    members: tuple[int, ...]
    rungs: tuple[Rung, ...]


@dataclass(eq=False)
class Brackets(Search):
    """Runs several brackets at once: when all members of one have ended a rung, the best of them enter the next.

    restart: a member that goes on begins again from fresh weights, with the same values.
    slots: None lets any free slot train any member that has not ended the rung (*dynamic* allocation). A number
    ties each member to one slot for the whole search (*static*): the members of one slot hold it one after
    the other in every rung, and it idles when they have ended. It is not made for `restart`.

    Ties are broken by the seeded generator. A member that vanishes is not waited for.
    """

    restart: bool = field(default=False, kw_only=True)
    slots: int | None = field(default=None, kw_only=True)
    _brackets: list[Bracket] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        assert not (self.restart and self.slots), "static allocation is not made for restarts"

    @abstractmethod
    def brackets(self, num_members: int) -> list[Bracket]:
        """Return the brackets; every member is in one."""

    def _plan(self, num_members: int) -> None:
        self._brackets = self.brackets(num_members)

    def _first_decisions(self, report: PopulationReport) -> list[Decision]:
        decisions: list[Decision] = []
        members = {m.member: m for m in report.members}
        for bracket in self._brackets:
            for member in bracket.members:
                self._progress[member].end_frames = bracket.rungs[0].frames
            first = self._release([members[i] for i in bracket.members if i in members], {}, restart=False)
            decisions += first
            chosen = {d.member for d in first}
            decisions += [
                Continue(i, "waits for its place", until_frames=0) for i in bracket.members if i not in chosen
            ]
        return sorted(decisions, key=lambda d: d.member)

    def _judge(self, ended: dict[int, Ended], report: PopulationReport) -> list[Decision]:
        by_member = {m.member: m for m in report.members if not self._progress[m.member].stopped}
        decisions: list[Decision] = []
        for bracket in self._brackets:
            alive = [by_member[i] for i in bracket.members if i in by_member]
            if not alive:
                continue
            phase = self._progress[alive[0].member].phase
            if phase == len(bracket.rungs) - 1:
                decisions += [
                    self._complete(m.member, ended[m.member].score) for m in alive if m.member in ended
                ]
                alive = [m for m in alive if m.member not in ended]
            elif all(m.member in ended for m in alive):
                decisions += self._evict(
                    {m.member: ended[m.member].score for m in alive}, bracket.rungs[phase + 1]
                )
                alive = [m for m in alive if not self._progress[m.member].stopped]
                for m in alive:
                    self._enter(m, bracket.rungs[phase + 1])
                decisions += self._release(alive, {}, restart=self.restart)
                continue
            decisions += self._release(alive, ended, restart=False)
        return decisions

    def _evict(self, scores: dict[int, float], rung: Rung) -> list[Decision]:
        ranking = rank(scores, self._rng)
        return [
            self._give_up(
                member,
                f"{scores[member]:.4g} is at place {place} of {len(ranking)}",
                scores[member],
                (place, len(ranking)),
            )
            for place, member in enumerate(ranking, start=1)
            if place > rung.members
        ]

    def _enter(self, m: MemberReport, rung: Rung) -> None:
        progress = self._progress[m.member]
        progress.phase += 1
        progress.start_frames = m.frames if self.restart else 0
        progress.end_frames = max(progress.start_frames + rung.frames, m.frames + 1)

    def _release(
        self, alive: Sequence[MemberReport], ended: Mapping[int, Ended], *, restart: bool
    ) -> list[Decision]:
        """Let members begin the rung that they are in: all, or the next of each slot that none holds."""
        busy = {
            self._slot(m.member) for m in alive if self._progress[m.member].released and m.member not in ended
        }
        decisions: list[Decision] = []
        for m in alive:
            progress = self._progress[m.member]
            slot = self._slot(m.member)
            if progress.released or slot in busy:
                continue
            busy.add(slot)
            progress.until_frames = progress.end_frames
            until, phase = progress.until_frames, progress.phase
            if restart:
                decisions.append(Restart(m.member, dict(m.values), f"phase {phase}", until, phase))
            else:
                decisions.append(Continue(m.member, f"phase {phase}", until, phase))
        return decisions

    def _slot(self, member: int) -> int:
        return member if self.slots is None else member % self.slots
