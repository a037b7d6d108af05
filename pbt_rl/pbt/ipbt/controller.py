"""IPBT: population-based training that begins again, with longer periods, when it gets no further."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from pbt_rl.errors import ConfigError
from pbt_rl.pbt.changes import changes
from pbt_rl.pbt.controllers import PbtController
from pbt_rl.pbt.decisions import Decision, MemberReport, PopulationReport, Replace, StateKey
from pbt_rl.pbt.exploit import rank, score
from pbt_rl.pbt.explore import Learning, changed_copy, from_priors
from pbt_rl.pbt.hypers import Values
from pbt_rl.pbt.ipbt.stagnation import improves, is_slow
from pbt_rl.pbt.ready import Round, Synchronous
from pbt_rl.pbt.state import restore_state, save_state

PATIENCE = 3
"""Comparisons in a row without progress before a restart."""
TOP = 0.25
"""Share of the members whose weights go on after a restart."""
SHRINK_PERTURB = (0.2, 0.1)
LENGTHEN = 2.0
DRAWN = 0.5
"""Share of the members whose values are drawn anew at a restart."""


@dataclass(frozen=True)
class _Champion:
    """The best state with which an iteration ended."""

    member: int
    generation: int
    objective: float
    values: Values


@dataclass(eq=False)
class Ipbt(PbtController):
    """Iterated PBT (Chebykin, Alderliesten and Bosman 2025, arXiv 2511.09190, section 3, and its source).

    An iteration is PBT with one period. It ends when it stagnates: after each comparison the best objectives b_1..b_k
    of the iteration so far are standardised and smoothed by a Gaussian process (Matern 5/2); a comparison fails unless
    the smoothed b_k exceeds the smoothed b_{k-1}. After PATIENCE failures in a row, or if max(b_1..b_k) exceeds
    max(b_1..b_{k-14}) by less than one deviation, everything begins again: each member that is not of the best quarter
    copies one of it; all weights w become 0.2 w + 0.1 w_drawn (shrink-perturb, Ash and Adams 2020), with a new
    optimiser; half of the members draw their values from the priors; periods are twice as long from then on. No
    restart if fewer than two of those would fit into the budget. The paper's first period is a hundredth of the budget.

    The best weights with which an iteration ended are kept in memory. As in the authors' source they may be the result
    of the run: if nobody scores as much at the last comparison that the budget has, the worst member returns to them.

    At a restart the rule of selection forgets what it has noted, and members that could not be compared yet copy like
    the others. Shrunk weights score less than those of any elite that `Backtrack` has, or of a member that went on: the
    next comparison would replace them all by weights of before the restart.

    A task that is solved, all members at its maximum, stagnates like any other: the test knows no maximum. Restarts
    then cost training time, not the result.

    Where this differs: the paper trains twice as many members in the first period after a restart, half of them with
    drawn weights, and keeps the better half; here their number is fixed and all weights are shrunk. The values of the
    others come from its Bayesian optimisation over restarts; here from `explore` (`pb2` is the nearest), applied to
    the copied member's. Its process is fitted by a predictive likelihood, here by maximum likelihood
    (scikit-learn, extra `search`).
    """

    SHRINKS_WEIGHTS: ClassVar[bool] = True
    """Its changes mix weights, which only the trainer of networks can."""

    budget_frames: int = field(kw_only=True)
    """Of each member."""
    _bests: list[float] = field(default_factory=list, init=False)
    """Best objective of each comparison of this iteration."""
    _failed: int = field(default=0, init=False)
    """Comparisons without progress, in a row."""
    restarts: int = field(default=0, init=False)
    _champion: _Champion | None = field(default=None, init=False)
    """Of all iterations before this one."""

    def __post_init__(self) -> None:
        if importlib.util.find_spec("sklearn") is None:
            raise ConfigError(
                "ipbt needs scikit-learn: install it with pip install 'pbt-rl[search]', or use --controller pbt"
            )
        super().__post_init__()
        self._unused_exploit = save_state(self.exploit)  # no field: the same in every run with these options

    def observe(self, report: PopulationReport) -> list[Decision]:
        """Do as PBT; beside a restart nobody falls back to weights of before it."""
        restarts, made = self.restarts, super().observe(report)
        repairs = self._broken
        if self.restarts == restarts or repairs is None:
            return made
        members = {m.member: m for m in report.members}
        decided = changes(made, {m.member: m.generation for m in report.members})
        return [
            repairs.restart(members[d.member], self._rng)
            if change.weights == "copy" and change.shrink_perturb is None
            else d
            for d, change in zip(made, decided, strict=True)
        ]

    def _settle(self, comparison: Round, report: PopulationReport) -> list[Decision]:
        scores = {m.member: score(m) for m in comparison.members}
        finite = [objective for objective in scores.values() if not math.isnan(objective)]
        if not finite:
            return super()._settle(comparison, report)
        bests = [*self._bests, max(finite)]
        failed = self._failed + 1 if not improves(bests) else 0
        if (failed >= PATIENCE or is_slow(bests)) and self._fits(comparison.members):
            self._bests, self._failed = [], 0
            return self._restart(comparison, report, scores)
        decisions = super()._settle(comparison, report)
        if decisions:
            self._bests, self._failed = bests, failed
            decisions = self._with_champion(decisions, report, scores)
        return decisions

    @property
    def _clock(self) -> Synchronous:
        assert isinstance(self.ready, Synchronous), "periods of all members grow together"
        return self.ready

    def _fits(self, members: Sequence[MemberReport]) -> bool:
        """Whether two of the longer periods are left."""
        trained = max(m.frames for m in members)
        return trained + 2 * LENGTHEN * self._clock.period <= self.budget_frames

    def _with_champion(
        self, decisions: list[Decision], report: PopulationReport, scores: dict[int, float]
    ) -> list[Decision]:
        """Let the worst member return to the best weights of all iterations, if this is the last comparison."""
        best, last = self._champion, report.frames + self._clock.period >= self.budget_frames
        if best is None or not last or any(own >= best.objective for own in scores.values()):
            return decisions
        worst = rank(scores, self._rng)[-1]
        reason = f"back to the best weights of an iteration before, which had {best.objective:.4g}"
        back = Replace(worst, best.member, "both", dict(best.values), reason, best.generation)
        return [back if decision.member == worst else decision for decision in decisions]

    def remembers(self) -> frozenset[StateKey]:
        """Return what PBT remembers, and the best state of all iterations."""
        best = self._champion
        return super().remembers() | (frozenset() if best is None else {(best.member, best.generation)})

    def _restart(
        self, comparison: Round, report: PopulationReport, scores: dict[int, float]
    ) -> list[Decision]:
        self.restarts += 1
        self._clock.lengthen(LENGTHEN)
        restore_state(self.exploit, self._unused_exploit)
        ranking = [m for m in rank(scores, self._rng) if not math.isnan(scores[m])]
        top = ranking[: max(1, round(TOP * len(scores)))]
        members = {m.member: m for m in report.members}
        best = members[ranking[0]]
        if self._champion is None or scores[best.member] > self._champion.objective:
            own = scores[best.member]
            self._champion = _Champion(best.member, best.generation, own, dict(best.values))
        drawn = set(self._rng.sample(sorted(members), round(DRAWN * len(members))))
        if isinstance(self.explore, Learning):
            self.explore.before(comparison.members)
        tuned = {name: spec for name, spec in self.table.items() if spec.tuned}
        decisions: list[Decision] = []
        for m in report.members:
            donor = m.member if m.member in top else self._rng.choice(top)
            values = members[donor].values
            reason = (
                f"restart {self.restarts}: no progress; weights shrunk, values "
                f"{'drawn anew' if m.member in drawn else 'mutated'}, periods of {self._clock.period:,} frames"
            )
            changed = (
                from_priors(tuned, values, self._rng)
                if m.member in drawn
                else changed_copy(self.explore, values, self._rng)
            )
            decisions.append(Replace(m.member, donor, "both", changed, reason, shrink_perturb=SHRINK_PERTURB))
        return decisions
