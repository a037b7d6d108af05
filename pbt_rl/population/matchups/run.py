"""Who plays whom in a run: matchups made after every comparison, from the win rates.

A matchup of a pack is the row of each seat, [U, E, S]: U units, E environments of a unit, S seats.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import InitVar, dataclass, field

import numpy as np
from numpy.typing import NDArray

from pbt_rl.config import Config
from pbt_rl.controllers.state import SHARED
from pbt_rl.envs.base import EnvSpec
from pbt_rl.errors import ConfigError
from pbt_rl.plan import PackPlan, Plan
from pbt_rl.population.matchups.matchmaking import Matchmaker, games_between
from pbt_rl.population.matchups.ratings import Ratings
from pbt_rl.population.slots import Slots

UNKNOWN_WIN_RATE = 0.5


def check(config: Config, spec: EnvSpec, plan: Plan) -> None:
    """Raise ConfigError unless members play each other if their games rank them, and rows fill environments."""
    check_seats(config, spec.seats, plan)
    objective = config.matchup.objective
    if objective == "return":
        return
    if spec.seats == 1:
        reason, remedy = f"{config.env} has one agent, without an opponent", "leave it out"
    elif len(plan.packs) > 1:
        reason = (
            f"members of different devices never play each other, and there are {len(plan.packs)} devices"
        )
        remedy = "use one device (--devices), or --matchup.objective return"
    elif plan.packs[0].slots == 1:
        reason = "one policy holds the only slot, and it plays itself"
        remedy = "use more policies (--num-policies, --slots), or --matchup.objective return"
    else:
        return
    raise ConfigError(f"--matchup.objective {objective} cannot be used: {reason}: {remedy}")


def check_seats(config: Config, seats: int, plan: Plan) -> None:
    """Raise ConfigError unless the rows of a unit fill its environments."""
    envs = config.envs_per_unit
    for slots in (pack.slots for pack in plan.packs if envs):
        alone = slots == 1 or config.matchup.scheme == "self"
        rows = envs if alone else slots * envs
        if rows % seats:
            whose = "a member plays all seats itself" if alone else f"a unit has {rows} rows"
            raise ConfigError(
                f"--envs-per-unit {envs} cannot be used: an environment has {seats} seats, and {whose}: give a "
                f"multiple of {seats}, or leave it out"
            )


def ratings_of(config: Config, spec: EnvSpec) -> Ratings | None:
    """Return what rates the games of a run's members; None if an environment has one seat."""
    matchup = config.matchup
    return None if spec.seats == 1 else Ratings(config.num_policies, matchup.elo_k, matchup.objective)


def note(config: Config, packs: tuple[PackPlan, ...]) -> str:
    """Describe the matchups in a line."""
    matchup = config.matchup
    if matchup.scheme == "self" or all(pack.slots == 1 for pack in packs):
        return "matchup: every member plays itself, so objectives mean nothing in a game that one wins and one loses"
    limit = f", those of the same device ({len(packs)} devices)" if len(packs) > 1 else ""
    return f"matchup: {matchup.scheme} against the other members{limit}; members are ranked by {matchup.objective}"


@dataclass(eq=False)
class RunMatchups:
    """Matchups of a run. A part with a state (`controllers.state`)."""

    config: InitVar[Config]
    packs: InitVar[tuple[PackPlan, ...]]
    seats: InitVar[int]
    slots: Slots = field(metadata=SHARED)
    ratings: Ratings | None = field(metadata=SHARED)
    due: bool = field(default=False, init=False)
    """Members were compared since the last matchups."""
    _makers: tuple[Matchmaker, ...] = field(init=False)
    _present: list[list[list[list[int]]]] = field(default_factory=list, init=False)
    """The rows that are in force, [U, E, S] of each pack."""

    def __post_init__(self, config: Config, packs: tuple[PackPlan, ...], seats: int) -> None:
        matchup = config.matchup
        self._changing = matchup.scheme != "self" and any(pack.slots > 1 for pack in packs)
        self._makers = tuple(
            Matchmaker(matchup, p.slots, p.envs_per_policy, p.units, seats, config.seed + number)
            for number, p in enumerate(packs)
        )

    @property
    def plan(self) -> list[dict[str, int]]:
        """Slots, environments, units and seats of every pack: a state can be restored if they are the same."""
        return [{"slots": m.slots, "envs": m.envs, "units": m.units, "seats": m.seats} for m in self._makers]

    def restored(self) -> None:
        """Check that every row has one seat. Raises ValueError."""
        for maker, units in zip(self._makers, self._present, strict=bool(self._present)):
            try:
                row_UES = np.array(units)
            except ValueError:
                row_UES = np.empty(0)
            rows = np.arange(maker.slots * maker.envs)
            if row_UES.shape != maker.shape or any((np.sort(unit.ravel()) != rows).any() for unit in row_UES):
                raise ValueError("the saved matchups do not give every row one seat")

    def first(self) -> list[NDArray[np.int64]]:
        """Return the matchups to begin with, the rows, [U, E, S], of each pack: the restored ones, or new ones."""
        return [np.array(rows) for rows in self._present] or self._make()

    def make_again(self) -> list[NDArray[np.int64]]:
        """Return new matchups; none if all would stay as they are."""
        self.due = False
        return self._make() if self._changing else []

    def games(self, pack: int, row_UES: NDArray[np.int64]) -> list[list[int]]:
        return games_between(row_UES, self._makers[pack].slots, self._makers[pack].envs)

    def _make(self) -> list[NDArray[np.int64]]:
        made = [maker.next(self._win_rate(pack)) for pack, maker in enumerate(self._makers)]
        self._present = [rows.tolist() for rows in made]
        return made

    def _win_rate(self, pack: int) -> Callable[[int, int], float]:
        """Return the win rate between two slots, as far as their members have played."""
        members, ratings = self.slots.members_of(pack), self.ratings

        def rate(slot: int, other: int) -> float:
            a, b = members[slot], members[other]
            return UNKNOWN_WIN_RATE if ratings is None or a is None or b is None else ratings.win_rate(a, b)

        return rate
