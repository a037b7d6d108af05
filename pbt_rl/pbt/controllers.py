"""Controllers: what watches the population and decides who changes.

    report -> Broken (who cannot go on?) -> Ready (is it time, and for whom?) -> Exploit (who copies whom?)
           -> Explore (with which values?) -> decisions

Each of the last three is a small object behind a protocol; `PbtController` owns the generator and joins them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any

from pbt_rl.pbt.broken import Broken
from pbt_rl.pbt.decisions import (
    Continue,
    CopyWhat,
    Decision,
    MemberReport,
    Mutate,
    PopulationReport,
    Replace,
    StateKey,
)
from pbt_rl.pbt.exploit.base import Exploit, Remembering, Selection, Stateful, decides, score
from pbt_rl.pbt.explore.rules import Explore, Learning
from pbt_rl.pbt.hypers import HyperSpec, Values
from pbt_rl.pbt.ready import Ready


class StaticController:
    """Independent members that all keep the defaults: population-based training switched off."""

    def __init__(self, table: Mapping[str, HyperSpec]) -> None:
        self._defaults = defaults(table)

    def initial(self, num_members: int) -> list[Values]:
        """The defaults, for every member."""
        return [dict(self._defaults) for _ in range(num_members)]

    def observe(self, report: PopulationReport) -> list[Decision]:  # noqa: ARG002 - the protocol's signature
        """Never decide anything."""
        return []

    def remembers(self) -> frozenset[StateKey]:
        """Nothing."""
        return frozenset()

    def state_dict(self) -> dict[str, Any]:
        """Nothing: there is no state."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Accept what `state_dict` gave."""
        assert not state, "the state of another controller"


class PbtController:
    """Population-based training (Jaderberg et al. 2017, algorithm 1) with exchangeable rules.

    table: every value of a member, tuned or not; its defaults are member 0's values at the start.
    copy: what a member takes from its donor (the paper's ablation, section 4.4.3). `both` leaves it to the rule of
    selection. With `weights` it goes on from its own values, with `hypers` from its own weights.

    At a comparison every member that takes part gets exactly one decision, in the order of the report. A
    report without a comparison is answered with no decision, but for members that are broken (`Broken`); an empty
    answer changes no state, so the answers that are not empty alone replay a run. A comparison of which the rule of
    selection says that it cannot judge anyone yet is not held: it stays due.
    """

    def __init__(
        self,
        table: Mapping[str, HyperSpec],
        seed: int,
        *,
        ready: Ready,
        exploit: Exploit,
        explore: Explore,
        copy: CopyWhat = "both",
    ) -> None:
        self._table = dict(table)
        self._rng = Random(seed)
        self._ready = ready
        self._exploit = exploit
        self._explore = explore
        self._copy = copy
        self._broken = Broken(lambda rng: explore.initial(defaults(self._table), rng))

    def initial(self, num_members: int) -> list[Values]:
        """Member 0 has the defaults; the others' tuned values are drawn as the rule of exploration says."""
        first = defaults(self._table)
        return [first, *(self._explore.initial(first, self._rng) for _ in range(num_members - 1))]

    def observe(self, report: PopulationReport) -> list[Decision]:
        """Repair what can be repaired at once, and hold a comparison if one is due."""
        members = {m.member: m for m in report.members}
        repairs = self._broken.repairs([m for m in report.members if m.broken], self._rng)
        decisions = {d.member: d for d in repairs}
        rest = tuple(m for m in report.members if m.member not in decisions)
        decisions |= {d.member: d for d in self._compare(replace(report, members=rest))}
        if not decisions:
            return []
        decided = [m for m in report.members if m.member in decisions]
        answer = [decisions[m.member] for m in decided]
        self._broken.compared(decided, answer)
        if isinstance(self._explore, Learning):
            self._explore.after(list(members.values()), answer)
        return answer

    def _compare(self, report: PopulationReport) -> list[Decision]:
        before = self._ready.state_dict(), _state_of(self._exploit), self._rng.getstate()
        comparison = self._ready.next_round(report)
        if comparison is None:
            return []
        selections = self._exploit.select(comparison.members, self._rng, comparison.deciding)
        asked = [m for m in comparison.members if decides(m.member, comparison.deciding)]
        assert [f.member for f in selections] == [m.member for m in asked], "one selection a member, in order"
        if all(f.later for f in selections):
            self._ready.load_state_dict(before[0])
            _load_state(self._exploit, before[1])
            self._rng.setstate(before[2])
            return []
        if isinstance(self._explore, Learning):
            self._explore.before(asked)
        repairs = self._broken.repairs([m for m in asked if math.isnan(score(m))], self._rng)
        repaired = {d.member: d for d in repairs}
        members = {m.member: m for m in comparison.members}
        return [repaired.get(f.member) or self._decide(f, members, comparison.note) for f in selections]

    def _decide(self, selection: Selection, members: Mapping[int, MemberReport], note: str) -> Decision:
        own = members[selection.member]
        copy = selection.copy if self._copy == "both" else self._copy
        if own.broken and (selection.donor is None or copy == "hypers"):
            return self._broken.restart(own, self._rng)
        base = self._base(selection, copy, members)
        values = self._explore.mutate(base, self._rng) if selection.mutate else dict(base)
        moved = [
            f"{name} {base[name]:.4g} -> {values[name]:.4g}" for name in base if values[name] != base[name]
        ]
        parts = [selection.reason, "mutated " + ", ".join(moved) if moved else "", note]
        reason = "; ".join(part for part in parts if part)
        if selection.donor is not None:
            return Replace(
                selection.member, selection.donor, copy, values, reason, selection.donor_generation
            )
        if moved or selection.renew:
            return Mutate(selection.member, values, reason)
        # A mutation that drew no value is no change: the member keeps its generation and its objectives.
        return Continue(selection.member, reason)

    def _base(self, selection: Selection, copy: CopyWhat, members: Mapping[int, MemberReport]) -> Values:
        """Values to go on from: those the rule names, else the donor's, or the own ones if weights alone are copied."""
        if selection.donor is None or self._copy == "weights":
            return members[selection.member].values
        if selection.base is not None:
            return selection.base
        return members[selection.member if copy == "weights" else selection.donor].values

    def remembers(self) -> frozenset[StateKey]:
        """What was dropped for copies that are not proven yet, and what the rule of selection may bring back."""
        own = self._exploit.remembers() if isinstance(self._exploit, Remembering) else frozenset()
        return self._broken.remembers() | own

    def state_dict(self) -> dict[str, Any]:
        """The generator's state and the rules', as JSON types."""
        version, numbers, gauss = self._rng.getstate()
        return {
            "rng": [version, list(numbers), gauss],
            "ready": self._ready.state_dict(),
            "broken": self._broken.state_dict(),
            "exploit": _state_of(self._exploit),
            "explore": _state_of(self._explore),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken."""
        version, numbers, gauss = state["rng"]
        self._rng.setstate((version, tuple(numbers), gauss))
        self._ready.load_state_dict(state["ready"])
        self._broken.load_state_dict(state["broken"])
        _load_state(self._exploit, state["exploit"])
        _load_state(self._explore, state["explore"])


def _state_of(rule: object) -> dict[str, Any]:
    return rule.state_dict() if isinstance(rule, Stateful) else {}


def _load_state(rule: object, state: dict[str, Any]) -> None:
    if isinstance(rule, Stateful):
        rule.load_state_dict(state)


def defaults(table: Mapping[str, HyperSpec]) -> Values:
    """Name -> default of every value of the table."""
    return {name: spec.default for name, spec in table.items()}
