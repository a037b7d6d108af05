"""Controllers that a user wrote: checked when a run starts, and errors that name them later.

The contract is in docs/reference/rules.md. A controller is a dataclass whose first two fields receive the table of
values and a seed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from msgspec import structs

from pbt_rl.controllers.decisions import (
    Controller,
    CopyWhat,
    Decision,
    PopulationReport,
    StateKey,
    decision_to_dict,
    donor_of,
    values_of,
)
from pbt_rl.controllers.entry import ControllerEntry, OptionGroups, ten_periods
from pbt_rl.controllers.hypers import HyperSpec, Values
from pbt_rl.controllers.own.checks import check_signature, load, named, not_kept
from pbt_rl.controllers.own.settings import load_rule
from pbt_rl.errors import ConfigError

PHASES = 10
"""Of a search, for the patience with long episodes: two of them."""


def own_controller(path: str) -> ControllerEntry:
    """Return how the controller `module:Class`, which is imported for that, is built. Raises ConfigError."""
    searches = is_search(path)
    return ControllerEntry(
        lambda given: build_own_controller(path, given.table, given.seed, given.settings),
        (),
        searches=searches,
        patience_frames=_two_tenths if searches else ten_periods,
    )


def _two_tenths(_options: OptionGroups, budget_frames: int) -> int:
    return 2 * max(1, budget_frames // PHASES)


def build_own_controller(
    path: str, table: Mapping[str, HyperSpec], seed: int, settings: Sequence[str]
) -> Controller:
    """Return the controller `module:Class`, checked. settings: NAME=VALUE each. Raises ConfigError."""
    options = "controller", "controller-option"
    methods = {"initial": 1, "observe": 1, "remembers": 0}
    with named(f"--controller {path}", "made"):
        made: Controller = load_rule(path, (table, seed), tuple(methods), settings, options)
    for method, arguments in methods.items():
        check_signature(f"--controller {path}", made, method, arguments)
    return OwnController(path, made, table)


def is_search(path: str) -> bool:
    """Whether the class of one's own says that it decides how far each member trains: `searches = True`."""
    return bool(getattr(load(path, "controller"), "searches", False))


@dataclass(eq=False)
class OwnController:
    """A controller of the user's own, each answer of which is checked. Values are held to what is legal."""

    path: str
    controller: Controller
    table: Mapping[str, HyperSpec]

    def initial(self, num_members: int) -> list[Values]:
        """See `Controller`. Raises ConfigError."""
        with self._named("initial"):
            values = self.controller.initial(num_members)
        if not isinstance(values, list | tuple) or len(values) != num_members:
            raise self._wrong("initial", f"{_kind(values)}, not a list of {num_members} dicts of values")
        return [self._held(one, "initial", f"member {i}") for i, one in enumerate(values)]

    def observe(self, report: PopulationReport) -> list[Decision]:
        """See `Controller`. Raises ConfigError."""
        kept = self.remembers()
        with self._named("observe"):
            decisions = self.controller.observe(report)
        if not isinstance(decisions, list | tuple) or not all(isinstance(d, Decision) for d in decisions):
            raise self._wrong(
                "observe", f"{_kind(decisions)}, not a list of decisions (pbt_rl.controllers.decisions)"
            )
        there = {member.member for member in report.members}
        decided = [decision.member for decision in decisions]
        if len(set(decided)) != len(decided) or not set(decided) <= there:
            raise self._wrong("observe", f"decisions on {decided}: one at most for each of {sorted(there)}")
        if not decisions:
            return []
        possible = kept | {(m.member, m.generation) for m in report.members}
        if strange := self.remembers() - possible:
            raise self._wrong("remembers", f"{sorted(strange)}: {not_kept(kept)}")
        return [self._checked(decision, there, kept) for decision in decisions]

    def remembers(self) -> frozenset[StateKey]:
        """See `Controller`. Raises ConfigError."""
        with self._named("remembers"):
            keys: Any = self.controller.remembers()
        if not isinstance(keys, frozenset | set) or not all(map(_is_state_key, keys)):
            raise self._wrong("remembers", f"{_kind(keys)}, not a frozenset of (member, generation)")
        return frozenset(keys)

    def _checked(self, decision: Decision, there: Collection[int], kept: Collection[StateKey]) -> Decision:
        donor, values, record = donor_of(decision), values_of(decision), decision_to_dict(decision)
        if donor is not None and donor[0] not in there:
            raise self._wrong("observe", f"the donor {donor[0]!r}: give one of {sorted(there)}")
        if donor is not None:
            self._check_copy(record, kept)
        if not isinstance(record["reason"], str):
            raise self._wrong("observe", f"a decision on {decision.member} whose reason is no text")
        if values is None:
            return decision
        return structs.replace(decision, values=self._held(values, "observe", f"member {decision.member}"))

    def _check_copy(self, record: Mapping[str, Any], kept: Collection[StateKey]) -> None:
        """Check the record of a decision that has a donor. Raises ConfigError."""
        whose, what = f"a Replace of {record['member']}", record["copy"]
        if what not in get_args(CopyWhat):
            raise self._wrong("observe", f"{whose} with copy {what!r}: give weights, hypers or both")
        source = record["donor"], record["donor_generation"]
        if source[1] is not None and source not in kept:
            raise self._wrong("observe", f"{whose} from {source}: {not_kept(kept)}")

    def _held(self, values: Any, method: str, whose: str) -> Values:
        if not isinstance(values, Mapping) or values.keys() != self.table.keys():
            names = list(values) if isinstance(values, Mapping) else _kind(values)
            raise self._wrong(
                method, f"values of {whose} for {names}: give one for each of {list(self.table)}"
            )
        try:
            return {name: spec.clamp_legal(float(values[name])) for name, spec in self.table.items()}
        except (TypeError, ValueError) as error:
            raise self._wrong(method, f"a value of {whose} that is no number: {error}") from None

    def _named(self, method: str) -> Any:
        return named(f"--controller {self.path}", method)

    def _wrong(self, method: str, returned: str) -> ConfigError:
        return ConfigError(f"--controller {self.path}: {method} returned {returned}")


def _is_state_key(key: object) -> bool:
    return isinstance(key, tuple) and len(key) == 2 and all(isinstance(part, int) for part in key)


def _kind(value: object) -> str:
    return f"{type(value).__name__} {value!r:.100}"
