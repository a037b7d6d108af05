"""The matchups of all packs: made at the start and after every comparison, from the win rates of the members."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from pbt_rl.population.matchmaking import Matchmaker
from pbt_rl.population.ratings import Ratings
from pbt_rl.population.slots import Slots
from pbt_rl.run.resolved import ResolvedRun

UNKNOWN_WIN_RATE = 0.5


class RunMatchups:
    """Matchups of a run; none if environments have one seat. `due`: members were compared since the last ones."""

    def __init__(self, resolved: ResolvedRun, slots: Slots, ratings: Ratings | None) -> None:
        self.due = False
        self._slots, self._ratings = slots, ratings
        config, packs, seats = resolved.config, resolved.plan.packs, resolved.spec.seats
        self._changing = config.matchup.scheme != "self" and any(pack.slots > 1 for pack in packs)
        self._makers = [
            Matchmaker(config.matchup, p.slots, p.envs_per_policy, p.units, seats, config.seed + number)
            for number, p in enumerate(packs)
            if seats > 1
        ]

    def make(self) -> list[NDArray[np.int64]]:
        """Return new matchups: the rows, [U, E, S], of each pack."""
        self.due = False
        return [maker.next(self._win_rate(pack)) for pack, maker in enumerate(self._makers)]

    def make_again(self) -> list[NDArray[np.int64]]:
        """Return new matchups like `make`; none if all would stay as they are."""
        self.due = False
        return self.make() if self._changing else []

    def _win_rate(self, pack: int) -> Callable[[int, int], float]:
        """Return the win rate between two slots, as far as their members have played."""
        members, ratings = self._slots.members_of(pack), self._ratings

        def rate(slot: int, other: int) -> float:
            a, b = members[slot], members[other]
            return UNKNOWN_WIN_RATE if ratings is None or a is None or b is None else ratings.win_rate(a, b)

        return rate
