"""User-defined exploit rules, explore rules, explore functions, and controllers (docs/reference/rules.md).

    exploit rule   dataclass with `select`, or a function (members, rng) -> {member: donor}
    explore rule   dataclass; its first field receives the specs of the tuned values
    controller     dataclass; its first two fields receive the table of values and a seed

The classes are checked at the start of a run. During the run, each result of their methods is checked. Errors contain
the option and the name of the class or function.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from pbt_rl.controllers.entry import ControllerContext, ControllerEntry, OptionGroups, ten_periods
from pbt_rl.controllers.exploit import Deciding, Members, Remembering, Selection, decides
from pbt_rl.controllers.explore import Explore, Learning, Pairing, Resampling, changed_copy, mutated
from pbt_rl.controllers.hypers import HyperSpec, Values
from pbt_rl.controllers.settings import check_signature, load, load_rule, named
from pbt_rl.controllers.state import encoded, restore_state, save_state
from pbt_rl.errors import ConfigError, require


@dataclass(eq=False)
class _Own:
    """Base of wrappers that check user code.

    who: "--option module:Class", for errors. made: object of the user's class.
    """

    who: str
    made: Any

    def __post_init__(self) -> None:
        self._check_state()

    def _call(self, method: str, *arguments: object) -> Any:
        with named(self.who, method):
            answer = getattr(self.made, method)(*arguments)
        if not isinstance(answer, list) or answer:  # without a decision, the state must not change
            self._check_state()
        return answer

    def _check_state(self) -> None:
        """Raise ConfigError if the state of the user's object cannot be saved, or if a resume could not restore it."""
        try:
            restore_state(copy.deepcopy(self.made), save_state(self.made))
        except (TypeError, ValueError) as error:
            remedy = "annotate each field of the state with the type of its values, such as `float | None`"
            raise ConfigError(f"{self.who} has a state that cannot be restored: {error}: {remedy}") from None

    def _wrong(self, method: str, returned: str) -> ConfigError:
        return ConfigError(f"{self.who}: {method} returned {returned}")

    def _check_donor(
        self, method: str, source: tuple[int, int | None], there: Collection[int], kept: Collection[StateKey]
    ) -> None:
        """Raise ConfigError for an invalid donor.

        source: (donor, generation of its remembered state). The generation is None for the donor's present state.
        there: ids of the possible donors. kept: keys of the remembered states.
        """
        if source[0] not in there:
            raise self._wrong(method, f"the donor {source[0]!r}: give one of {sorted(there)}")
        if source[1] is not None and source not in kept:
            raise self._wrong(method, f"the donor {source}: {_known(kept)}")

    def remembers(self) -> frozenset[StateKey]:
        """Return the keys (member, generation) of the states that the user's object remembers.

        Raises ConfigError for a wrong result. An object without the method `remembers` remembers no states.
        """
        with named(self.who, "remembers"):
            keys = self.made.remembers() if isinstance(self.made, Remembering) else frozenset()
            kept: frozenset[StateKey] = _fits(keys, frozenset[StateKey])
        return kept


def _copies(members: Members) -> tuple[MemberReport, ...]:
    """Copy reports for user code, which may change their values."""
    return tuple(replace(m, values=copy.copy(m.values)) for m in members)


def _fits(answer: object, kind: Any) -> Any:
    """Convert a result of user code to a type. NumPy numbers are accepted.

    Raises TypeError or ValidationError if the result does not fit the type.
    """
    return msgspec.convert(encoded(answer), kind, strict=False)


def _known(kept: Collection[StateKey]) -> str:
    known = ", ".join(map(str, sorted(kept))) or "none"
    return f"remembered states (member, generation): {known}; `remembers` may add present generations"


def _numbers(who: str, answer: object, names: Collection[str]) -> Values:
    """Convert a result of user code to name -> number.

    who: option and method, for the error. names: required names.
    Raises ConfigError for a result with other names, or with a value that is NaN or not a number.
    """
    if not isinstance(answer, Mapping) or answer.keys() != set(names):
        raise ConfigError(f"{who} returned {answer!r:.200}: give a value for each of {list(names)}")
    for name in names:
        if isinstance(answer[name], str | bytes):
            raise ConfigError(f"{who} returned {answer[name]!r:.100} for {name}: give a number")
    try:
        numbers = {name: float(answer[name]) for name in names}
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigError(f"{who} returned a value that is not a number: {error}") from None
    if broken := [name for name, value in numbers.items() if math.isnan(value)]:
        raise ConfigError(f"{who} returned NaN for {', '.join(broken)}")
    return numbers


