"""What members go on from if their learner is lost, from decision to decision: see `store.Origin`.

A member that was given weights never gets its own older ones: it goes on from what its donor would have gone on from,
or from drawn weights, which are drawn again. During a checkpoint every member has two origins: the one that
holds, and the one that will once the checkpoint is whole.
"""

from __future__ import annotations

from dataclasses import replace

from pbt_rl.actors.store import SnapshotHeader
from pbt_rl.controllers.changes import Change
from pbt_rl.population.population import Member, Population
from pbt_rl.population.store import Key, Origin, Store


class Origins:
    """Keeps `Member.origin` and `Member.coming` up to date, and the states that they name in the store."""

    def __init__(self, population: Population, store: Store) -> None:
        self._members, self._store = population.members, store

    def follow(
        self,
        change: Change,
        source: Key | None,
        before: dict[int, tuple[Origin, Origin | None]],
    ) -> None:
        """Let a member's origin be that of the weights that it is given.

        source: the remembered state that is copied. before: the origins of all members before the comparison.
        """
        member = self._members[change.member]
        if change.weights == "fresh":
            header = SnapshotHeader(member.id, change.generation, {}, 0, 0, 0, member.frames)
            key = self._store.add_drawn(header, (member.id, change.generation))
            found = Origin(key, -member.frames)
            self.set_to(member, found, None if member.coming is None else found)
            self._store.release(key)
            return
        assert change.weights_from is not None
        if change.remembered:
            assert source is not None
            found = Origin(source, -member.frames, pinned=True)
            origins: tuple[Origin, Origin | None] = (found, None if member.coming is None else found)
        else:
            donor = self._members[change.weights_from[0]]
            moved = donor.frames - member.frames
            origin, coming = before[donor.id]
            origins = (
                replace(origin, frames=origin.frames + moved),
                None if coming is None else replace(coming, frames=coming.frames + moved),
            )
        self.set_to(member, *origins)

    def set_to(self, member: Member, origin: Origin, coming: Origin | None) -> None:
        """Give a member other origins."""
        former = (member.origin, member.coming)
        member.origin, member.coming = origin, coming
        for new in (origin, coming):
            if new is not None:
                (self._store.pin if new.pinned else self._store.hold)(new.key)
        for old in former:
            self.release(old)

    def release(self, origin: Origin | None) -> None:
        """Let an origin go."""
        if origin is not None:
            (self._store.unpin if origin.pinned else self._store.release)(origin.key)
