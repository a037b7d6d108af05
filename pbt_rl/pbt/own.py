"""Controllers and exploit rules that a user wrote: checked when a run starts, and errors that name them later.

The contract is in docs/own-rules.md. A controller is a dataclass whose first two fields receive the table of values
and a seed. An exploit rule is a dataclass with `select`, or a function (members, rng) -> {member: donor}.
"""

from __future__ import annotations

import copy
import inspect
import math
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePath
from random import Random
from typing import Any, get_args

from msgspec import structs

from pbt_rl.errors import ConfigError
from pbt_rl.pbt.decisions import (
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
from pbt_rl.pbt.exploit import Exploit, Selection, decides
from pbt_rl.pbt.hypers import HyperSpec, Values
from pbt_rl.pbt.settings import load, load_rule


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
                "observe", f"{_kind(decisions)}, not a list of decisions (pbt_rl.pbt.decisions)"
            )
        there = {member.member for member in report.members}
        decided = [decision.member for decision in decisions]
        if len(set(decided)) != len(decided) or not set(decided) <= there:
            raise self._wrong("observe", f"decisions on {decided}: one at most for each of {sorted(there)}")
        if not decisions:
            return []
        possible = kept | {(m.member, m.generation) for m in report.members}
        if strange := self.remembers() - possible:
            raise self._wrong("remembers", f"{sorted(strange)}: {_not_kept(kept)}")
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
        whose, what, pair = f"a Replace of {record['member']}", record["copy"], record["shrink_perturb"]
        if what not in get_args(CopyWhat):
            raise self._wrong("observe", f"{whose} with copy {what!r}: give weights, hypers or both")
        if pair is not None and not (
            isinstance(pair, tuple | list) and len(pair) == 2 and all(map(_is_finite, pair))
        ):
            raise self._wrong("observe", f"{whose} with shrink_perturb {pair!r}: give two finite numbers")
        if pair is not None and what == "hypers":
            raise self._wrong(
                "observe",
                f"{whose} with copy 'hypers', which copies no weights, and shrink_perturb, which shrinks those that "
                "are copied: leave one out, or give the member itself as donor and copy 'both' to shrink its own",
            )
        source = record["donor"], record["donor_generation"]
        if source[1] is not None and source not in kept:
            raise self._wrong("observe", f"{whose} from {source}: {_not_kept(kept)}")

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


# -- exploit rules ------------------------------------------------------------------------------------------

Donors = Callable[[Sequence[MemberReport], Random], Mapping[int, int]]


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
            problem = f"the donor {given} of generation {verdict.donor_generation}: {_not_kept(kept)}"
        elif verdict.base is not None and names is not None and verdict.base.keys() != names:
            problem = f"base with {list(verdict.base)}: give a value for each of {list(names)}"
        if problem:
            raise ConfigError(f"--pbt.exploit {self.path}: select returned for {verdict.member} {problem}")

    def remembers(self) -> frozenset[StateKey]:
        """See `Remembering`; nothing if the rule does not remember."""
        remembers = getattr(self.rule, "remembers", None)
        keys: frozenset[StateKey] = frozenset() if remembers is None else remembers()
        return keys


# -- errors ---------------------------------------------------------------------------------------------------


def check_signature(who: str, made: object, method: str, arguments: int) -> None:
    """Raise ConfigError unless a method (or, if "", the object itself) takes so many arguments by position."""
    called: Any = getattr(made, method) if method else made
    try:
        inspect.signature(called).bind(*range(arguments))
    except TypeError as error:
        call = f"{method or 'it'} is called with {arguments} argument{'s' * (arguments != 1)}"
        raise ConfigError(f"{who} cannot be used: {call}: {error}") from None


@contextmanager
def named(who: str, method: str) -> Iterator[None]:
    """Raise ConfigError in one line, with the place, for whatever the user's code raises inside."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        text = str(error).splitlines()
        place = f"{PurePath(last.filename).name}, line {last.lineno}"
        raise ConfigError(
            f"{who} raised {type(error).__name__} ({place}){f' in {method}' if method else ''}: "
            f"{text[0] if text else 'nothing said'}"
        ) from error


def _not_kept(kept: Collection[StateKey]) -> str:
    known = ", ".join(map(str, sorted(kept))) or "none"
    return f"states that are kept (member, generation): {known}; `remembers` names present ones to keep from now on"


def _is_state_key(key: object) -> bool:
    return isinstance(key, tuple) and len(key) == 2 and all(isinstance(part, int) for part in key)


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _kind(value: object) -> str:
    return f"{type(value).__name__} {value!r:.100}"
