"""The states that members of a lost learner go on from: weights as they were last saved or copied, the rest as it is.

`population.origins` says which saved or drawn weights a member has; values, generation and frames are the population's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from numpy.typing import NDArray

from pbt_rl.learner.build import shrunk_arrays
from pbt_rl.pbt.decisions import StateKey
from pbt_rl.population.origins import Drawn, Origin, Saved, Shrunk
from pbt_rl.population.population import Population
from pbt_rl.record.net_names import NetNames
from pbt_rl.run.checkpointing import Checkpointing
from pbt_rl.run.comparisons import Comparisons
from pbt_rl.run.copies import CopySet
from pbt_rl.run.start import Load, Start
from pbt_rl.wire.messages import AdmitMember
from pbt_rl.wire.snapshot import MemberSnapshot, SnapshotHeader


class Draws(Protocol):
    """What draws weights: a fleet."""

    def drawn(self, member: int, generation: int) -> Mapping[str, NDArray[Any]]:
        """Return the state that a member of this generation is given if its weights are drawn."""


class LastStates:
    """States of members, from the last whole checkpoint or copy.

    start: where the processes of the run began. moments: names of the optimiser's.
    """

    def __init__(
        self,
        population: Population,
        comparisons: Comparisons,
        checkpoints: Checkpointing,
        start: Start,
        moments: Sequence[str],
    ) -> None:
        self._population, self._comparisons = population, comparisons
        self._checkpoints, self._start, self._moments = checkpoints, start, moments

    def start(self, draws: Draws, pack: int) -> Start:
        """Return where the learner of a pack begins: with its members as they should be now."""
        slots = self._comparisons.slots
        members = self._population.members
        here = slots.membership.of(pack)
        sources: list[tuple[int, Load]] = [(member, partial(self.member, draws, member)) for member in here]
        sources += [(key[0], partial(self.remembered, draws, key)) for key in self._remembered_of(here)]
        return Start(
            [member.values for member in members],
            [member.generation for member in members],
            [tuple(slots.members_of(number)) for number in range(len(slots.packs))],
            sources,
            resumes=self._start.resumes,
        )

    def _remembered_of(self, members: tuple[int, ...]) -> list[StateKey]:
        return [key for key in sorted(self._comparisons.origins.kept) if key[0] in members]

    def of_pack(self, draws: Draws, names: NetNames, pack: int) -> list[MemberSnapshot]:
        """Return the members of a pack as they should be now, and their remembered states."""
        return [load(names) for _, load in self.start(draws, pack).sources]

    def admission(self, draws: Draws, names: NetNames, number: int) -> AdmitMember:
        """Return what another pack admits a member with."""
        member, remembered = self._population.members[number], self._remembered_of((number,))
        snapshots = (
            self.member(draws, number, names),
            *(self.remembered(draws, key, names) for key in remembered),
        )
        return AdmitMember(number, member.generation, dict(member.values), snapshots)

    def member(self, draws: Draws, number: int, names: NetNames) -> MemberSnapshot:
        """Return a member: weights of its origin, and else what the population knows of it."""
        member, origins = self._population.members[number], self._comparisons.origins
        own = self._saved(Saved(number), names)
        origin = origins.of(number).origin
        taken = own if origin == Saved(number) else self.weights(draws, origin, names)
        known = None if own is None else own.header
        drawn_at = origins.drawn_at(number)
        header = SnapshotHeader(
            member=number,
            generation=member.generation,
            values=dict(member.values),
            frames=max(member.frames, known.frames if known else 0),
            steps=known.steps if known else 0,
            updates=known.updates if known else 0,
            fresh_frames=drawn_at if drawn_at is not None else taken.header.fresh_frames if taken else 0,
        )
        arrays = draws.drawn(number, 0) if taken is None else taken.arrays
        return MemberSnapshot(header, arrays)

    def remembered(self, draws: Draws, key: StateKey, names: NetNames) -> MemberSnapshot:
        """Return a remembered state."""
        kept = self._comparisons.origins.kept[key]
        snapshot = self.weights(draws, kept.weights.origin, names)
        member, generation = key
        header = replace(snapshot.header, member=member, generation=generation, remembered=True)
        if kept.values is not None:
            header = replace(header, values=kept.values, frames=kept.own_frames)
        return replace(snapshot, header=header)

    def weights(self, draws: Draws, origin: Origin, names: NetNames) -> MemberSnapshot:
        """Return the snapshot of an origin; for drawn weights, one of a member that has done nothing."""
        if isinstance(origin, Shrunk):
            given = self.weights(draws, origin.of, names)
            drawn = draws.drawn(origin.drawn.member, origin.drawn.generation)
            arrays = shrunk_arrays(given.arrays, drawn, origin.shrink_perturb, self._moments)
            return replace(given, arrays=arrays)
        if isinstance(origin, Saved):
            found = self._saved(origin, names)
            if found is not None:
                return found
            origin = Drawn(origin.member, 0)  # it had never held a slot
        header = SnapshotHeader(origin.member, origin.generation, {}, 0, 0, 0, 0)
        return MemberSnapshot(header, draws.drawn(origin.member, origin.generation))

    def _saved(self, origin: Saved, names: NetNames) -> MemberSnapshot | None:
        """Return a saved state; None for a member that had none yet."""
        member, generation = origin.member, origin.generation
        latest = self._checkpoints.latest
        if latest is None:
            found = (load(names) for load in self._start.of([member]))
            wanted = (member, None) if generation is None else (member, generation)
            return next((one for one in found if _key(one.header) == wanted), None)
        if generation is not None:
            return latest.load_remembered(member, generation, names)
        there = any(saved.member == member for saved in latest.members())
        return latest.load(member, names) if there else None

    def account(self, member: int) -> dict[str, Any]:
        """Return what the journal notes of a member: frames of training that are lost, and what it goes on from."""
        weights, latest = self._comparisons.origins.of(member), self._checkpoints.latest
        origin = weights.origin
        while isinstance(origin, Shrunk):
            origin = origin.of
        if isinstance(origin, Drawn):
            source: dict[str, Any] = {"drawn": [origin.member, origin.generation]}
        else:
            if isinstance(latest, CopySet):
                source = {"copy_age_seconds": latest.age_seconds, "member": origin.member}
            else:
                source = {"checkpoint": latest.path.name if latest else None, "member": origin.member}
            if origin.generation is not None:
                source["generation"] = origin.generation
        return {"member": member, "frames_lost": weights.frames, "from": source}


def _key(header: SnapshotHeader) -> tuple[int, int | None]:
    return header.member, header.generation if header.remembered else None
