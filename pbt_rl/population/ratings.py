"""What games between members say of them: Elo ratings, and who beats whom how often. Pure bookkeeping.

Expected score of a against b, and the update after a game (Elo 1978, "The Rating of Chessplayers"):

    E_a = 1 / (1 + 10^((R_b - R_a) / 400))        R_a += K (S_a - E_a)        S: win 1, draw 1/2, loss 0

A game of more than two seats is a game of every pair, each with K / (S - 1), all on the ratings from before it.
SlotAssigner of one member say nothing of each other and are left out.

A rating belongs to weights. Who becomes a copy of a donor has the donor's rating; who goes on with its own weights
(a mutation, a copy of values alone) keeps its own; who begins afresh begins at the start again. Ratings have a
meaning only among members that meet: those of one device.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations

from pbt_rl.pbt.decisions import Decision, Replace, Restart, StateKey

START = 1000.0
SCALE = 400.0
FORGET = 0.98
"""Weight of what was known of a pair after another game of it: about the last 50 games count."""


def scores(objectives: Sequence[float], a: int, b: int) -> float:
    """Score of seat a against seat b: 1 for the higher objective, 1/2 for equal ones, else 0."""
    return 0.5 if objectives[a] == objectives[b] else float(objectives[a] > objectives[b])


def expected(own: float, other: float) -> float:
    """Expected score by two ratings."""
    return float(1.0 / (1.0 + 10.0 ** ((other - own) / SCALE)))


class Ratings:
    """Ratings and pair results of all members."""

    def __init__(self, members: int, k: float) -> None:
        self._k = k
        self.elo = [START] * members
        self.games = [0] * members
        """Rated games of the present weights."""
        self._won = [[0.0] * members for _ in range(members)]
        self._played = [[0.0] * members for _ in range(members)]
        self._remembered: dict[StateKey, float] = {}

    def note(self, members: Sequence[int], objectives: Sequence[float]) -> list[tuple[int, float]]:
        """Take in a finished game, seat by seat; (member, mean score against the others) for each seat that met any."""
        change = [0.0] * len(members)
        score: list[list[float]] = [[] for _ in members]
        for a, b in combinations(range(len(members)), 2):
            one, other = members[a], members[b]
            if one == other:
                continue
            s = scores(objectives, a, b)
            score[a].append(s)
            score[b].append(1.0 - s)
            points = self._k / (len(members) - 1) * (s - expected(self.elo[one], self.elo[other]))
            change[a] += points
            change[b] -= points
            self._note_pair(one, other, s)
            self._note_pair(other, one, 1.0 - s)
        for member, points in zip(members, change, strict=True):
            self.elo[member] += points
        met = [(member, own) for member, own in zip(members, score, strict=True) if own]
        for member in {member for member, _ in met}:
            self.games[member] += 1
        return [(member, sum(own) / len(own)) for member, own in met]

    def _note_pair(self, one: int, other: int, score: float) -> None:
        self._won[one][other] = FORGET * self._won[one][other] + score
        self._played[one][other] = FORGET * self._played[one][other] + 1.0

    def win_rate(self, one: int, other: int) -> float:
        """Share that a member wins against another, lately; a half while nothing is known."""
        return (self._won[one][other] + 0.5) / (self._played[one][other] + 1.0)

    def follow(self, decisions: Iterable[Decision], remembered: frozenset[StateKey]) -> None:
        """Let what is known go the way of the weights. remembered: the states that the controller keeps from now on.

        Like the weights, all is taken as it was before any of the decisions.
        """
        before, kept = list(self.elo), dict(self._remembered)
        self._remembered = {key: kept.get(key, before[key[0]]) for key in remembered}
        won, played = ([list(row) for row in table] for table in (self._won, self._played))
        for d in decisions:
            if isinstance(d, Restart):
                self.elo[d.member] = START
                self._know(d.member, None, won, played)
            elif isinstance(d, Replace) and d.copy != "hypers":
                if d.donor_generation is None:
                    self.elo[d.member] = before[d.donor]
                    self._know(d.member, d.donor, won, played)
                else:
                    self.elo[d.member] = kept.get((d.donor, d.donor_generation), before[d.donor])
                    self._know(d.member, None, won, played)

    def _know(
        self, member: int, donor: int | None, won: list[list[float]], played: list[list[float]]
    ) -> None:
        """What is known of a member's pairs: as of the donor before, or nothing."""
        self.games[member] = 0
        for now, then in ((self._won, won), (self._played, played)):
            for other in range(len(self.elo)):
                known = donor is not None and other not in (member, donor)
                now[member][other] = then[donor][other] if known and donor is not None else 0.0
                now[other][member] = then[other][donor] if known and donor is not None else 0.0
