"""Controllers: what watches the population and decides who changes.

    report -> Ready (is it time, and for whom?) -> Exploit (who copies whom?) -> Explore (with which values?)
           -> decisions

Each of the three is a small object behind a protocol; `PbtController` owns the generator and joins them.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

from pbt_rl.errors import ConfigError
from pbt_rl.pbt.decisions import (
    Continue,
    Controller,
    Decision,
    Key,
    MemberReport,
    Mutate,
    PopulationReport,
    Replace,
)
from pbt_rl.pbt.exploit import Exploit, Fate, Gap, Truncation
from pbt_rl.pbt.explore import Explore, Perturb
from pbt_rl.pbt.hypers import HyperSpec, Values
from pbt_rl.pbt.ready import Ready, Synchronous

if TYPE_CHECKING:
    from pbt_rl.pbt.config import PbtConfig


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

    def remembers(self) -> frozenset[Key]:
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

    At a comparison every member that takes part gets exactly one decision, in the order of the report. A
    report without a comparison is answered with no decision and changes no state, so the comparisons alone
    replay a run.
    """

    def __init__(
        self, table: Mapping[str, HyperSpec], seed: int, *, ready: Ready, exploit: Exploit, explore: Explore
    ) -> None:
        self._table = dict(table)
        self._rng = Random(seed)
        self._ready = ready
        self._exploit = exploit
        self._explore = explore

    def initial(self, num_members: int) -> list[Values]:
        """Member 0 has the defaults; the others' tuned values are drawn around them."""
        first = defaults(self._table)
        return [first, *(self._explore.initial(first, self._rng) for _ in range(num_members - 1))]

    def observe(self, report: PopulationReport) -> list[Decision]:
        """Hold a comparison if one is due."""
        comparison = self._ready.next_round(report)
        if comparison is None:
            return []
        members = {m.member: m for m in comparison.members}
        fates = self._exploit.fates(comparison.members, self._rng)
        assert [f.member for f in fates] == list(members), "one fate a member, in order"
        return [self._decide(fate, members, comparison.note) for fate in fates]

    def _decide(self, fate: Fate, members: Mapping[int, MemberReport], note: str) -> Decision:
        own = members[fate.member].values
        base = own if fate.donor is None else members[fate.donor].values
        values = self._explore.mutate(base, self._rng) if fate.mutate else dict(base)
        moved = [
            f"{name} {base[name]:.4g} -> {values[name]:.4g}" for name in base if values[name] != base[name]
        ]
        parts = [fate.reason, "mutated " + ", ".join(moved) if moved else "", note]
        reason = "; ".join(part for part in parts if part)
        if fate.donor is not None:
            return Replace(fate.member, fate.donor, "both", values, reason)
        if moved:
            return Mutate(fate.member, values, reason)
        # A mutation that drew no value is no change: the member keeps its generation and its objectives.
        return Continue(fate.member, reason)

    def remembers(self) -> frozenset[Key]:
        """Nothing."""
        return frozenset()

    def state_dict(self) -> dict[str, Any]:
        """The generator's state and the ready rule's, as JSON types."""
        version, numbers, gauss = self._rng.getstate()
        return {"rng": [version, list(numbers), gauss], "ready": self._ready.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken."""
        version, numbers, gauss = state["rng"]
        self._rng.setstate((version, tuple(numbers), gauss))
        self._ready.load_state_dict(state["ready"])


def build_controller(pbt: PbtConfig, table: Mapping[str, HyperSpec], seed: int) -> Controller:
    """Controller that the options ask for.

    table: `hyper_table(...) | shaping_table(...)`, with bounds as tight as the run needs them.
    Raises ConfigError if `pbt.tune` holds a name that is not in the table.
    """
    tuned = tuned_specs(table, pbt.tune)
    if not pbt.enabled:
        return StaticController(table)
    return PbtController(
        table,
        seed,
        ready=Synchronous(pbt.period_frames, pbt.start_frames, pbt.min_episodes),
        exploit=Truncation(
            pbt.replace_fraction,
            Gap(pbt.replace_gap, pbt.replace_gap_absolute),
            others_mutate=pbt.exploit == "top-middle-bottom",
        ),
        explore=Perturb(tuned, pbt.mutation_rate, pbt.perturb_min, pbt.perturb_max),
    )


def defaults(table: Mapping[str, HyperSpec]) -> Values:
    """Name -> default of every value of the table."""
    return {name: spec.default for name, spec in table.items()}


def tuned_specs(table: Mapping[str, HyperSpec], tune: Sequence[str]) -> dict[str, HyperSpec]:
    """Specs of the values to tune, in the table's order: those named, or those tuned by default.

    Raises ConfigError for a name that is not in the table; the message holds close matches and all names.
    """
    for name in tune:
        if name not in table:
            close = difflib.get_close_matches(name, table, n=3)
            hint = f"did you mean {' or '.join(close)}? " if close else ""
            raise ConfigError(
                f"--pbt.tune {name} cannot be used: {hint}known names are {', '.join(sorted(table))}"
            )
    return {name: spec for name, spec in table.items() if (name in tune if tune else spec.tuned)}
