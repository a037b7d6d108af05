"""Who plays whom in environments of several agents: an extra says it.

A matchup of a pack is the row of each seat, [U, E, S]: U units, E environments of a unit, S seats.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from pbt_rl.envs.base import EnvSpec
from pbt_rl.errors import ConfigError
from pbt_rl.extras import load_object, offered
from pbt_rl.plan import PackPlan
from pbt_rl.population.population import RatesGames
from pbt_rl.population.slots import Slots

if TYPE_CHECKING:
    from pbt_rl.config import Config


class Matchups(Protocol):
    """The matchups of a run. A part with a state (`pbt.state`)."""

    due: bool
    """Members were compared since the last matchups."""

    @property
    def plan(self) -> list[dict[str, int]]:
        """What they were made for: a saved state can be restored if it is the same."""

    def first(self) -> list[NDArray[np.int64]]:
        """Return the matchups to begin with, of each pack: the restored ones, or new ones."""

    def make_again(self) -> list[NDArray[np.int64]]:
        """Return new matchups; none if all would stay as they are."""

    def games(self, pack: int, row_UES: NDArray[np.int64]) -> list[list[int]]:
        """Return [P, P]: in how many pairs of seats the policies of two slots sit together; for the record."""


class Opponents(Protocol):
    """Who plays whom. An extra names its class as `OPPONENTS`."""

    def ratings(self, config: Config) -> RatesGames:
        """Return what rates the games of a run's members."""

    def matchups(
        self,
        config: Config,
        packs: tuple[PackPlan, ...],
        seats: int,
        slots: Slots,
        ratings: RatesGames | None,
    ) -> Matchups:
        """Return the matchups of a run. slots: who holds them."""


def opponents(spec: EnvSpec) -> Opponents | None:
    """Return what says who plays whom; None if an environment has one seat. Raises ConfigError if nothing says it."""
    if spec.seats == 1:
        return None
    for path in offered("pbt_rl", "OPPONENTS"):
        made: Opponents = load_object(path)()
        return made
    raise ConfigError(
        f"--env {spec.env_id} cannot be used: it has several agents, and no extra of this copy says who plays whom"
    )
