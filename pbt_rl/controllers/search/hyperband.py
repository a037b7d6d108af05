"""Hyperband: several brackets of Successive Halving, from many short trainings to few long ones."""

from __future__ import annotations

from dataclasses import dataclass, field

from pbt_rl.controllers.search.brackets import Bracket, Brackets, Rung


def hyperband_table(eta: int = 3, resource: int = 27) -> list[list[tuple[int, int]]]:
    """Return the brackets as lists of (members, units of the resource), broadest first.

    With s_max = floor(log_eta R), bracket s = s_max..0 has n = floor((s_max + 1) / (s + 1)) eta^s members; its rung i
    keeps floor(n / eta^i) of them for R eta^(i - s) units each. These are the counts of Heinrich and Frosio
    (2019, table 2) and of Li's first version; the later one has ceil(eta^s (s_max + 1) / (s + 1)) members.
    """
    assert eta >= 2
    assert resource >= 1
    most = 0
    while eta ** (most + 1) <= resource:
        most += 1
    return [
        [
            ((most + 1) // (s + 1) * eta**s // eta**i, max(1, resource * eta**i // eta**s))
            for i in range(s + 1)
        ]
        for s in range(most, -1, -1)
    ]


@dataclass(eq=False)
class Hyperband(Brackets):
    """All brackets of Hyperband (Li et al. 2018) at once, on members in order: the broadest bracket has the first.

    phase_frames: one unit of the resource. eta: the inverse of the share that goes on. resource: R.
    restart: every rung begins from fresh weights, as in Heinrich and Frosio (2019); False trains on to the rung's
    total.

    More members than one pass over all brackets takes (46 for eta 3 and R 27) start over with the broadest bracket; a
    bracket that gets fewer members than it should is divided by eta in the same way, down to one.
    """

    restart: bool = field(default=True, kw_only=True)
    eta: int = field(default=3, kw_only=True)
    resource: int = field(default=27, kw_only=True)

    def brackets(self, num_members: int) -> list[Bracket]:
        """Fill the brackets in order, again from the first while there are members."""
        shapes = hyperband_table(self.eta, self.resource)
        made: list[Bracket] = []
        first = 0
        while first < num_members:
            shape = shapes[len(made) % len(shapes)]
            size = min(shape[0][0], num_members - first)
            rungs = tuple(
                Rung(max(1, size // self.eta**i), units * self.phase_frames)
                for i, (_, units) in enumerate(shape)
            )
            made.append(Bracket(tuple(range(first, first + size)), rungs))
            first += size
        return made
