"""Rules that a user wrote: an exploit rule, an explore rule, and a function that changes values last.

The contract is in docs/reference/rules.md. An exploit rule is a dataclass with `select`, or a function (members, rng)
-> {member: donor}. An explore rule is a dataclass whose first field receives the specs of the tuned values. All are
checked when a run starts, and named by errors later.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import get_args

from pbt_rl.controllers.changes import Change
from pbt_rl.controllers.decisions import CopyWhat, MemberReport, StateKey
from pbt_rl.controllers.exploit import Exploit, ExploitRule, Selection, decides
from pbt_rl.controllers.explore import Explore, ExploreRule, Learning, Pairing, Specs
from pbt_rl.controllers.hypers import HyperSpec, Values
from pbt_rl.controllers.options import PbtConfig
from pbt_rl.controllers.own.checks import check_signature, load, named, not_kept
from pbt_rl.controllers.own.settings import load_rule, with_settings
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
        with named(f"--pbt.explore {self.path}", "initial"):
            result = self.rule.initial(dict(values), rng)
        return _held(f"--pbt.explore {self.path}: initial returned", result, values, self.table)

    def mutate(self, values: Values, rng: Random) -> Values:
        """See `Explore`. Raises ConfigError."""
        with named(f"--pbt.explore {self.path}", "mutate"):
            result = self.rule.mutate(dict(values), rng)
        return _held(f"--pbt.explore {self.path}: mutate returned", result, values, self.table)

    def before(self, members: Sequence[MemberReport]) -> None:
        """See `Learning`; nothing if the rule does not learn. Raises ConfigError."""
        if isinstance(self.rule, Learning):
            with named(f"--pbt.explore {self.path}", "before"):
                self.rule.before(members)

    def after(self, members: Sequence[MemberReport], changes: Sequence[Change]) -> None:
        """See `Learning`; nothing if the rule does not learn. Raises ConfigError."""
        if isinstance(self.rule, Learning):
            with named(f"--pbt.explore {self.path}", "after"):
                self.rule.after(members, changes)


@dataclass
class OwnPairing(OwnExplore):
    """One that makes the values of a copy from its own and its donor's."""

    def learn(self, member: int, own: Values, better: Values, rng: Random) -> Values:
        """See `Pairing`. Raises ConfigError."""
        assert isinstance(self.rule, Pairing)
        with named(f"--pbt.explore {self.path}", "learn"):
            result = self.rule.learn(member, dict(own), dict(better), rng)
        return _held(f"--pbt.explore {self.path}: learn returned", result, better, self.table)
