"""Who plays whom in environments of several agents: an extra says it. Without one there are no such environments.

A matchup of a pack is the row of each seat, [U, E, S]: U units, E environments of a unit, S seats.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pbt_rl.extras import load_object, offered
from pbt_rl.plan import PackPlan
from pbt_rl.population.population import Judge, RatesGames
from pbt_rl.population.slots import Slots

if TYPE_CHECKING:
    from pbt_rl.config import Config


@dataclass(eq=False)
class Matchups:
    """The matchups of a run: none, as environments have one seat. Those of an extra do more."""

    due: bool = field(default=False, init=False)
    """Members were compared since the last matchups."""

    @property
    def plan(self) -> list[dict[str, int]]:
        """What they were made for: a saved state can be restored if it is the same."""
        return []

    def first(self) -> list[NDArray[np.int64]]:
        """Return the matchups to begin with, of each pack: the restored ones, or new ones."""
        return []

    def make_again(self) -> list[NDArray[np.int64]]:
        """Return new matchups; none if all would stay as they are."""
        self.due = False
        return []

    def games(self, pack: int, row_UES: NDArray[np.int64]) -> list[list[int]]:
        """Return [P, P]: in how many pairs of seats the policies of two slots sit together; for the record."""
        raise AssertionError(pack, row_UES)


class Opponents:
    """Who plays whom: nobody. An extra's `OPPONENTS` has others."""

    def judged_by(self, config: Config) -> Judge:  # noqa: ARG002 - others read it
        """Return what ranks members."""
        return "return"

    def ratings(self, config: Config) -> RatesGames | None:
        """Return what rates the games of a run's members."""

    def matchups(
        self,
        config: Config,  # noqa: ARG002 - others read these
        packs: tuple[PackPlan, ...],  # noqa: ARG002
        seats: int,  # noqa: ARG002
        slots: Slots,  # noqa: ARG002
        ratings: RatesGames | None,  # noqa: ARG002
    ) -> Matchups:
        """Return the matchups of a run. slots: who holds them."""
        return Matchups()


def opponents() -> Opponents:
    """Return what says who plays whom."""
    return next((load_object(path)() for path in offered("pbt_rl", "OPPONENTS")), Opponents())
