"""DexPBT's rule of selection: a gap in standard deviations of the population."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from random import Random

from pbt_rl.controllers.decisions import MemberReport
from pbt_rl.controllers.exploit import (
    ExploitRule,
    Selection,
    band_size,
    decides,
    describe_shortfall,
    rank,
    score,
)
from pbt_rl.options import option


@dataclass(frozen=True)
class SigmaGap:
    """DexPBT (Petrenko et al. 2023), section IV, with the details of its source in IsaacGymEnvs (`pbt.py`).

    Only the worst K change. One of them is protected while the best window mean of its interval
    (`MemberReport.best`) reaches the least objective of the best K: a random dip does not cost it its weights.
    Otherwise a donor is drawn from the best K; its weights are copied if it leads by more than `sigmas` standard
    deviations of the population (the worst fifth, which may have crashed, left out) *and* by more than `relative`
    of its own magnitude. Copied or not, the values mutate; after a copy they are the donor's or the member's own,
    evenly likely. With half of the population or less (or two or less) with a finite objective nothing happens.
    """

    fraction: float = option(0.3, at_least=0, at_most=0.5)
    sigmas: float = option(0.5, at_least=0)
    relative: float = option(0.05, at_least=0)

    def select(
        self, members: Sequence[MemberReport], rng: Random, deciding: Collection[int] | None = None
    ) -> list[Selection]:
        """Judge the members in their order."""
        scores = {m.member: score(m) for m in members}
        ranking = rank(scores, rng)
        finite = [m for m in ranking if not math.isnan(scores[m])]
        size = band_size(self.fraction, len(scores))
        best = [m for m in ranking[:size] if not math.isnan(scores[m])]
        worst = set(ranking[len(ranking) - size :])
        enough = len(finite) > max(2, len(scores) // 2)
        sigma = _deviation([scores[m] for m in finite[: len(finite) - len(finite) // 5]])
        selections = []
        for m in members:
            if not decides(m.member, deciding):
                continue
            if m.member not in worst or not best or not enough:
                why = "is not among the worst" if enough else "cannot be judged: too few are finite"
                reason = f"objective {scores[m.member]:.4g} {why}"
                selections.append(Selection(m.member, None, mutate=False, reason=reason))
            elif m.best is not None and not m.broken and m.best >= scores[best[-1]]:
                reason = f"protected: it reached {m.best:.4g} in this interval"
                selections.append(Selection(m.member, None, mutate=False, reason=reason))
            else:
                selections.append(self._select_worst(m.member, scores, rng.choice(best), sigma, rng))
        return selections

    def _select_worst(
        self, member: int, scores: dict[int, float], donor: int, sigma: float, rng: Random
    ) -> Selection:
        own, other = scores[member], scores[donor]
        shortfall = describe_shortfall(own, other)
        gap = max(self.sigmas * sigma, self.relative * abs(other))
        if not (math.isnan(own) or other - own > gap):
            return Selection(member, None, mutate=True, reason=f"{shortfall}, too little to be replaced")
        if rng.random() < 0.5:
            return Selection(member, donor, mutate=True, reason=f"{shortfall}; own values", copy="weights")
        return Selection(member, donor, mutate=True, reason=shortfall)


def _deviation(objectives: Sequence[float]) -> float:
    """Return the standard deviation of the whole (not of a sample); scaled so that no square overflows."""
    largest = max(map(abs, objectives), default=0.0)
    if largest == 0:
        return 0.0
    scaled = [x / largest for x in objectives]
    mean = math.fsum(scaled) / len(scaled)
    return largest * math.sqrt(math.fsum((x - mean) ** 2 for x in scaled) / len(scaled))


SIGMA_GAP = ExploitRule(
    lambda pbt: SigmaGap(pbt.replace_fraction),
    ("pbt.replace_fraction",),
    least_members=3,
    help="the gap is counted in deviations of the population; a recent peak protects (DexPBT).",
)
