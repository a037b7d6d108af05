"""Matchups of a run, updated after comparisons.

The matchups of a pack are an array [U, E, S] with the row of each agent: U vector envs, E environments of a vector env,
S agents. P: slots of a pack.
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
from pbt_rl.population.matchups.matchmaking import Matchmaker, pair_counts
from pbt_rl.population.matchups.ratings import Ratings
from pbt_rl.population.slots import Slots

UNKNOWN_WIN_RATE = 0.5


def check(config: Config, spec: EnvSpec, plan: Plan) -> None:
    """Raise ConfigError if the number of rows is not a multiple of the agents of an environment.

    Also raise ConfigError if games rank the members, but members do not play each other.
    """
    check_agents(config, spec.agents, plan)
    objective = config.matchup.objective
    if objective == "return":
        return
    if spec.agents == 1:
        reason, remedy = f"{config.env} has one agent", "leave out --matchup.objective"
    elif len(plan.packs) > 1:
        reason = (
            f"members of different devices do not play each other, and there are {len(plan.packs)} devices"
        )
        remedy = "use one device (--devices), or --matchup.objective return"
    elif plan.packs[0].slots == 1:
        reason = "the only slot belongs to one policy, which plays itself"
        remedy = "use more policies (--num-policies, --slots), or --matchup.objective return"
    else:
        return
    raise ConfigError(f"--matchup.objective {objective} cannot be used: {reason}: {remedy}")


def check_agents(config: Config, agents: int, plan: Plan) -> None:
    """Raise ConfigError if the rows of a vector env are not a multiple of the agents of an environment."""
    envs = config.envs_per_vector_env
    for slots in (pack.slots for pack in plan.packs if envs):
        alone = slots == 1 or config.matchup.scheme == "self"
        rows = envs if alone else slots * envs
        if rows % agents:
            whose = "a member plays all agents itself" if alone else f"a vector env has {rows} rows"
            raise ConfigError(
                f"--envs-per-vector-env {envs} cannot be used: an environment has {agents} agents, and {whose}: give a "
                f"multiple of {agents}, or leave out --envs-per-vector-env"
            )


def ratings_of(config: Config, spec: EnvSpec) -> Ratings | None:
    """Build the ratings of a run's members. Return None for an environment with one agent."""
    matchup = config.matchup
    return None if spec.agents == 1 else Ratings(config.num_policies, matchup.elo_k, matchup.objective)


def note(config: Config, packs: tuple[PackPlan, ...]) -> str:
    """Return a log line about the matchups."""
    matchup = config.matchup
    if matchup.scheme == "self" or all(pack.slots == 1 for pack in packs):
        return "matchup: each member plays itself, so objectives are meaningless in zero-sum games"
    where = f" of its device ({len(packs)} devices)" if len(packs) > 1 else ""
    return f"matchup: {matchup.scheme} against the other members{where}; members are ranked by {matchup.objective}"


@dataclass(eq=False)
class RunMatchups:
    """Matchups of a run. Checkpoints contain the state of this object (see `controllers.state`).

    agents: number of agents of an environment. ratings: ratings of the members, for win rates.
    """

    config: InitVar[Config]
    packs: InitVar[tuple[PackPlan, ...]]
    agents: InitVar[int]
    slots: Slots = field(metadata=SHARED)
    ratings: Ratings | None = field(metadata=SHARED)
    due: bool = field(default=False, init=False)
    """True if the controller has made decisions since the last matchups."""
    _makers: tuple[Matchmaker, ...] = field(init=False)
    _present: list[list[list[list[int]]]] = field(default_factory=list, init=False)
    """Pack -> its present matchups [U, E, S]."""

    def __post_init__(self, config: Config, packs: tuple[PackPlan, ...], agents: int) -> None:
        matchup = config.matchup
        self._changing = matchup.scheme != "self" and any(pack.slots > 1 for pack in packs)
        self._makers = tuple(
            Matchmaker(matchup, p.slots, p.envs_per_policy, p.vector_envs, agents, config.seed + number)
            for number, p in enumerate(packs)
        )

    @property
    def plan(self) -> list[dict[str, int]]:
        """Sizes of each pack. A saved state can only be restored into a run with equal sizes."""
        return [
            {"slots": m.slots, "envs": m.envs, "units": m.vector_envs, "seats": m.agents}
            for m in self._makers
        ]

    def restored(self) -> None:
        """Raise ValueError if the restored matchups do not assign one agent to each row."""
        for maker, vector_envs in zip(self._makers, self._present, strict=bool(self._present)):
            try:
                row_UES = np.array(vector_envs)
            except ValueError:
                row_UES = np.empty(0)
            rows = np.arange(maker.slots * maker.envs)
            if row_UES.shape != maker.shape or any(
                (np.sort(vector_env.ravel()) != rows).any() for vector_env in row_UES
            ):
                raise ValueError("the saved matchups do not assign one agent to each row")

    def first(self) -> list[NDArray[np.int64]]:
        """Return the restored matchups [U, E, S] of each pack. Without restored matchups, make new ones."""
        return [np.array(rows) for rows in self._present] or self._make()

    def make_again(self) -> list[NDArray[np.int64]]:
        """Return new matchups of each pack, or [] if matchups never change."""
        self.due = False
        return self._make() if self._changing else []

    def pair_counts(self, pack: int, row_UES: NDArray[np.int64]) -> list[list[int]]:
        """Return `matchmaking.pair_counts` of a pack: a number for each pair of slots, [P, P].

        row_UES: matchups of the pack.
        """
        return pair_counts(row_UES, self._makers[pack].slots, self._makers[pack].envs)

    def _make(self) -> list[NDArray[np.int64]]:
        made = [maker.next(self._win_rate(pack)) for pack, maker in enumerate(self._makers)]
        self._present = [rows.tolist() for rows in made]
        return made

    def _win_rate(self, pack: int) -> Callable[[int, int], float]:
        """Return a function (slot, other slot) -> win rate of `slot`. For an empty slot: UNKNOWN_WIN_RATE."""
        members, ratings = self.slots.members_of(pack), self.ratings

        def rate(slot: int, other: int) -> float:
            a, b = members[slot], members[other]
            return UNKNOWN_WIN_RATE if ratings is None or a is None or b is None else ratings.win_rate(a, b)

        return rate
