"""Where the present weights of every member came from since the run was last saved. Pure bookkeeping.

If a learner is lost, its members go on from here: a member whose weights were replaced since gets those of its donor as
they were saved, never its own older ones.

    member's present weights  =  (weights as saved, drawn, or shrunk)  +  frames of training since, which would be lost

A checkpoint has its own origins from the moment at which it is begun. They hold once it is whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from pbt_rl.pbt.changes import Change
from pbt_rl.pbt.decisions import StateKey
from pbt_rl.pbt.hypers import Values
from pbt_rl.population.population import Population


@dataclass(frozen=True)
class Saved:
    """A member as it was saved; with a generation, its state that was remembered then."""

    member: int
    generation: int | None = None


@dataclass(frozen=True)
class Drawn:
    """Fresh weights, of the seed of a member in a generation."""

    member: int
    generation: int


@dataclass(frozen=True)
class Shrunk:
    """Weights of another origin after shrink-perturb (see `Replace`). drawn: what was mixed in."""

    of: Origin
    shrink_perturb: tuple[float, float]
    drawn: Drawn


Origin = Saved | Drawn | Shrunk


@dataclass(frozen=True)
class Weights:
    """Present weights of a member, or remembered ones. frames: of training since the origin."""

    origin: Origin
    frames: int


@dataclass(frozen=True)
class Kept:
    """A remembered state. values, own_frames: of its member when it was remembered; None if the checkpoint has them."""

    weights: Weights
    values: Values | None = None
    own_frames: int = 0


@dataclass
class _Since:
    """What has happened since one moment."""

    present: dict[int, Weights]
    """Of every member, less its own frames: the sum with those is `Weights.frames`."""
    kept: dict[StateKey, Kept]
    drawn_at: dict[int, int] = field(default_factory=dict)


class Origins:
    """The origins of all members. remembered: the states that are remembered at the start."""

    def __init__(self, population: Population, remembered: Iterable[StateKey] = ()) -> None:
        self._population = population
        self._since = self._captured(remembered)
        self._coming: _Since | None = None

    def _captured(self, remembered: Iterable[StateKey]) -> _Since:
        return _Since(
            {m.id: Weights(Saved(m.id), -m.frames) for m in self._population.members},
            {key: Kept(Weights(Saved(*key), 0)) for key in remembered},
        )

    # -- what happens -----------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Note that all members are being saved as they are now. No decision may be on its way."""
        self._coming = self._captured(self._since.kept)

    def end(self, *, whole: bool) -> None:
        """Note that the checkpoint is whole, or that it was given up."""
        if whole and self._coming is not None:
            self._since = self._coming
        self._coming = None

    def follow(self, changes: Iterable[Change], remembered: frozenset[StateKey]) -> None:
        """Take over the changes of one comparison, before the population does.

        All hold at once: a donor gives what it had before any of them. remembered: what is kept from then on.
        """
        made = list(changes)
        for since in (self._since, self._coming):
            if since is not None:
                self._follow(since, made, remembered)

    def _follow(self, since: _Since, changes: Iterable[Change], remembered: frozenset[StateKey]) -> None:
        members, before, drawn_at = self._population.members, dict(since.present), dict(since.drawn_at)
        for key in remembered - since.kept.keys():
            member = members[key[0]]
            weights = _plus(before[member.id], member.frames)
            since.kept[key] = Kept(weights, dict(member.values), member.frames)
        for change in changes:
            own_frames = members[change.member].frames
            if change.weights == "fresh":
                weights = Weights(Drawn(change.member, change.generation), 0)
                since.drawn_at[change.member] = own_frames
            elif change.weights_from is None:
                continue
            elif change.remembered:
                since.drawn_at.pop(change.member, None)
                weights = since.kept[change.weights_from].weights
            else:
                donor = members[change.weights_from[0]]
                weights = _plus(before[donor.id], donor.frames)
                since.drawn_at.pop(change.member, None)
                if donor.id in drawn_at:
                    since.drawn_at[change.member] = drawn_at[donor.id]
            if change.shrink_perturb is not None:
                drawn = Drawn(change.member, change.generation)
                weights = replace(weights, origin=Shrunk(weights.origin, change.shrink_perturb, drawn))
            since.present[change.member] = _plus(weights, -own_frames)
        since.kept = {key: kept for key, kept in since.kept.items() if key in remembered}

    def restored(self, members: Iterable[int]) -> None:
        """Note that these members, and their remembered states, are as they were at their origins again."""
        chosen = set(members)
        since = self._since
        for member in chosen:
            own_frames = self._population.members[member].frames
            since.present[member] = Weights(since.present[member].origin, -own_frames)
        for key, kept in since.kept.items():
            if key[0] in chosen:
                since.kept[key] = replace(kept, weights=Weights(kept.weights.origin, 0))

    # -- what is known ----------------------------------------------------------------------------------------

    def of(self, member: int) -> Weights:
        """Return where a member's present weights came from."""
        return _plus(self._since.present[member], self._population.members[member].frames)

    @property
    def kept(self) -> Mapping[StateKey, Kept]:
        """The remembered states."""
        return self._since.kept

    def drawn_at(self, member: int) -> int | None:
        """Return a member's frames when fresh weights were last drawn for it; None if that was before it was saved."""
        return self._since.drawn_at.get(member)


def _plus(weights: Weights, frames: int) -> Weights:
    return replace(weights, frames=weights.frames + frames)
