"""An explore rule of the user's own (`--pbt.explore module:Class`): checked when a run starts, and at every answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from pbt_rl.errors import ConfigError
from pbt_rl.pbt.changes import Change
from pbt_rl.pbt.decisions import MemberReport
from pbt_rl.pbt.explore.base import Explore, Learning, Pairing
from pbt_rl.pbt.hypers import HyperSpec, Values
from pbt_rl.pbt.own import check_signature, named
from pbt_rl.pbt.settings import load_rule


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
        return self._held(result, values, "initial")

    def mutate(self, values: Values, rng: Random) -> Values:
        """See `Explore`. Raises ConfigError."""
        with named(f"--pbt.explore {self.path}", "mutate"):
            result = self.rule.mutate(dict(values), rng)
        return self._held(result, values, "mutate")

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

    def _held(self, result: object, values: Values, method: str) -> Values:
        who = f"--pbt.explore {self.path}: {method} returned"
        if not isinstance(result, Mapping) or result.keys() != values.keys():
            shown = list(result) if isinstance(result, Mapping) else f"{result!r:.100}"
            raise ConfigError(f"{who} values for {shown}: give one for each of {list(values)}")
        try:
            return {
                name: value if result[name] == value else self.table[name].hold(float(result[name]))
                for name, value in values.items()
            }
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{who} a value that is no number: {error}") from None


@dataclass
class OwnPairing(OwnExplore):
    """One that makes the values of a copy from its own and its donor's."""

    def learn(self, member: int, own: Values, better: Values, rng: Random) -> Values:
        """See `Pairing`. Raises ConfigError."""
        assert isinstance(self.rule, Pairing)
        with named(f"--pbt.explore {self.path}", "learn"):
            result = self.rule.learn(member, dict(own), dict(better), rng)
        return self._held(result, better, "learn")
