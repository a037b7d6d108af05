"""What a user wrote: exploit and explore rules, a function that changes values last, controllers.

The contract is in docs/reference/rules.md. An exploit rule is a dataclass with `select`, or a function (members, rng)
-> {member: donor}. An explore rule is a dataclass whose first field receives the specs of the tuned values. A
controller is a dataclass whose first two fields receive the table of values and a seed. All are
checked when a run starts, and named by errors later.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, get_args

from msgspec import structs

from pbt_rl.controllers.changes import Change
from pbt_rl.controllers.decisions import (
    Controller,
    CopyWhat,
    Decision,
    MemberReport,
    PopulationReport,
    StateKey,
    decision_to_dict,
    donor_of,
    values_of,
)
from pbt_rl.controllers.entry import ControllerEntry, OptionGroups, ten_periods
from pbt_rl.controllers.exploit import Exploit, ExploitRule, Selection, decides
from pbt_rl.controllers.explore import Explore, ExploreRule, Learning, Pairing, Specs
from pbt_rl.controllers.hypers import HyperSpec, Values
from pbt_rl.controllers.options import PbtConfig
from pbt_rl.controllers.settings import check_signature, load, load_rule, named, not_kept, with_settings
from pbt_rl.errors import ConfigError, require

Donors = Callable[[Sequence[MemberReport], Random], Mapping[int, int]]


def own_exploit(path: str) -> ExploitRule:
    """Return how the rule `module:Class` or `module:function` is built."""
    return ExploitRule(lambda pbt: build_own_exploit(path, pbt.exploit_option))


def own_explore(path: str) -> ExploreRule:
    """Return how the rule `module:Class` is built."""
    return ExploreRule(lambda pbt, table: build_own_explore(path, table, pbt.explore_option))


def refine_exploit(rule: Exploit, pbt: PbtConfig) -> Exploit:
    """Return a rule with the settings that the user gave. Raises ConfigError."""
    if ":" in pbt.exploit:  # it was built with them
        return rule
    return with_settings(rule, pbt.exploit_option, "pbt.exploit-option")


def refine_explore(rule: Explore, pbt: PbtConfig, table: Specs) -> Explore:
    """Return a rule with the settings that the user gave, and the user's function behind it. Raises ConfigError."""
    if ":" not in pbt.explore:
        rule = with_settings(rule, pbt.explore_option, "pbt.explore-option")
    path = pbt.custom_explore
    if not path:
        return rule
    require(
        not isinstance(rule, Pairing),
        "pbt.custom-explore",
        path,
        f"leave it out: --pbt.explore {pbt.explore} makes the values from two members",
    )
    function = load(path, "pbt.custom-explore")
    require(callable(function), "pbt.custom-explore", path, "give a function of (values, rng)")
    check_signature(f"--pbt.custom-explore {path}", function, "", 2)
    defaults = {name: spec.default for name, spec in table.items()}
    CustomExplore(function, table).mutate(defaults, Random(0))  # a trial
    return CustomExplore(function, table, rule)


def build_own_exploit(path: str, settings: Sequence[str]) -> Exploit:
    """Return the rule `module:Class` or `module:function`, tried on made-up members. Raises ConfigError."""
    found, options = load(path, "pbt.exploit"), ("pbt.exploit", "pbt.exploit-option")
    if inspect.isfunction(found):
        check_signature(f"--pbt.exploit {path}", found, "", 2)
        if settings:
            raise ConfigError(
                f"--pbt.exploit-option {settings[0]:.200} cannot be used: a function has no settings"
            )
        rule: Exploit = OwnDonors(path, found)
    else:
        with named(f"--pbt.exploit {path}", "made"):
            made: Exploit = load_rule(path, (), ("select",), settings, options)
        check_signature(f"--pbt.exploit {path}", made, "select", 3)
        rule = OwnExploit(path, made)
    members = tuple(MemberReport(i, 1000, (float(i), i + 1.0), 2, 0, _AnyValues()) for i in range(10))
    copy.deepcopy(rule).select(members, Random(0))
    return rule


class _AnyValues(dict[str, float]):
    """Values of any name, for members that are made up."""

    def __missing__(self, name: str) -> float:
        return 1.0


