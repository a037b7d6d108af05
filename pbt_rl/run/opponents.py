"""Who plays whom in environments of several agents. An extra says it; without one every member plays itself.

A matchup of a pack is the row of each seat, [U, E, S]: U units, E environments of a unit, S seats.
"""

from __future__ import annotations

from dataclasses import InitVar, dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from pbt_rl.extras import load_object, offered
from pbt_rl.pbt.state import SHARED
from pbt_rl.plan import PackPlan
from pbt_rl.population.population import Judge, RatesGames
from pbt_rl.population.slots import Slots

if TYPE_CHECKING:
    from pbt_rl.config import Config


class Matchups(Protocol):
    """The matchups of a run; none if environments have one seat."""

    due: bool
    """Members were compared since the last matchups."""

    @property
    def plan(self) -> list[dict[str, int]]:
        """What they were made for: a saved state can be restored if it is the same."""

    def first(self) -> list[NDArray[np.int64]]:
        """Return the matchups to begin with, of each pack: the restored ones, or new ones."""

    def make_again(self) -> list[NDArray[np.int64]]:
        """Return new matchups; none if all would stay as they are."""


@dataclass(eq=False)
class OwnRows:
    """Matchups in which every member plays itself: neighbouring rows, which belong to one slot."""

    packs: InitVar[tuple[PackPlan, ...]]
    seats: int = field(metadata=SHARED)
    due: bool = field(default=False, init=False)
    _shapes: list[tuple[int, int]] = field(init=False, metadata=SHARED)
    """Units and rows of each pack."""

    def __post_init__(self, packs: tuple[PackPlan, ...]) -> None:
        self._shapes = [(pack.units, pack.rows) for pack in packs] if self.seats > 1 else []

    @property
    def plan(self) -> list[dict[str, int]]:
        """See Matchups."""
        return [{"units": units, "rows": rows, "seats": self.seats} for units, rows in self._shapes]

    def first(self) -> list[NDArray[np.int64]]:
        """See Matchups."""
        rows = [(units, np.arange(rows).reshape(-1, self.seats)) for units, rows in self._shapes]
        return [np.stack([row_ES] * units) for units, row_ES in rows]

    def make_again(self) -> list[NDArray[np.int64]]:
        """See Matchups."""
        self.due = False
        return []


class Opponents:
    """Who plays whom: every member itself, ranked by the returns of its seats. An extra's `OPPONENTS` has others.

    Whether a member plays all seats of an environment itself the plan must know: the extra's `PLAYS_ALONE`.
    """

    def judged_by(self, config: Config) -> Judge:  # noqa: ARG002 - others read it
        """Return what ranks members."""
        return "return"

    def ratings(self, config: Config) -> RatesGames | None:
        """Return what rates the games of a run's members."""

    def matchups(
        self,
        config: Config,  # noqa: ARG002 - others read these
        packs: tuple[PackPlan, ...],
        seats: int,
        slots: Slots,  # noqa: ARG002
        ratings: RatesGames | None,  # noqa: ARG002
    ) -> Matchups:
        """Return the matchups of a run. slots: who holds them."""
        return OwnRows(packs, seats)

    def games_between(self, row_UES: NDArray[np.int64], slots: int, envs: int) -> list[list[int]]:
        """Return [P, P]: in how many pairs of seats the policies of two slots sit together; for the record."""
        seats = row_UES.shape[-1]
        own = row_UES.shape[0] * envs // seats * seats * (seats - 1)
        return [[own if p == q else 0 for q in range(slots)] for p in range(slots)]


def opponents() -> Opponents:
    """Return what says who plays whom."""
    return next((load_object(path)() for path in offered("pbt_rl", "OPPONENTS")), Opponents())