# -- exploit ------------------------------------------------------------------------------------------------


def own_exploit(path: str, settings: Sequence[str]) -> OwnExploit:
    """Load the rule `module:Class` or `module:function`, and try it on example members.

    settings: NAME=VALUE entries. Raises ConfigError for a rule or setting that cannot be used.
    """
    who, made = f"--pbt.exploit {path}", load(path, "pbt.exploit")
    if inspect.isfunction(made):
        check_signature(who, made, 2)
        require(
            not settings,
            "pbt.exploit-option",
            " ".join(settings)[:200],
            "a function has no settings: leave out --pbt.exploit-option",
        )
        return checked_exploit(path, OwnDonors(path, made))
    require(isinstance(made, type), "pbt.exploit", path, "give a function or a dataclass")
    return checked_exploit(path, load_rule(path, "pbt.exploit", (), {"select": 3}, settings))


def checked_exploit(name: str, made: Any) -> OwnExploit:
    """Wrap a rule of a user or of another package, and try it on example members.

    name: value of --pbt.exploit. made: the rule. Raises ConfigError for a rule that cannot be used.
    """
    rule = OwnExploit(f"--pbt.exploit {name}", made)
    members = tuple(MemberReport(i, 1000, (float(i), i + 1.0), 2, 0, _AnyValues()) for i in range(10))
    copy.deepcopy(rule).select(members, Random(0))
    return rule


class _AnyValues(dict[str, float]):
    """Values of example members: every name has the value 1.0."""

    def __missing__(self, name: str) -> float:
        return 1.0


@dataclass(frozen=True)
class OwnDonors:
    """Exploit rule that calls a user-defined function (members, rng) -> {member: donor}.

    A member whose donor is another member copies this donor and mutates. All other members stay unchanged.
    path: `module:function`. Decisions name it in their reason.
    """

    path: str
    function: Callable[[Sequence[MemberReport], Random], Mapping[int, int]]

    def select(self, members: Members, rng: Random, deciding: Deciding = None) -> list[Selection]:
        """Return one selection for each member in `deciding` (None: all members), in the order of `members`.

        Raises TypeError for a wrong result of the function.
        """
        donors = self.function(members, rng)
        there = {m.member for m in members}
        if not isinstance(donors, Mapping) or not donors.keys() <= there:
            raise TypeError(
                f"it returned {donors!r:.200}: return {{member: donor}} for members of {sorted(there)}"
            )
        copies = {member: donor for member, donor in donors.items() if member != donor}
        return [
            Selection(m, copies[m], mutate=True, reason=f"copies member {copies[m]} ({self.path})")
            if m in copies
            else Selection(m, None, mutate=False, reason=f"unchanged ({self.path})")
            for m in (one.member for one in members)
            if decides(m, deciding)
        ]


@dataclass(eq=False)
class OwnExploit(_Own):
    """User-defined exploit rule with checked results."""

    def select(self, members: Members, rng: Random, deciding: Deciding = None) -> list[Selection]:
        """Return the selections of the user's rule. Raises ConfigError for a wrong result."""
        kept, there = self.remembers(), {m.member: m.values for m in members}
        verdicts = self._call("select", _copies(members), rng, deciding)
        wanted = [m for m in there if decides(m, deciding)]
        if not isinstance(verdicts, list | tuple) or [getattr(v, "member", v) for v in verdicts] != wanted:
            raise self._wrong(
                "select", f"{verdicts!r:.200}: return one Selection for each of {wanted}, in this order"
            )
        with named(self.who, "select"):
            selections: list[Selection] = [_fits(vars(verdict), Selection) for verdict in verdicts]
        for verdict in selections:
            if verdict.donor is not None:
                self._check_donor("select", (verdict.donor, verdict.donor_generation), there, kept)
            names = there[verdict.member].keys()  # empty for example members
            if verdict.base is not None and names and verdict.base.keys() != names:
                raise self._wrong(
                    "select", f"base with {list(verdict.base)}: give a value for each of {list(names)}"
                )
        return selections


# -- explore ------------------------------------------------------------------------------------------------


def own_explore(path: str, table: Mapping[str, HyperSpec], settings: Sequence[str]) -> OwnExplore:
    """Load and check the rule `module:Class`. Raises ConfigError for a rule or setting that cannot be used.

    table: specs of all values of a member. settings: NAME=VALUE entries.
    """
    tuned = {name: spec for name, spec in table.items() if spec.tuned}
    methods = {"initial": 2, "mutate": 2}
    return checked_explore(path, load_rule(path, "pbt.explore", (tuned,), methods, settings), table)