@dataclass(frozen=True)
class OwnDonors:
    """A function of the user's own: (members, rng) -> {member: donor}. Those members copy and mutate; others stay."""

    path: str
    function: Donors

    def select(
        self, members: Sequence[MemberReport], rng: Random, deciding: Collection[int] | None = None
    ) -> list[Selection]:
        """See `Exploit`. Raises ConfigError."""
        with named(f"--pbt.exploit {self.path}", ""):
            donors = self.function(members, rng)
        there = {m.member for m in members}
        usable = isinstance(donors, Mapping) and all(a in there and b in there for a, b in donors.items())
        if not usable:
            raise ConfigError(
                f"--pbt.exploit {self.path} returned {donors!r:.200}: return {{member: donor}}, each one of "
                f"{sorted(there)}"
            )
        return [
            Selection(
                m.member, donors[m.member], mutate=True, reason=f"copies {donors[m.member]} ({self.path})"
            )
            if donors.get(m.member, m.member) != m.member
            else Selection(m.member, None, mutate=False, reason=f"stays ({self.path})")
            for m in members
            if decides(m.member, deciding)
        ]


@dataclass
class OwnExploit:
    """A rule of the user's own, whose verdicts are checked."""

    path: str
    rule: Exploit

    def select(
        self, members: Sequence[MemberReport], rng: Random, deciding: Collection[int] | None = None
    ) -> list[Selection]:
        """See `Exploit`. Raises ConfigError."""
        kept = self.remembers()
        with named(f"--pbt.exploit {self.path}", "select"):
            verdicts = self.rule.select(members, rng, deciding)
        usable = isinstance(verdicts, list | tuple) and all(isinstance(v, Selection) for v in verdicts)
        wanted = [m.member for m in members if decides(m.member, deciding)]
        if not usable or [v.member for v in verdicts] != wanted:
            raise ConfigError(
                f"--pbt.exploit {self.path}: select returned {verdicts!r:.200}: return one Selection for each of "
                f"{wanted}, in this order"
            )
        there = {m.member for m in members}
        strange = [v.donor for v in verdicts if v.donor is not None and v.donor not in there]
        if strange:
            raise ConfigError(
                f"--pbt.exploit {self.path}: select returned the donor {strange[0]!r}: give one of {sorted(there)}"
            )
        for verdict in verdicts:
            self._check(verdict, members, kept)
        return list(verdicts)

    def _check(self, verdict: Selection, members: Sequence[MemberReport], kept: Collection[StateKey]) -> None:
        given, problem = verdict.donor, ""
        names = next((m.values.keys() for m in members if m.values), None)  # made-up members have none
        if verdict.copy not in get_args(CopyWhat):
            problem = f"copy {verdict.copy!r}: give weights, hypers or both"
        elif verdict.donor_generation is not None and (given, verdict.donor_generation) not in kept:
            problem = f"the donor {given} of generation {verdict.donor_generation}: {not_kept(kept)}"
        elif verdict.base is not None and names is not None and verdict.base.keys() != names:
            problem = f"base with {list(verdict.base)}: give a value for each of {list(names)}"
        if problem:
            raise ConfigError(f"--pbt.exploit {self.path}: select returned for {verdict.member} {problem}")

    def remembers(self) -> frozenset[StateKey]:
        """See `Remembering`; nothing if the rule does not remember."""
        remembers = getattr(self.rule, "remembers", None)
        keys: frozenset[StateKey] = frozenset() if remembers is None else remembers()
        return keys


