"""Matchmaking for multi-agent environments. Pure: no processes, no torch.

A matchup of a vector env is an array [E, S]: (environment, agent) -> row. The array contains each row once. Each slot
has b rows: rows s * b to s * b + b - 1 belong to slot s of the pack, so packing and learning do not depend on the
matchup. Schemes:

    self          one member plays all agents of an environment
    round-robin   all slots play each other about equally often: the next opponent is the slot with the fewest games
                  against the slots already in the game
    random        opponents are drawn uniformly from the other slots that have rows left in this matchup
    prioritised   like random, but drawn with the weight (1 - P[member wins])^p (prioritised fictitious self-play,
                  Vinyals et al. 2019, "Grandmaster level in StarCraft II", Methods)

Axes: P slots of a pack, U vector envs, E environments of a vector env, S agents of an environment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import combinations, permutations, product
from random import Random

import numpy as np
from numpy.typing import NDArray

from pbt_rl.config import MatchupConfig
from pbt_rl.controllers.state import SHARED

Choose = Callable[[list[int], list[int]], int]
"""Function (slots in the game so far, candidate slots) -> slot of the next agent."""

MANY_GAMES = 64
"""Maximum number of games per vector env for `even_out`, because `even_out` took 1.5 s for 184 games."""


@dataclass(eq=False)
class Matchmaker:
    """Factory of the matchups of one pack. Deterministic for a given seed and given win rates.

    envs: rows per slot in a vector env (b).
    """

    config: MatchupConfig = field(metadata=SHARED)
    slots: int
    envs: int
    vector_envs: int
    agents: int
    seed: int
    _rng: Random = field(init=False)
    _played_PP: list[list[int]] = field(init=False)
    """Number of games of each pair of slots."""

    def __post_init__(self) -> None:
        assert self.slots * self.envs % self.agents == 0
        self._rng = Random(self.seed)
        self._played_PP = [[0] * self.slots for _ in range(self.slots)]

    def restored(self) -> None:
        """Raise ValueError if the restored numbers of games do not have the shape [slots, slots]."""
        if {len(self._played_PP), *map(len, self._played_PP)} != {self.slots}:
            raise ValueError(f"the saved games of each pair do not fit {self.slots} slots")

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of the matchups: [U, E, S]."""
        return self.vector_envs, self.slots * self.envs // self.agents, self.agents

    def next(self, win_rate: Callable[[int, int], float]) -> NDArray[np.int64]:
        """Return the matchups of all vector envs: array of slots, [U, E, S].

        win_rate: function (slot, other slot) -> share of their games that `slot` wins.
        """
        alone = self.slots == 1 or self.config.scheme == "self"
        pick = self._pick(win_rate)
        vector_envs = []
        for _ in range(self.vector_envs):
            if alone:
                games = [
                    [p] * self.agents for p in range(self.slots) for _ in range(self.envs // self.agents)
                ]
            else:
                games = make_games(self.slots, self.envs, self.agents, pick)
            for game in games:
                self._rng.shuffle(game)
                for p, q in combinations(game, 2):
                    self._played_PP[p][q] += 1
                    self._played_PP[q][p] += p != q
            if self.config.scheme == "round-robin" and not alone and len(games) <= MANY_GAMES:
                even_out(games, self._played_PP)
            vector_envs.append(games_to_rows(games, self.slots, self.envs))
        return np.stack(vector_envs)

    def _pick(self, win_rate: Callable[[int, int], float]) -> Choose:
        if self.config.scheme == "random":
            return lambda _game, candidates: self._rng.choice(candidates)
        if self.config.scheme == "prioritised":
            return lambda game, candidates: self._rng.choices(
                candidates,
                [hard_weight(win_rate(game[0], q), self.config.power) for q in candidates],
            )[0]
        return lambda game, candidates: min(
            candidates, key=lambda q: (sum(self._played_PP[q][p] for p in game), q)
        )


def hard_weight(win_rate: float, power: float) -> float:
    """Return the weight f_hard of an opponent (Vinyals et al. 2019), at least 0.05^power.

    win_rate: share of games that the member wins against the opponent. Because of the minimum, opponents that always
    lose are still drawn sometimes.
    """
    return float(max(1.0 - win_rate, 0.05) ** power)


def make_games(slots: int, envs: int, agents: int, pick: Choose) -> list[list[int]]:
    """Return slots * envs / agents games, each a list of slots. Each slot plays `envs` agents.

    The first agent of a game belongs to the slot with the most agents left to play. Without this rule, all agents of
    the last games could belong to one slot. A slot plays two agents of a game only if no other slot has agents left.
    """
    left = [envs] * slots
    games = []
    for _ in range(slots * envs // agents):
        opener = max(range(slots), key=lambda p: (left[p], -p))
        game = [opener]
        left[opener] -= 1
        while len(game) < agents:
            free = [p for p in range(slots) if left[p] > 0]
            slot = pick(game, [p for p in free if p not in game] or free)
            game.append(slot)
            left[slot] -= 1
        games.append(game)
    assert not any(left)
    return games


def even_out(games: list[list[int]], played_PP: list[list[int]]) -> None:
    """Exchange slots between games to balance the number of games per pair. Both arguments are changed in place.

    played_PP: [P, P] number of games m of each pair, including `games`; symmetric. An exchange must decrease the sum of
    m^2 over all pairs. A new game of a pair adds (m + 1)^2 - m^2 = 2 m + 1, and a removed game adds 1 - 2 m.
    """
    for one, other in combinations(games, 2):
        for a, b in product(range(len(one)), range(len(other))):
            x, y = one[a], other[b]
            with_x, with_y = one[:a] + one[a + 1 :], other[:b] + other[b + 1 :]
            if x == y or y in with_x or x in with_y:
                continue
            given_up = sum(played_PP[x][p] for p in with_x) + sum(played_PP[y][p] for p in with_y)
            new = sum(played_PP[y][p] for p in with_x) + sum(played_PP[x][p] for p in with_y)
            if given_up - new <= len(with_x) + len(with_y):
                continue
            one[a], other[b] = y, x
            for group, leaves, comes in ((with_x, x, y), (with_y, y, x)):
                for p in group:
                    played_PP[leaves][p] -= 1
                    played_PP[p][leaves] -= 1
                    played_PP[comes][p] += 1
                    played_PP[p][comes] += 1


def games_to_rows(games: Sequence[Sequence[int]], slots: int, envs: int) -> NDArray[np.int64]:
    """Return the row of each agent, [E, S]. games: for each environment, the slot of each agent.

    The rows of a slot are slot * envs, slot * envs + 1, ... in the order of its games.
    """
    given = [0] * slots
    rows = np.zeros((len(games), len(games[0])), np.int64)
    for e, game in enumerate(games):
        for agent, slot in enumerate(game):
            rows[e, agent] = slot * envs + given[slot]
            given[slot] += 1
    assert given == [envs] * slots
    return rows


def pair_counts(row_UES: NDArray[np.int64], slots: int, envs: int) -> list[list[int]]:
    """Return the number of pairs of agents that play together, by their slots, [P, P], for the journal.

    Entry [p, q] counts pairs of an agent of slot p and an agent of slot q. On the diagonal, each pair counts twice.
    """
    count = np.zeros((slots, slots), np.int64)
    slot_GS = row_UES.reshape(-1, row_UES.shape[-1]) // envs
    for a, b in permutations(range(slot_GS.shape[1]), 2):
        np.add.at(count, (slot_GS[:, a], slot_GS[:, b]), 1)
    found: list[list[int]] = count.tolist()
    return found
