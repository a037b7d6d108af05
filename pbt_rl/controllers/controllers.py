"""Controller of population-based training, and controller of independent members.

    report -> Broken (repair members) -> Ready (start a comparison) -> Exploit (choose donors)
           -> Explore (change values) -> decisions

`Ready`, `Exploit` and `Explore` are the protocols of exchangeable rules. `PbtController` owns the random generator and
runs the stages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random

from pbt_rl.controllers.changes import changes
from pbt_rl.controllers.decisions import (
    Continue,
    Controller,
    CopyWhat,
    Decision,
    MemberReport,
    Mutate,
    PopulationReport,
    Replace,
    StateKey,
)
from pbt_rl.controllers.evaluation import Evaluation
from pbt_rl.controllers.exploit import Exploit, Remembering, Selection, decides
from pbt_rl.controllers.explore import Explore, Learning, Pairing, changed_copy, mutated
from pbt_rl.controllers.hypers import HyperSpec, Values, sample_prior
from pbt_rl.controllers.ready import Ready
from pbt_rl.controllers.repairs import Broken
from pbt_rl.controllers.state import restore_state, save_state


@dataclass(eq=False)
class ControllerWrapper:
    """Base of controllers that wrap another controller.

    By default, `initial`, `observe` and `remembers` call the same methods of the wrapped `controller`.
    """

    controller: Controller

    def seen(self, report: PopulationReport) -> PopulationReport:
        """Return the report that the wrapped controller observes. Default: the unchanged report."""
        return report

    def initial(self, num_members: int) -> list[Values]:
        """Return the result of the wrapped controller."""
        return self.controller.initial(num_members)

    def observe(self, report: PopulationReport) -> list[Decision]:
        """Return the result of the wrapped controller."""
        return self.controller.observe(self.seen(report))

    def remembers(self) -> frozenset[StateKey]:
        """Return the result of the wrapped controller."""
        return self.controller.remembers()


def innermost(controller: Controller, report: PopulationReport) -> tuple[Controller, PopulationReport]:
    """Return the controller inside all wrappers, and the report that this controller observes."""
    while isinstance(controller, ControllerWrapper):
        report, controller = controller.seen(report), controller.controller
    return controller, report


@dataclass(eq=False)
class StaticController:
    """Controller without population-based training: members keep the default values."""

    table: Mapping[str, HyperSpec]

    def initial(self, num_members: int) -> list[Values]:
        """Return the default values for each member."""
        return [defaults(self.table) for _ in range(num_members)]

    def observe(self, report: PopulationReport) -> list[Decision]:  # noqa: ARG002 - the protocol's signature
        """Return no decisions."""
        return []

    def remembers(self) -> frozenset[StateKey]:
        """Return the empty set, because this controller restores no earlier state."""
        return frozenset()


@dataclass(eq=False)
class PbtController:
    """Population-based training (Jaderberg et al. 2017, algorithm 1) with exchangeable rules.

    table: specs of all values of a member, including values that are not tuned. Member 0 starts with the defaults that
    are within their bounds (see `initial`).
    copy: parts that a member copies from its donor (ablation of the paper, section 4.4.3). `both`: the parts that the
    exploit rule chooses, usually weights and values. `weights`: members keep their start values. `hypers`: members keep
    their own weights. Restarts of broken members are exceptions.
    evaluation: evaluation episodes before each comparison. None: no evaluation.

    A comparison gives one decision for each member that may change, in the order of the report. Without a comparison,
    decisions only repair broken members (`Broken`), start an evaluation, or end an evaluation. If `observe` returns no
    decision, the controller stays unchanged, because an audit replays only the reports with decisions. If the exploit
    rule cannot judge any member yet, the comparison is postponed.

    Raises TypeError for a rule that has attributes but is not a dataclass, because the state of this rule cannot be
    saved.
    """

    table: Mapping[str, HyperSpec]
    seed: int
    ready: Ready = field(kw_only=True)
    exploit: Exploit = field(kw_only=True)
    explore: Explore = field(kw_only=True)
    copy: CopyWhat = field(default="both", kw_only=True)
    evaluation: Evaluation | None = field(default=None, kw_only=True)
    _rng: Random = field(init=False)
    _broken: Broken = field(init=False)

    def __post_init__(self) -> None:
        self._rng = Random(self.seed)
        self._broken = Broken(self._first_values)
        save_state(self)  # raises TypeError now instead of at the first checkpoint

    def _first_values(self, rng: Random) -> Values:
        return self.explore.initial(defaults(self.table), rng)

    def initial(self, num_members: int) -> list[Values]:
        """Return the default values for member 0, and start values from the explore rule for the other members.

        If the default of a tuned value is out of bounds, this value of member 0 is drawn from its prior instead. A
        single member always gets the defaults, because no value of it is tuned.
        """
        several = num_members > 1
        first = {
            name: sample_prior(spec, self._rng) if several and spec.starts_outside else spec.default
            for name, spec in self.table.items()
        }
        return [first, *(self.explore.initial(first, self._rng) for _ in range(num_members - 1))]

    def observe(self, report: PopulationReport) -> list[Decision]:
        """Return repairs of broken members, and the decisions of a comparison or evaluation that is due."""
        broken = [m for m in report.members if m.broken]
        decisions: dict[int, Decision] = {d.member: d for d in self._broken.repairs(broken, self._rng)}
        rest = replace(report, members=tuple(m for m in report.members if m.member not in decisions))
        if self.evaluation is None:
            held = self._compare(rest)
        else:
            self.evaluation.forget(decisions)
            held = self.evaluation.hold(rest, self.ready.frames_left(rest), self._compare)
        decisions |= {d.member: d for d in held}
        if not decisions:
            return []
        decided = [m for m in report.members if m.member in decisions]
        made = [decisions[m.member] for m in decided]
        changed = changes(made, {m.member: m.generation for m in report.members})
        settled = [c for c in changed if not c.evaluates]
        if settled:
            compared = [m for m, c in zip(decided, changed, strict=True) if not c.evaluates]
            self._broken.compared(compared, settled)
            if isinstance(self.explore, Learning):
                self.explore.after(report.members, settled)
        return made

    def frames_left(self, report: PopulationReport) -> int:
        """Return the number of frames per member until the next comparison. 0: the comparison is due."""
        return self.ready.frames_left(report)

    def _compare(self, report: PopulationReport) -> list[Decision]:
        """Return the decisions of a comparison, or [] if no comparison is due.

        If the exploit rule cannot judge any member yet, restore the former states of the rules and of the random
        generator, and return [].
        """
        ready = save_state(self.ready)
        comparison = self.ready.next_comparison(report)
        if comparison is None:
            return []
        exploit, generator = save_state(self.exploit), self._rng.getstate()
        selections = self.exploit.select(comparison.members, self._rng, comparison.deciding)
        judged = [m for m in comparison.members if decides(m.member, comparison.deciding)]
        assert [s.member for s in selections] == [m.member for m in judged], "one per member, in order"
        if all(s.later for s in selections):
            restore_state(self.ready, ready)
            restore_state(self.exploit, exploit)
            self._rng.setstate(generator)
            return []
        if isinstance(self.explore, Learning):
            self.explore.before(judged)
        members = {m.member: m for m in comparison.members}
        return [self._decide(s, members, comparison.note) for s in selections]

    def _decide(self, selection: Selection, members: Mapping[int, MemberReport], note: str) -> Decision:
        own = members[selection.member]
        copy = selection.copy if self.copy == "both" else self.copy
        if own.broken and (selection.donor is None or copy == "hypers"):
            return self._broken.restart(own, self._rng)
        base = self._base(selection, copy, members)
        explores = selection.mutate and self.copy != "weights"
        values = dict(base)
        if explores and selection.donor is not None and isinstance(self.explore, Pairing):
            better = members[selection.donor].values if selection.base is None else selection.base
            values = self.explore.learn(own.member, own.values, better, self._rng)
        elif explores and selection.donor is not None:
            values = changed_copy(self.explore, base, self._rng)
        elif explores:
            values = mutated(self.explore, base, self._rng)
        moved = [
            f"{name} {spec.text(base[name])} -> {spec.text(values[name])}"
            for name, spec in self.table.items()
            if values[name] != base[name]
        ]
        parts = [selection.reason, "mutated " + ", ".join(moved) if moved else "", note]
        reason = "; ".join(part for part in parts if part)
        if selection.donor is not None:
            return Replace(
                selection.member, selection.donor, copy, values, reason, selection.donor_generation
            )
        if moved or selection.renew:
            return Mutate(selection.member, values, reason)
        # If no value changed, the member keeps its generation and its objectives.
        return Continue(selection.member, reason)

    def _base(self, selection: Selection, copy: CopyWhat, members: Mapping[int, MemberReport]) -> Values:
        """Return the values before mutation: from the exploit rule, from the donor, or from the member itself."""
        if selection.donor is None or self.copy == "weights":
            return members[selection.member].values
        if selection.base is not None:
            return selection.base
        return members[selection.member if copy == "weights" else selection.donor].values

    def remembers(self) -> frozenset[StateKey]:
        """Return the keys (member, generation) of the states that `Broken` and the exploit rule may restore."""
        of_rule = self.exploit.remembers() if isinstance(self.exploit, Remembering) else frozenset()
        return self._broken.remembers() | of_rule


def defaults(table: Mapping[str, HyperSpec]) -> Values:
    """Return the default of each value in the table."""
    return {name: spec.default for name, spec in table.items()}