@dataclass(frozen=True)
class CustomExplore:
    """A user's function: `function(values, rng)` returns new values.

    behind: the rule that changes them before; None if there is none. table: what the new values are held to
    (`HyperSpec.hold`); values outside of the table are taken as they are. All randomness must come from `rng`, or a run
    cannot be audited. Raises ConfigError for a result with other names or with NaN.
    """

    function: Callable[[Values, Random], Values]
    table: Mapping[str, HyperSpec] = field(default_factory=dict)
    behind: Explore | None = None

    def initial(self, values: Values, rng: Random) -> Values:
        """Leave them to the rule before."""
        return dict(values) if self.behind is None else self.behind.initial(values, rng)

    def before(self, members: Sequence[MemberReport]) -> None:
        """See `Learning`."""
        if isinstance(self.behind, Learning):
            self.behind.before(members)

    def after(self, members: Sequence[MemberReport], changes: Sequence[Change]) -> None:
        """See `Learning`."""
        if isinstance(self.behind, Learning):
            self.behind.after(members, changes)

    def mutate(self, values: Values, rng: Random) -> Values:
        """Call the function."""
        if self.behind is not None:
            values = self.behind.mutate(values, rng)
        with named(f"--pbt.custom-explore {getattr(self.function, '__name__', self.function)}", ""):
            result = self.function(dict(values), rng)
        return _held("the custom explore function returned", result, values, self.table, stay=False)


def _held(
    who: str, result: object, values: Values, table: Mapping[str, HyperSpec], *, stay: bool = True
) -> Values:
    """Return what a function of the user's own made of values, held to the table. Raises ConfigError.

    stay: a value that is not changed stays, also beyond what may be drawn.
    """
    if not isinstance(result, Mapping) or result.keys() != values.keys():
        shown = list(result) if isinstance(result, Mapping) else f"{result!r:.100}"
        raise ConfigError(f"{who} values for {shown}: give one for each of {list(values)}")
    try:
        numbers = {name: float(result[name]) for name in values}
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{who} a value that is no number: {error}") from None
    if broken := [name for name, value in numbers.items() if math.isnan(value)]:
        raise ConfigError(f"{who} NaN for {', '.join(broken)}")
    return {
        name: value if name not in table or (stay and value == values[name]) else table[name].hold(value)
        for name, value in numbers.items()
    }


def build_own_explore(path: str, table: Mapping[str, HyperSpec], settings: Sequence[str]) -> OwnExplore:
    """Return the rule `module:Class`, checked. settings: NAME=VALUE each. Raises ConfigError."""
    who, tuned = f"--pbt.explore {path}", {name: spec for name, spec in table.items() if spec.tuned}
    with named(who, "made"):
        made: Explore = load_rule(
            path, (tuned,), ("initial", "mutate"), settings, ("pbt.explore", "pbt.explore-option")
        )
    for method in ("initial", "mutate"):
        check_signature(who, made, method, 2)
    if not isinstance(made, Pairing):
        return OwnExplore(path, made, table)
    check_signature(who, made, "learn", 4)
    return OwnPairing(path, made, table)


@dataclass
class OwnExplore:
    """A rule of the user's own. What it changes is held to what the table allows (`HyperSpec.hold`)."""

    path: str
    rule: Explore
    table: Mapping[str, HyperSpec]

    def initial(self, values: Values, rng: Random) -> Values:
        """See `Explore`. Raises ConfigError."""
        return self._held("initial", values, dict(values), rng)

    def mutate(self, values: Values, rng: Random) -> Values:
        """See `Explore`. Raises ConfigError."""
        return self._held("mutate", values, dict(values), rng)

    def before(self, members: Sequence[MemberReport]) -> None:
        """See `Learning`; nothing if the rule does not learn. Raises ConfigError."""
        if isinstance(self.rule, Learning):
            self._call("before", members)

    def after(self, members: Sequence[MemberReport], changes: Sequence[Change]) -> None:
        """See `Learning`; nothing if the rule does not learn. Raises ConfigError."""
        if isinstance(self.rule, Learning):
            self._call("after", members, changes)

    def _call(self, method: str, *arguments: object) -> Any:
        with named(f"--pbt.explore {self.path}", method):
            return getattr(self.rule, method)(*arguments)

    def _held(self, method: str, values: Values, *arguments: object) -> Values:
        """Call a method; return what it makes of values, held to the table."""
        result = self._call(method, *arguments)
        return _held(f"--pbt.explore {self.path}: {method} returned", result, values, self.table)


@dataclass
class OwnPairing(OwnExplore):
    """One that makes the values of a copy from its own and its donor's."""

    def learn(self, member: int, own: Values, better: Values, rng: Random) -> Values:
        """See `Pairing`. Raises ConfigError."""
        return self._held("learn", better, member, dict(own), dict(better), rng)


# -- controllers --------------------------------------------------------------------------------------------

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
