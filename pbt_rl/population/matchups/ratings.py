"""Ratings from games between members: Elo, and the win rate of each pair. Pure bookkeeping.

Expected score of a against b, and the update after a game (Elo 1978, "The Rating of Chessplayers"):

    E_a = 1 / (1 + 10^((R_b - R_a) / 400))        R_a += K (S_a - E_a)        S: win 1, draw 1/2, loss 0

A game of N > 2 agents counts as one game of each pair with K / (N - 1), based on the ratings before the game. Pairs of
agents that the same member plays are left out.

A rating belongs to weights. A copy gets the rating of its donor. A member that keeps its weights (a mutation, a copy of
values only) keeps its rating. Initialised weights start with `START`. Ratings can only be compared between members of
one device, because members of different devices do not play each other (except after a move between nodes, --nodes).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import fsum
from typing import Literal

from pbt_rl.controllers.changes import Change
from pbt_rl.controllers.decisions import StateKey

Objective = Literal["return", "win-rate", "elo"]
RECENT_GAMES = 100
START = 1000.0
SCALE = 400.0
FORGET = 0.98
"""Factor by which each game decays the earlier results of a pair. About the last 50 games determine the win rate."""


def scores(objectives: Sequence[float], a: int, b: int) -> float:
    """Return the score of agent a against agent b: 1 for a higher objective, 1/2 for equal objectives, otherwise 0."""
    return 0.5 if objectives[a] == objectives[b] else float(objectives[a] > objectives[b])


def expected(own: float, other: float) -> float:
    """Return the expected score of a player with the rating `own` against the rating `other`."""
    return float(1.0 / (1.0 + 10.0 ** ((other - own) / SCALE)))


@dataclass(eq=False)
class Ratings:
    """Elo ratings of all members, and results of all pairs of members.

    members: number of members. k: maximum rating change in a game, for one agent of the member.
    objective: score by which PBT ranks members.
    """

    members: int
    k: float
    objective: Objective = "return"
    elo: list[float] = field(init=False)
    games: list[int] = field(init=False)
    """Member -> number of rated games since the last replacement of its weights."""
    _won: list[list[float]] = field(init=False)
    """Decayed sum of scores of each pair."""
    _played: list[list[float]] = field(init=False)
    """Decayed number of games of each pair."""
    _remembered: dict[StateKey, float] = field(default_factory=dict, init=False)
    _scores: list[list[float]] = field(init=False)
    """Member -> its latest RECENT_GAMES scores against other members, in its present generation."""
    _shown: dict[int, float] = field(default_factory=dict, init=False)
    """Member -> its rating after its last game."""

    def __post_init__(self) -> None:
        self.elo, self.games = [START] * self.members, [0] * self.members
        self._scores = [[] for _ in range(self.members)]
        self._won, self._played = ([[0.0] * self.members for _ in range(self.members)] for _ in range(2))

    def restored(self) -> None:
        """Raise ValueError if a restored table does not fit the number of members."""
        tables = (self._won, self._played)
        sizes = {len(self.elo), len(self.games), len(self._scores), *map(len, tables)}
        sizes |= {len(row) for table in tables for row in table}
        if sizes != {self.members}:
            raise ValueError(f"the saved ratings do not fit {self.members} members")

    @property
    def judges(self) -> bool:
        """True if results of games determine the objective of a member. False: the return determines the objective."""
        return self.objective != "return"

    @property
    def window(self) -> int | None:
        """Number of objectives in a full window. 1 for Elo, because a rating depends on all earlier games.

        None: the argument `window` of `Population` is used.
        """
        return 1 if self.objective == "elo" else None

    def take(self, members: Sequence[int], objectives: Sequence[float]) -> list[tuple[int, float]]:
        """Count a finished game, and return the new objectives as (member, win score or Elo rating).

        members: member that played each agent. objectives: true objective of each agent.
        The list is empty if members are ranked by their return. An agent has no entry if its member played all agents.
        """
        rated = self.note_game(members, objectives)
        for member, score in rated:
            self._scores[member] = [*self._scores[member], score][-RECENT_GAMES:]
            self._shown[member] = self.elo[member]
        if self.objective == "return":
            return []
        return [(m, score if self.objective == "win-rate" else self.elo[m]) for m, score in rated]

    def stats(self, member: int) -> dict[str, float]:
        """Return the known statistics of a member: `elo` and `win_rate`."""
        scores = self._scores[member]
        found = {"win_rate": fsum(scores) / len(scores)} if scores else {}
        return found | ({"elo": self._shown[member]} if member in self._shown else {})

    def note_game(self, members: Sequence[int], objectives: Sequence[float]) -> list[tuple[int, float]]:
        """Update the ratings and the results of each pair of members after a finished game.

        members: member that played each agent. objectives: true objective of each agent.
        Returns (member, mean score against other members) for each agent that played against another member.
        """
        gained = [0.0] * len(members)
        score: list[list[float]] = [[] for _ in members]
        for a, b in combinations(range(len(members)), 2):
            one, other = members[a], members[b]
            if one == other:
                continue
            s = scores(objectives, a, b)
            score[a].append(s)
            score[b].append(1.0 - s)
            points = self.k / (len(members) - 1) * (s - expected(self.elo[one], self.elo[other]))
            gained[a] += points
            gained[b] -= points
            self._note_pair(one, other, s)
            self._note_pair(other, one, 1.0 - s)
        for member, points in zip(members, gained, strict=True):
            self.elo[member] += points
        rated = [(member, own) for member, own in zip(members, score, strict=True) if own]
        for member in {member for member, _ in rated}:
            self.games[member] += 1
        return [(member, sum(own) / len(own)) for member, own in rated]

    def _note_pair(self, one: int, other: int, score: float) -> None:
        self._won[one][other] = FORGET * self._won[one][other] + score
        self._played[one][other] = FORGET * self._played[one][other] + 1.0

    def win_rate(self, one: int, other: int) -> float:
        """Return the share of recent games that member `one` won against member `other`. A draw counts as 1/2 game.

        One drawn game is added, so the share is 1/2 before their first game.
        """
        return (self._won[one][other] + 0.5) / (self._played[one][other] + 1.0)

    def follow(self, changes: Iterable[Change], remembered: frozenset[StateKey]) -> None:
        """Give each copy the rating and the pair results that its donor had before the comparison.

        A copy of a remembered state gets the rating of this state, but no pair results. Initialised weights get START.
        remembered: keys of the states that the controller remembers after the comparison.
        """
        before, kept = list(self.elo), dict(self._remembered)
        self._remembered = {key: kept.get(key, before[key[0]]) for key in remembered}
        sources: dict[int, int | None] = {}
        for change in changes:
            if change.values is not None:
                self._scores[change.member] = []
            if change.weights == "fresh":
                self.elo[change.member] = START
                sources[change.member] = None
            elif change.weights_from is not None:
                donor = change.weights_from[0]
                self.elo[change.member] = (
                    kept.get(change.weights_from, before[donor]) if change.remembered else before[donor]
                )
                sources[change.member] = None if change.remembered else donor
        self._copy_pairs(sources)

    def _copy_pairs(self, sources: Mapping[int, int | None]) -> None:
        """Copy the pair results of donors to members with new weights.

        sources: member -> donor. None: the member's new weights have played no games.
        """
        for member in sources:
            self.games[member] = 0
        for now in (self._won, self._played):
            then = [list(row) for row in now]
            for member, donor in sources.items():
                for other in range(len(self.elo)):
                    faced = sources.get(other, other)
                    if donor is None or faced is None or donor == faced:
                        now[member][other] = now[other][member] = 0.0
                    else:
                        now[member][other], now[other][member] = then[donor][faced], then[faced][donor]
