"""What a user wrote: exploit and explore rules, a function that changes values last, controllers.

The contract is in docs/reference/rules.md. An exploit rule is a dataclass with `select`, or a function (members, rng)
-> {member: donor}. An explore rule is a dataclass whose first field receives the specs of the tuned values. A
controller is a dataclass whose first two fields receive the table of values and a seed. All are checked when a run
starts; later every answer is, and errors name whose it was.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import msgspec

from pbt_rl.controllers.changes import Change
from pbt_rl.controllers.decisions import (
    Controller,
    Decision,
    MemberReport,
    PopulationReport,
    StateKey,
    decision_to_dict,
    donor_of,
    values_of,
)
from pbt_rl.controllers.entry import ControllerEntry, Ingredients, OptionGroups, ten_periods
from pbt_rl.controllers.exploit import Deciding, Members, Remembering, Selection, decides
from pbt_rl.controllers.explore import Explore, Learning, Pairing, mutated
from pbt_rl.controllers.hypers import HyperSpec, Values
from pbt_rl.controllers.settings import check_signature, load, load_rule, named
from pbt_rl.controllers.state import encoded
from pbt_rl.errors import ConfigError, require


@dataclass(eq=False)
class _Own:
    """What a user wrote: it is called, and its answers are checked. who: `--option module:Class`."""

    who: str
    made: Any

    def _call(self, method: str, *arguments: object) -> Any:
        with named(self.who, method):
            return getattr(self.made, method)(*arguments)

    def _wrong(self, method: str, returned: str) -> ConfigError:
        return ConfigError(f"{self.who}: {method} returned {returned}")

    def _check_donor(
        self, method: str, source: tuple[int, int | None], there: Collection[int], kept: Collection[StateKey]
    ) -> None:
        """source: the donor, and the generation of its remembered state or None. Raises ConfigError."""
        if source[0] not in there:
            raise self._wrong(method, f"the donor {source[0]!r}: give one of {sorted(there)}")
        if source[1] is not None and source not in kept:
            raise self._wrong(method, f"the donor {source}: {_known(kept)}")

    def remembers(self) -> frozenset[StateKey]:
        """See `Controller`; nothing if a rule does not remember. Raises ConfigError."""
        with named(self.who, "remembers"):
            keys = self.made.remembers() if isinstance(self.made, Remembering) else frozenset()
            kept: frozenset[StateKey] = _fits(keys, frozenset[StateKey])
        return kept


def _fits(answer: object, kind: Any) -> Any:
    """Return an answer in the type that it has to fit; numbers of numpy are numbers. Raises ValidationError."""
    return msgspec.convert(encoded(answer), kind, strict=False)


def _known(kept: Collection[StateKey]) -> str:
    known = ", ".join(map(str, sorted(kept))) or "none"
    return f"states that are kept (member, generation): {known}; `remembers` names present ones to keep from now on"


def _numbers(who: str, answer: object, names: Collection[str]) -> Values:
    """Return an answer as numbers, one for each name. Raises ConfigError."""
    if not isinstance(answer, Mapping) or answer.keys() != set(names):
        raise ConfigError(f"{who} returned {answer!r:.200}: give a value for each of {list(names)}")
    try:
        numbers = {name: float(answer[name]) for name in names}
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{who} returned a value that is no number: {error}") from None
    if broken := [name for name, value in numbers.items() if math.isnan(value)]:
        raise ConfigError(f"{who} returned NaN for {', '.join(broken)}")
    return numbers


# -- exploit ------------------------------------------------------------------------------------------------


def own_exploit(path: str, settings: Sequence[str]) -> OwnExploit:
    """Return the rule `module:Class` or `module:function`, tried on made-up members. Raises ConfigError."""
    who, made = f"--pbt.exploit {path}", load(path, "pbt.exploit")
    if inspect.isfunction(made):
        check_signature(who, made, 2)
        require(not settings, "pbt.exploit-option", " ".join(settings)[:200], "a function has no settings")
        rule = OwnExploit(who, OwnDonors(path, made))
    else:
        rule = OwnExploit(who, load_rule(path, "pbt.exploit", (), {"select": 3}, settings))
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
    function: Callable[[Sequence[MemberReport], Random], Mapping[int, int]]

    def select(self, members: Members, rng: Random, deciding: Deciding = None) -> list[Selection]:
        """See `Exploit`. Raises TypeError."""
        donors = self.function(members, rng)
        there = {m.member for m in members}
        if not isinstance(donors, Mapping) or not donors.keys() <= there:
            raise TypeError(
                f"it returned {donors!r:.200}: return {{member: donor}}, each one of {sorted(there)}"
            )
        copies = {member: donor for member, donor in donors.items() if member != donor}
        return [
            Selection(m, copies[m], mutate=True, reason=f"copies {copies[m]} ({self.path})")
            if m in copies
            else Selection(m, None, mutate=False, reason=f"stays ({self.path})")
            for m in (one.member for one in members)
            if decides(m, deciding)
        ]


@dataclass(eq=False)
class OwnExploit(_Own):
    """A rule of the user's own, whose verdicts are checked."""

    def select(self, members: Members, rng: Random, deciding: Deciding = None) -> list[Selection]:
        """See `Exploit`. Raises ConfigError."""
        kept, there = self.remembers(), {m.member: m.values for m in members}
        verdicts = self._call("select", members, rng, deciding)
        wanted = [m for m in there if decides(m, deciding)]
        if not isinstance(verdicts, list | tuple) or [getattr(v, "member", v) for v in verdicts] != wanted:
            raise self._wrong(
                "select", f"{verdicts!r:.200}: return one Selection for each of {wanted}, in this order"
            )
        for verdict in verdicts:
            with named(self.who, "select"):
                _fits(vars(verdict), Selection)
            if verdict.donor is not None:
                self._check_donor("select", (verdict.donor, verdict.donor_generation), there, kept)
            names = there[verdict.member].keys()  # made-up members have none
            if verdict.base is not None and names and verdict.base.keys() != names:
                raise self._wrong(
                    "select", f"base with {list(verdict.base)}: give a value for each of {list(names)}"
                )
        return list(verdicts)


