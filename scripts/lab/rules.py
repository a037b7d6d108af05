"""Exploit rule that was tested as the default (docs/lab/worth.md): the worst quarter copies the best quarter.

PYTHONPATH=scripts/lab pbt-rl train --pbt.exploit rules:LimitedTruncation ...
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from pbt_rl.controllers.decisions import MemberReport
from pbt_rl.controllers.exploit import (
    Deciding,
    Gap,
    Selection,
    band_size,
    decides,
    describe_shortfall,
    rank,
    score,
    standard_error,
)


@dataclass
class LimitedTruncation:
    """Truncation selection with a noise limit and a diversity limit.

    Each member in the worst `fraction` copies a member in the best `fraction`, if the lead of the donor is at least
    `errors` standard errors. The other members do not change. In the first `rounds` comparisons, no lineage gets more
    than half of the members. Otherwise slow starters would be lost early.
    """

    fraction: float = 0.25
    errors: float = 1.0
    rounds: int = 6
    _held: int = field(default=0, init=False)
    _root: dict[int, int] = field(default_factory=dict, init=False)
    """Member -> founder of its lineage."""

    def select(
        self, members: Sequence[MemberReport], rng: Random, deciding: Deciding = None
    ) -> list[Selection]:
        """Select donors (see `Exploit`)."""
        self._held += 1
        for one in members:
            self._root.setdefault(one.member, one.member)
        scores = {one.member: score(one) for one in members}
        errors = {one.member: standard_error(one.objectives) for one in members}
        ranking, size = rank(scores, rng), band_size(self.fraction, len(scores))
        best, worst = ranking[:size], set(ranking[-size:])
        selections = []
        for m in (one.member for one in members if decides(one.member, deciding)):
            donor = rng.choice(best)
            gap = Gap(0.0, 1e-6, self.errors)
            error = (errors[m] ** 2 + errors[donor] ** 2) ** 0.5
            share = Counter(self._root.values())[self._root[donor]]
            grows = self._root[m] != self._root[donor] and 2 * (share + 1) > len(self._root)
            if m not in worst or len(scores) == 1:
                reason = f"objective {scores[m]:.4g} is not among the worst {size}"
            elif not gap.exceeded(scores[m], scores[donor], error):
                reason = (
                    f"{describe_shortfall(scores[m], scores[donor])}, within the noise of the two windows"
                )
            elif self._held <= self.rounds and grows:
                reason = "the donor's lineage has half of the members"
            else:
                reason = describe_shortfall(scores[m], scores[donor])
                self._root[m] = self._root[donor]
                selections.append(Selection(m, donor, mutate=True, reason=reason))
                continue
            selections.append(Selection(m, None, mutate=False, reason=reason))
        return selections


@dataclass
class Finalists(LimitedTruncation):
    """`LimitedTruncation` whose diversity limit holds for eleven comparisons."""

    rounds: int = 11
