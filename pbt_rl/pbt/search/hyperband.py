"""Hyperband: several brackets of Successive Halving, from many short trainings to few long ones."""

from __future__ import annotations

from collections.abc import Mapping

from pbt_rl.pbt.hypers import HyperSpec
from pbt_rl.pbt.search.brackets import Bracket, Brackets, Rung
from pbt_rl.pbt.search.draws import Sampling, draw_random


def hyperband_table(eta: int = 3, resource: int = 27) -> list[list[tuple[int, int]]]:
    """Brackets as lists of (members, units of the resource), broadest first.

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


def hyperband_members(eta: int = 3, resource: int = 27) -> int:
    """Configurations of one pass over all brackets: 46 for eta 3 and R 27."""
    return sum(rungs[0][0] for rungs in hyperband_table(eta, resource))


def hyperband_completion(eta: int = 3, resource: int = 27) -> float:
    """Share of the units that are run, of R for every configuration: sum n_i r_i / (n R), 32.61 % for 3 and 27.

    It counts every rung from fresh weights, as the paper runs it (section 5.2.4).
    """
    brackets = hyperband_table(eta, resource)
    run = sum(members * units for rungs in brackets for members, units in rungs)
    return run / (hyperband_members(eta, resource) * resource)


class Hyperband(Brackets):
    """All brackets of Hyperband (Li et al. 2018) at once, on members in order: the broadest bracket has the first.

    phase_frames: one unit of the resource. restart: every rung begins from fresh weights, as in Heinrich and Frosio
    (2019); False trains on to the rung's total.

    More members than `hyperband_members` start over with the broadest bracket; a bracket that gets fewer members
    than it should is divided by eta in the same way, down to one.
    """

    def __init__(
        self,
        table: Mapping[str, HyperSpec],
        seed: int,
        *,
        phase_frames: int,
        eta: int = 3,
        resource: int = 27,
        restart: bool = True,
        min_episodes: int = 1,
        sampling: Sampling = draw_random,
    ) -> None:
        super().__init__(
            table,
            seed,
            phase_frames=phase_frames,
            restart=restart,
            slots=None,
            min_episodes=min_episodes,
            sampling=sampling,
        )
        self._eta = eta
        self._resource = resource

    def brackets(self, num_members: int) -> list[Bracket]:
        """Fill the brackets in order, again from the first while there are members."""
        shapes = hyperband_table(self._eta, self._resource)
        made: list[Bracket] = []
        first = 0
        while first < num_members:
            shape = shapes[len(made) % len(shapes)]
            size = min(shape[0][0], num_members - first)
            rungs = tuple(
                Rung(max(1, size // self._eta**i), units * self._phase_frames)
                for i, (_, units) in enumerate(shape)
            )
            made.append(Bracket(tuple(range(first, first + size)), rungs))
            first += size
        return made