# -- explore ------------------------------------------------------------------------------------------------


def own_explore(path: str, table: Mapping[str, HyperSpec], settings: Sequence[str]) -> OwnExplore:
    """Return the rule `module:Class`, checked. settings: NAME=VALUE each. Raises ConfigError."""
    tuned = {name: spec for name, spec in table.items() if spec.tuned}
    methods = {"initial": 2, "mutate": 2}
    made = load_rule(path, "pbt.explore", (tuned,), methods, settings)
    who = f"--pbt.explore {path}"
    if not isinstance(made, Pairing):
        return OwnExplore(who, made, table)
    check_signature(who, made.learn, 4, "learn")
    return OwnPairing(who, made, table)


@dataclass(eq=False)
class OwnExplore(_Own):
    """A rule of the user's own. What it changes is held to what the table allows (`HyperSpec.hold`)."""

    table: Mapping[str, HyperSpec]

    def initial(self, values: Values, rng: Random) -> Values:
        """See `Explore`. Raises ConfigError."""
        return self._held("initial", values, dict(values), rng)

    def mutate(self, values: Values, rng: Random) -> Values:
        """See `Explore`. Raises ConfigError."""
        return self._held("mutate", values, dict(values), rng)

    def before(self, members: Sequence[MemberReport]) -> None:
        """See `Learning`; nothing if the rule does not learn. Raises ConfigError."""
        if isinstance(self.made, Learning):
            self._call("before", members)

    def after(self, members: Sequence[MemberReport], changes: Sequence[Change]) -> None:
        """See `Learning`; nothing if the rule does not learn. Raises ConfigError."""
        if isinstance(self.made, Learning):
            self._call("after", members, changes)

    def _held(self, method: str, values: Values, *arguments: object) -> Values:
        """Call a method; return what it makes of values. What is not changed stays, also beyond the bounds."""
        answer = self._call(method, *arguments)
        moved = _numbers(f"{self.who}: {method}", answer, values)
        stay = {name: value for name, value in values.items() if moved[name] == value}
        return _hold(moved, self.table) | stay


@dataclass(eq=False)
class OwnPairing(OwnExplore):
    """One that makes the values of a copy from its own and its donor's."""

    def learn(self, member: int, own: Values, better: Values, rng: Random) -> Values:
        """See `Pairing`. Raises ConfigError."""
        return self._held("learn", better, member, dict(own), dict(better), rng)


def _hold(values: Values, table: Mapping[str, HyperSpec]) -> Values:
    return {name: table[name].hold(value) if name in table else value for name, value in values.items()}


