"""Searches with a barrier at the end of each rung: simultaneous brackets of Successive Halving.

A *bracket* is one Successive Halving with some of the members. A *rung* is a phase of a bracket.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pbt_rl.controllers.decisions import Continue, Decision, MemberReport, PopulationReport, Restart
from pbt_rl.controllers.exploit import rank
from pbt_rl.controllers.search.search import Ended, Search


@dataclass(frozen=True)
class Rung:
    """Phase of a bracket.

    members: number of members in the rung. frames: frames of a member from the initialisation of its weights to the end
    of the rung.
    """

    members: int
    frames: int


@dataclass(frozen=True)
class Bracket:
    """Members and rungs of one Successive Halving."""

    members: tuple[int, ...]
    rungs: tuple[Rung, ...]


@dataclass(eq=False)
class Brackets(Search):
    """Base of searches with brackets. When all members of a bracket have ended a rung, the best enter the next rung.

    restart: True if promoted members restart from initialised weights, with unchanged values.
    slots: None means *dynamic* allocation: any free slot trains any member that has not ended the rung. A number of
    slots means *static* allocation: each member has a fixed slot, and the members of a slot train one after another in
    each rung. A slot whose members have ended the rung is idle. Static allocation is not supported with `restart`.

    Equal scores are ordered randomly. A member that disappears from the reports is ignored.
    """

    restart: bool = field(default=False, kw_only=True)
    slots: int | None = field(default=None, kw_only=True)
    _brackets: list[Bracket] = field(default_factory=list, init=False)

    @abstractmethod
    def brackets(self, num_members: int) -> list[Bracket]:
        """Return the brackets. Each member is in exactly one bracket."""

    def _plan(self, num_members: int) -> None:
        self._brackets = self.brackets(num_members)

    def _first_decisions(self, report: PopulationReport) -> list[Decision]:
        decisions: list[Decision] = []
        members = {m.member: m for m in report.members}
        for bracket in self._brackets:
            for member in bracket.members:
                self._progress[member].end_frames = bracket.rungs[0].frames
            there = [members[i] for i in bracket.members if i in members]
            decisions += self._release(there, {}, restart=False)
        return self._with_waiting(decisions, report, "waits for its slot")

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
                f"score {scores[member]:.4g} ranks {place} of {len(ranking)}",
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
        """Return decisions that start members in the present rung.

        With dynamic allocation, all members that have not started yet start. With static allocation, the next member of
        each free slot starts.
        alive: members of a bracket that have not been stopped. ended: members that have ended the rung. restart: True
        if members start from initialised weights.
        """
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


# -- Hyperband ----------------------------------------------------------------------------------------------


def hyperband_table(eta: int = 3, resource: int = 27) -> list[list[tuple[int, int]]]:
    """Return the brackets as lists of (members, units of the resource), broadest first.

    R is `resource`. With s_max = floor(log_eta R), bracket s = s_max..0 has n = floor((s_max + 1) / (s + 1)) eta^s
    members. Rung i of bracket s trains floor(n / eta^i) members for R eta^(i - s) units each. Source: Heinrich and
    Frosio (2019), table 2, and the first version of Li et al. (2018). In the later version of Li et al., n is
    ceil(eta^s (s_max + 1) / (s + 1)).
    """
    assert eta >= 2
    most = 0
    while eta ** (most + 1) <= resource:
        most += 1
    return [
        [
            ((most + 1) // (s + 1) * eta**s // eta**i, max(1, resource * eta**i // eta**s))
            for i in range(s + 1)
        ]
        for s in range(most, -1, -1)
    ]


@dataclass(eq=False)
class Hyperband(Brackets):
    """Hyperband (Li et al. 2018) with simultaneous brackets. Members are assigned in order, broadest bracket first.

    phase_frames: frames of one unit of the resource. eta: inverse of the promoted share. resource: units at the end of
    each bracket's last rung, R in the paper.
    restart: True if every rung starts from initialised weights, as in Heinrich and Frosio (2019). False: members
    continue with their weights until the end of the rung.

    If there are more members than the brackets need (46 for eta 3 and R 27), further brackets follow, again from the
    broadest. In a bracket with too few members, each rung still has 1/eta of the members of the previous rung, but at
    least one member.
    """

    restart: bool = field(default=True, kw_only=True)
    eta: int = field(default=3, kw_only=True)
    resource: int = field(default=27, kw_only=True)

    def brackets(self, num_members: int) -> list[Bracket]:
        """Return brackets in the order of the table. After the last bracket, the table is repeated."""
        shapes = hyperband_table(self.eta, self.resource)
        made: list[Bracket] = []
        first = 0
        while first < num_members:
            shape = shapes[len(made) % len(shapes)]
            size = min(shape[0][0], num_members - first)
            rungs = tuple(
                Rung(max(1, size // self.eta**i), units * self.phase_frames)
                for i, (_, units) in enumerate(shape)
            )
            made.append(Bracket(tuple(range(first, first + size)), rungs))
            first += size
        return made
