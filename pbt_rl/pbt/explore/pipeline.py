"""Several rules of exploration as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from pbt_rl.pbt.changes import Change
from pbt_rl.pbt.decisions import MemberReport
from pbt_rl.pbt.explore.base import Explore, Learning
from pbt_rl.pbt.hypers import Values


@dataclass(frozen=True)
class ExplorePipeline:
    """Rules in turn. until_change: stop at the first that changes anything (Orion); else all of them (Ray).

    Orion's default is `(ResampleAll(tuned, 0.2), MultiplyOrDivide(tuned, 1.2, volatility=1e-4))` until a change.
    Members begin as the first rule has it.
    """

    rules: tuple[Explore, ...]
    until_change: bool

    def initial(self, values: Values, rng: Random) -> Values:
        """Return what the first rule returns."""
        return self.rules[0].initial(values, rng)

    def mutate(self, values: Values, rng: Random) -> Values:
        """Apply one rule after the other."""
        now = dict(values)
        for rule in self.rules:
            now = rule.mutate(now, rng)
            if self.until_change and now != values:
                break
        return now

    def before(self, members: Sequence[MemberReport]) -> None:
        """Pass it to the rules that learn."""
        for rule in self._learning():
            rule.before(members)

    def after(self, members: Sequence[MemberReport], changes: Sequence[Change]) -> None:
        """Pass it to the rules that learn."""
        for rule in self._learning():
            rule.after(members, changes)

    def _learning(self) -> list[Learning]:
        return [rule for rule in self.rules if isinstance(rule, Learning)]