def checked_explore(name: str, made: Any, table: Mapping[str, HyperSpec]) -> OwnExplore:
    """Wrap a rule of a user or of another package, and try it on the default values.

    name: value of --pbt.explore. made: the rule. table: specs of all values of a member.
    Raises ConfigError for a rule that cannot be used. A rule that implements `Learning` is not tried, because `mutate`
    may require a comparison first. Of a rule that implements `Pairing`, only the signature of `learn` is checked.
    """
    who = f"--pbt.explore {name}"
    if isinstance(made, Pairing):
        check_signature(who, made.learn, 4, "learn")
        return OwnPairing(who, made, table)
    rule = OwnExplore(who, made, table)
    if not isinstance(made, Learning):
        copy.deepcopy(rule).mutate({name: spec.default for name, spec in table.items()}, Random(0))
    return rule


@dataclass(eq=False)
class OwnExplore(_Own):
    """User-defined explore rule with checked results. Changed values are clipped (`HyperSpec.hold`).

    table: specs of all values of a member.
    """

    table: Mapping[str, HyperSpec]

    def initial(self, values: Values, rng: Random) -> Values:
        """Return the result of the user's `initial`, clipped. Raises ConfigError for a wrong result."""
        return self._held("initial", values, dict(values), rng)

    def mutate(self, values: Values, rng: Random) -> Values:
        """Return the result of the user's `mutate`, clipped. Raises ConfigError for a wrong result."""
        return self._held("mutate", values, dict(values), rng)

    def perturb(self, values: Values, rng: Random) -> Values:
        """Return the result of the user's `perturb`, or of `mutate` if `perturb` does not exist.

        Raises ConfigError if the user's code fails, or returns no such values.
        """
        method = "perturb" if isinstance(self.made, Resampling) else "mutate"
        return self._held(method, values, dict(values), rng)

    def before(self, members: Sequence[MemberReport]) -> None:
        """Call the user's `before` if the rule implements `Learning`. Raises ConfigError if the user's code fails."""
        if isinstance(self.made, Learning):
            self._call("before", _copies(members))

    def after(self, members: Sequence[MemberReport], changes: Sequence[Change]) -> None:
        """Call the user's `after` if the rule implements `Learning`. Raises ConfigError if the user's code fails."""
        if isinstance(self.made, Learning):
            self._call("after", _copies(members), changes)

    def _held(self, method: str, values: Values, *arguments: object) -> Values:
        """Call a method, and clip the values that the method changed."""
        answer = self._call(method, *arguments)
        moved = _numbers(f"{self.who}: {method}", answer, values)
        stay = {name: value for name, value in values.items() if moved[name] == value}
        return _hold(moved, self.table) | stay


@dataclass(eq=False)
class OwnPairing(OwnExplore):
    """User-defined explore rule that implements `Pairing`."""

    def learn(self, member: int, own: Values, better: Values, rng: Random) -> Values:
        """Return the result of the user's `learn`, clipped. Raises ConfigError for a wrong result."""
        return self._held("learn", better, member, dict(own), dict(better), rng)


def _hold(values: Values, table: Mapping[str, HyperSpec]) -> Values:
    return {name: table[name].hold(value) if name in table else value for name, value in values.items()}


def with_function(rule: Explore, path: str, explore: str, table: Mapping[str, HyperSpec]) -> CustomExplore:
    """Return an explore rule that calls `rule`, and then the user's function.

    path: `module:function`. explore: name of `rule`. table: specs of all values of a member.
    Raises ConfigError if `rule` implements `Pairing`, or if the function fails on the default values.
    """
    remedy = f"--pbt.explore {explore} combines the values of two members: leave out --pbt.custom-explore"
    require(not isinstance(rule, Pairing), "pbt.custom-explore", path, remedy)
    function = load(path, "pbt.custom-explore")
    check_signature(f"--pbt.custom-explore {path}", function, 2)
    CustomExplore(function, table).mutate({name: spec.default for name, spec in table.items()}, Random(0))
    return CustomExplore(function, table, rule)


