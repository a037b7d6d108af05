"""When members get new opponents: the matchmakers of all packs, and what they are told of win rates."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from pbt_rl.population.matchmaking import Matchmaker
from pbt_rl.population.ratings import Ratings
from pbt_rl.population.slots import Slots
from pbt_rl.run.resolved import ResolvedRun

UNKNOWN = 0.5


class RunMatchups:
    """Matchups of a run; none where an environment has one seat. `due`: members were compared since the last ones."""

    def __init__(self, facts: ResolvedRun, turns: Slots, ratings: Ratings | None) -> None:
        self.due = False
        self._turns, self._ratings = turns, ratings
        seats, matchup = facts.spec.seats, facts.config.matchup
        self._changing = matchup.scheme != "self" and any(pack.slots > 1 for pack in facts.plan.packs)
        self._makers = [
            Matchmaker(matchup, p.slots, p.envs_per_policy, p.units, seats, facts.config.seed + number)
            for number, p in enumerate(facts.plan.packs)
            if seats > 1
        ]

    def arrange(self) -> list[NDArray[np.int64]]:
        """[U, E, S] rows for each pack: who meets whom from now on."""
        self.due = False
        return [maker.next(self._win_rate(pack)) for pack, maker in enumerate(self._makers)]

    def again(self) -> list[NDArray[np.int64]]:
        """Do as `arrange`, if that can change anything."""
        self.due = False
        return self.arrange() if self._changing else []

    def _win_rate(self, pack: int) -> Callable[[int, int], float]:
        members, ratings = self._turns.members_of(pack), self._ratings

        def rate(slot: int, other: int) -> float:
            a, b = members[slot], members[other]
            return UNKNOWN if ratings is None or a is None or b is None else ratings.win_rate(a, b)

        return rate