def with_function(rule: Explore, path: str, explore: str, table: Mapping[str, HyperSpec]) -> CustomExplore:
    """Return a rule with the user's function `module:function` behind it, tried on the defaults.

    explore: the rule's name. Raises ConfigError.
    """
    remedy = f"leave it out: --pbt.explore {explore} makes the values from two members"
    require(not isinstance(rule, Pairing), "pbt.custom-explore", path, remedy)
    function = load(path, "pbt.custom-explore")
    check_signature(f"--pbt.custom-explore {path}", function, 2)
    CustomExplore(function, table).mutate({name: spec.default for name, spec in table.items()}, Random(0))
    return CustomExplore(function, table, rule)


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
        return self._called(values if self.behind is None else self.behind.mutate(values, rng), rng)

    def perturb(self, values: Values, rng: Random) -> Values:
        """Call the function, after a rule that draws nothing anew (see `Resampling`)."""
        return self._called(values if self.behind is None else mutated(self.behind, values, rng), rng)

    def _called(self, values: Values, rng: Random) -> Values:
        who = f"--pbt.custom-explore {getattr(self.function, '__name__', self.function)}"
        with named(who):
            answer = self.function(dict(values), rng)
        return _hold(_numbers(who, answer, values), self.table)


# -- controllers --------------------------------------------------------------------------------------------


def own_controller(path: str) -> ControllerEntry:
    """Return how the controller `module:Class`, which is imported for that, is built. Raises ConfigError.

    A class with `searches = True` decides how far each member trains.
    """
    searches = bool(getattr(load(path, "controller"), "searches", False))

    def build(given: Ingredients) -> Controller:
        methods = {"initial": 1, "observe": 1, "remembers": 0}
        made = load_rule(path, "controller", (given.table, given.seed), methods, given.settings)
        return OwnController(f"--controller {path}", made, given.table)

    patience = _fifth_of_budget if searches else ten_periods
    return ControllerEntry(build, (), searches=searches, patience_frames=patience)


def _fifth_of_budget(_options: OptionGroups, budget_frames: int) -> int:
    """Patience with long episodes: two phases, if a search has ten."""
    return 2 * max(1, budget_frames // 10)


@dataclass(eq=False)
class OwnController(_Own):
    """A controller of the user's own, each answer of which is checked. Values are held to what is legal."""

    table: Mapping[str, HyperSpec]

    def initial(self, num_members: int) -> list[Values]:
        """See `Controller`. Raises ConfigError."""
        values = self._call("initial", num_members)
        if not isinstance(values, list | tuple) or len(values) != num_members:
            raise self._wrong("initial", f"{values!r:.100}: return a list of {num_members} dicts of values")
        return [self._legal("initial", one) for one in values]

    def observe(self, report: PopulationReport) -> list[Decision]:
        """See `Controller`. Raises ConfigError."""
        kept, present = self.remembers(), {m.member: m.generation for m in report.members}
        decisions = self._call("observe", report)
        if not isinstance(decisions, list | tuple) or not all(isinstance(d, Decision) for d in decisions):
            raise self._wrong(
                "observe", f"{decisions!r:.100}: return a list of decisions (pbt_rl.controllers.decisions)"
            )
        decided = [decision.member for decision in decisions]
        if len(set(decided)) != len(decided) or not set(decided) <= present.keys():
            raise self._wrong("observe", f"decisions on {decided}: one at most for each of {sorted(present)}")
        if decisions and (strange := self.remembers() - kept - {*present.items()}):
            raise self._wrong("remembers", f"{sorted(strange)}: {_known(kept)}")
        return [self._checked(decision, present, kept) for decision in decisions]

    def _checked(self, decision: Decision, there: Collection[int], kept: Collection[StateKey]) -> Decision:
        values, source = values_of(decision), donor_of(decision)
        if values is not None:
            decision = msgspec.structs.replace(decision, values=self._legal("observe", values))
        with named(self.who, "observe"):
            _fits(decision_to_dict(decision), Decision)
        if source is not None:
            self._check_donor("observe", source, there, kept)
        return decision

    def _legal(self, method: str, answer: object) -> Values:
        numbers = _numbers(f"{self.who}: {method}", answer, self.table)
        return {name: spec.clamp_legal(numbers[name]) for name, spec in self.table.items()}
