"""Members that cannot learn any more: what Orion's PBT does with broken trials."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from pbt_rl.pbt.decisions import Decision, MemberReport, Replace, Restart, StateKey
from pbt_rl.pbt.exploit.base import score
from pbt_rl.pbt.hypers import Values


@dataclass(frozen=True)
class _Dropped:
    """The state that a member gave up to become a copy."""

    generation: int
    fork: int
    """The member's generation as that copy."""
    values: Values


class Broken:
    """Repairs of members that are broken: weights that are not finite, or an objective that is not.

    - At the start, before a member was ever found healthy at a comparison: it begins again with values drawn as at
      the start of the run (Orion: a trial broken at the lowest fidelity is ignored and another is sampled).
    - A copy that breaks before it was found healthy: the member falls back to the state it was dropped for
      (Orion: a broken fork backtracks to the trial that was dropped for it). That state is kept in memory until the
      copy was found healthy at a comparison.
    - Else the rule of selection decides as usual (Orion: a broken promotion is examined again); where it names no
      donor for a member with broken weights, that member begins again, for it can never recover.

    Weights that are not finite are known at once and repaired at once where no comparison is needed.
    """

    def __init__(self, initial: Callable[[Random], Values]) -> None:
        self._initial = initial
        self._proven: set[int] = set()
        """Members that were found healthy with the weights they have, or with ancestors of those."""
        self._dropped: dict[int, _Dropped] = {}

    def repairs(self, members: Sequence[MemberReport], rng: Random) -> list[Decision]:
        """What can be done at once for those of the members that are broken."""
        decisions: list[Decision] = []
        for m in members:
            if m.member in self._dropped and self._dropped[m.member].fork == m.generation:
                old = self._dropped[m.member]
                reason = (
                    f"{_describe(m)}; back to the state of generation {old.generation}, dropped for this copy"
                )
                decisions.append(
                    Replace(m.member, m.member, "both", dict(old.values), reason, old.generation)
                )
            elif m.member not in self._proven:
                decisions.append(self.restart(m, rng))
        return decisions

    def restart(self, m: MemberReport, rng: Random) -> Restart:
        """Begin again."""
        return Restart(m.member, self._initial(rng), f"{_describe(m)}; begins again")

    def compared(self, members: Sequence[MemberReport], decisions: Sequence[Decision]) -> None:
        """Learn who was healthy, and what was dropped for a copy. decisions: on these members."""
        for m in members:
            if not math.isnan(score(m)):
                self._proven.add(m.member)
                self._dropped.pop(m.member, None)
        by_member = {m.member: m for m in members}
        for d in decisions:
            if isinstance(d, Restart):
                self._proven.discard(d.member)
                self._dropped.pop(d.member, None)
            elif isinstance(d, Replace):
                m = by_member[d.member]
                self._dropped.pop(d.member, None)
                if d.donor_generation is None and d.copy != "hypers" and not math.isnan(score(m)):
                    self._dropped[d.member] = _Dropped(m.generation, m.generation + 1, dict(m.values))

    def remembers(self) -> frozenset[StateKey]:
        """The states that were dropped for copies not yet found healthy."""
        return frozenset((member, d.generation) for member, d in self._dropped.items())

    def state_dict(self) -> dict[str, Any]:
        """Who is proven, and what is kept."""
        dropped = {str(m): [d.generation, d.fork, d.values] for m, d in self._dropped.items()}
        return {"proven": sorted(self._proven), "dropped": dropped}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken."""
        self._proven = {int(m) for m in state["proven"]}
        self._dropped = {
            int(m): _Dropped(int(generation), int(fork), dict(values))
            for m, (generation, fork, values) in state["dropped"].items()
        }


def _describe(m: MemberReport) -> str:
    return "its weights are not finite" if m.broken else "its objective is not finite"