@dataclass(frozen=True)
class CustomExplore:
    """Explore rule that calls a user-defined `function(values, rng)`, which returns new values.

    behind: explore rule that runs first. None: no rule.
    table: specs that clip the new values (`HyperSpec.hold`). Values without a spec are not clipped.
    If the function does not draw all random numbers from `rng`, an audit may find mismatches.
    Raises ConfigError for a result with other names, or with a value that is NaN or not a number.
    """

    function: Callable[[Values, Random], Values]
    table: Mapping[str, HyperSpec] = field(default_factory=dict)
    behind: Explore | None = None

    def initial(self, values: Values, rng: Random) -> Values:
        """Return the start values of the explore rule `behind`. The function does not change start values."""
        return dict(values) if self.behind is None else self.behind.initial(values, rng)

    def before(self, members: Sequence[MemberReport]) -> None:
        """Call `before` of the explore rule if the rule implements `Learning`."""
        if isinstance(self.behind, Learning):
            self.behind.before(members)

    def after(self, members: Sequence[MemberReport], changes: Sequence[Change]) -> None:
        """Call `after` of the explore rule if the rule implements `Learning`."""
        if isinstance(self.behind, Learning):
            self.behind.after(members, changes)

    def mutate(self, values: Values, rng: Random) -> Values:
        """Return the function's result for the values that the explore rule mutated."""
        return self._called(values if self.behind is None else changed_copy(self.behind, values, rng), rng)

    def perturb(self, values: Values, rng: Random) -> Values:
        """Return the function's result for the values that the explore rule perturbed."""
        return self._called(values if self.behind is None else mutated(self.behind, values, rng), rng)

    def _called(self, values: Values, rng: Random) -> Values:
        who = f"--pbt.custom-explore {getattr(self.function, '__name__', self.function)}"
        with named(who):
            answer = self.function(dict(values), rng)
        return _hold(_numbers(who, answer, values), self.table)


# -- controllers --------------------------------------------------------------------------------------------


def own_controller(path: str) -> ControllerEntry:
    """Load the controller `module:Class`, and return its registry entry.

    Raises ConfigError if the class cannot be loaded.
    A class with the attribute `searches = True` is a search (`ControllerEntry.searches`).
    """
    searches = bool(getattr(load(path, "controller"), "searches", False))

    def build(given: ControllerContext) -> Controller:
        methods = {"initial": 1, "observe": 1, "remembers": 0}
        made = load_rule(path, "controller", (given.table, given.seed), methods, given.settings)
        return OwnController(f"--controller {path}", made, given.table)

    timeout = _fifth_of_budget if searches else ten_periods
    return ControllerEntry(build, (), searches=searches, timeout_frames=timeout)


def _fifth_of_budget(_options: OptionGroups, budget_frames: int) -> int:
    """Return `ControllerEntry.timeout_frames` of a user-defined search: a fifth of the budget (two of ten phases)."""
    return 2 * max(1, budget_frames // 10)


@dataclass(eq=False)
class OwnController(_Own):
    """User-defined controller with checked results. Values are clipped to the legal range."""

    table: Mapping[str, HyperSpec]

    def initial(self, num_members: int) -> list[Values]:
        """Return the start values of the user's controller. Raises ConfigError for a wrong result."""
        values = self._call("initial", num_members)
        if not isinstance(values, list | tuple) or len(values) != num_members:
            raise self._wrong("initial", f"{values!r:.100}: return a list of {num_members} dicts of values")
        return [self._legal("initial", one) for one in values]

    def observe(self, report: PopulationReport) -> list[Decision]:
        """Return the decisions of the user's controller. Raises ConfigError for a wrong result."""
        kept, present = self.remembers(), {m.member: m.generation for m in report.members}
        decisions = self._call("observe", replace(report, members=_copies(report.members)))
        if not isinstance(decisions, list | tuple) or not all(isinstance(d, Decision) for d in decisions):
            raise self._wrong(
                "observe", f"{decisions!r:.100}: return a list of decisions (pbt_rl.controllers.decisions)"
            )
        decided = [decision.member for decision in decisions]
        if len(set(decided)) != len(decided) or not set(decided) <= present.keys():
            raise self._wrong(
                "observe", f"decisions on {decided}: return at most one for each of {sorted(present)}"
            )
        if decisions and (strange := self.remembers() - kept - {*present.items()}):
            raise self._wrong("remembers", f"{sorted(strange)}: {_known(kept)}")
        return [self._checked(decision, present, kept) for decision in decisions]

    def _checked(self, decision: Decision, there: Collection[int], kept: Collection[StateKey]) -> Decision:
        values, source = values_of(decision), donor_of(decision)
        if values is not None:
            decision = msgspec.structs.replace(decision, values=self._legal("observe", values))
        with named(self.who, "observe"):
            checked: Decision = _fits(decision_to_dict(decision), Decision)
        if source is not None:
            self._check_donor("observe", source, there, kept)
        return checked

    def _legal(self, method: str, answer: object) -> Values:
        numbers = _numbers(f"{self.who}: {method}", answer, self.table)
        return {name: spec.clamp_legal(numbers[name]) for name, spec in self.table.items()}
