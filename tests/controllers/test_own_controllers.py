"""Controllers and exploit functions of one's own: what they decide, what is checked, and how wrong ones fail."""

import functools
import re
from dataclasses import dataclass, field, replace
from random import Random

import numpy as np
import pytest

from pbt_rl.config import Config
from pbt_rl.controllers.decisions import Continue, Mutate, Replace, Stop
from pbt_rl.controllers.exploit import Selection
from pbt_rl.controllers.hypers import HyperSpec
from pbt_rl.controllers.lookup import build_exploit, controller_entry
from pbt_rl.controllers.options import PbtConfig
from pbt_rl.controllers.state import restore_state, save_state
from pbt_rl.errors import ConfigError
from pbt_rl.run.resolved import build_controller
from tests.helpers.populations import member, report

TABLE = {"rate": HyperSpec("rate", 1.0, 0.1, 100.0, "log", tuned=True, legal=(0.0, 1000.0))}
HERE = __name__


@dataclass
class Halving:
    """Every `every` frames the rate of all is divided by two, and the last member stops."""

    table: dict
    seed: int
    every: int = 100
    _due: int = field(init=False)
    _rng: Random = field(init=False)

    def __post_init__(self):
        self._due, self._rng = self.every, Random(self.seed)

    def initial(self, num_members):
        return [{"rate": self._rng.uniform(1, 2)} for _ in range(num_members)]

    def observe(self, report):
        if report.frames < self._due:
            return []
        self._due += self.every
        *rest, last = report.members
        halved = [Mutate(m.member, {"rate": m.values["rate"] / 2}, "half") for m in rest]
        return [*halved, Stop(last.member, "enough")]

    def remembers(self):
        return frozenset()


class Searching(Halving):
    searches = True


def own(name, *options, members=3):
    config = Config(
        env="toy/identity", num_policies=members, controller=f"{HERE}:{name}", controller_option=options
    )
    return build_controller(config, TABLE, 5)


def members(*rates):
    return [member(i, (float(i),), values={"rate": rate}) for i, rate in enumerate(rates)]


def test_a_controller_of_ones_own_decides_and_has_settings():
    controller = own("Halving", "every=50")
    expected = Halving(TABLE, 5).initial(3)
    assert controller.initial(3) == expected
    assert controller.observe(report(49, members(4, 2, 1))) == []
    decisions = controller.observe(report(50, members(4, 2, 1)))
    assert decisions == [
        Mutate(0, {"rate": 2.0}, "half"),
        Mutate(1, {"rate": 1.0}, "half"),
        Stop(2, "enough"),
    ]
    assert controller.remembers() == frozenset()


def test_its_state_is_saved_and_it_goes_on_as_it_was():
    first, second = own("Halving"), own("Halving")
    for one in (first, second):
        one.initial(3)
    first.observe(report(100, members(4, 2, 1)))
    restore_state(second, save_state(first))
    assert second.observe(report(150, members(4, 2, 1))) == []
    assert second.made._rng.getstate() == first.made._rng.getstate()


def test_numbers_of_numpy_are_numbers():
    ANSWER[0] = [Stop(np.int64(1), "enough", score=np.float64(2.5)), copies("both", donor_generation=None)]
    assert own("Answers").observe(report(100, members(1, 2))) == ANSWER[0]


@dataclass
class Remembers(Halving):
    """Keeps LATER as its state after a decision."""

    best: float | None = None
    _last: float = field(init=False, default=0.0)

    def observe(self, report):
        self._last = LATER[0]
        return [Continue(0, "")]


@dataclass
class NoneAtFirst(Remembers):
    _last: float = field(init=False, default=None)


@dataclass
class KeptByNumber(Remembers):
    _seen: dict = field(init=False, default_factory=lambda: {1: 2.0})


@dataclass
class KeepsFunction(Remembers):
    _seen: object = field(init=False, default=len)


@dataclass
class ExploitKeeps:
    _seen: list[int] = field(init=False, default_factory=list)

    def select(self, members, rng, deciding=None):
        self._seen.append(0.5)
        return [Selection(m.member, None, mutate=False, reason="") for m in members]


LATER = [1.0]


@pytest.mark.parametrize("name", ["NoneAtFirst", "KeptByNumber", "KeepsFunction"])
def test_a_state_that_no_resume_could_restore_shows_at_the_start(name):
    with pytest.raises(ConfigError, match=f"{name} has a state that cannot be restored: "):
        own(name)


def test_a_state_that_no_resume_could_restore_shows_at_the_first_decision():
    controller = own("Remembers")
    LATER[0] = 2.0
    assert controller.observe(report(0, members(1, 2))) == [Continue(0, "")]
    LATER[0] = None
    with pytest.raises(ConfigError, match=r"cannot be restored: Remembers\._last: .*None"):
        controller.observe(report(0, members(1, 2)))
    with pytest.raises(ConfigError, match=r"cannot be restored: ExploitKeeps\._seen: .*0\.5"):
        build_exploit(replace(PBT, exploit=f"{HERE}:ExploitKeeps"))


def test_whole_floats_are_members():
    ANSWER[0] = [Replace(0.0, 1.0, "both", {"rate": 1.0}, "")]
    (decision,) = own("Answers").observe(report(100, members(1, 2)))
    assert (type(decision.member), type(decision.donor)) == (int, int)
    rule = build_exploit(replace(PBT, exploit=f"{HERE}:floats"))
    assert {type(s.donor) for s in rule.select(members(1, 2), Random(0))} == {int, type(None)}


def test_values_are_held_to_what_is_legal():
    controller = own("Halving")
    (first, *_) = controller.observe(report(100, members(1e9, 2, 1)))
    assert first.values == {"rate": 1000.0}


def test_a_class_says_whether_it_searches():
    assert controller_entry(f"{HERE}:Searching").searches
    assert not controller_entry(f"{HERE}:Halving").searches
    assert Config(env="toy/identity", controller=f"{HERE}:Searching").searches


class NoDataclass:
    initial = observe = remembers = None


@dataclass
class Deaf(Halving):
    def observe(self):
        return []


@dataclass
class TooFew(Halving):
    def initial(self, num_members):
        return [{"rate": 1.0}]


@dataclass
class Text(Halving):
    def initial(self, num_members):
        return [{"rate": "1e-3"}] * num_members


@dataclass
class NotANumber(Halving):
    def initial(self, num_members):
        return [{"rate": float("nan")}] * num_members


@dataclass
class Raises(Halving):
    def initial(self, num_members):
        raise KeyError("rate")


@dataclass
class Answers(Halving):
    """Returns `ANSWER`."""

    def observe(self, report):
        return ANSWER[0]


ANSWER = [None]


def copies(what, **more):
    return Replace(0, 1, what, {"rate": 1.0}, "", **more)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing", "AttributeError"),
        ("NoDataclass", "dataclass"),
        ("Deaf", "observe is called"),
        ("TooFew", "initial returned [{'rate': 1.0}]: "),
        ("Text", "'1e-3' for rate"),
        ("NotANumber", "NaN for rate"),
        ("Raises", "raised KeyError (test_own_controllers.py, line "),
    ],
)
def test_a_controller_that_cannot_be_used_is_one_clear_error(name, message):
    with pytest.raises(ConfigError, match=re.escape(message)) as error:
        own(name).initial(3)
    assert str(error.value).startswith(f"--controller {HERE}:{name}")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, "returned None"),
        ([1], "returned [1]"),
        ([Continue(7, "")], "on [7]: "),
        ([Continue(0, ""), Stop(0, "")], "on [0, 0]"),
        ([Replace(0, 5, "both", {"rate": 1.0}, "")], "donor 5: "),
        ([Mutate(0, {}, "")], "['rate']"),
        ([Mutate(0, {"rate": "much"}, "")], "number"),
        ([Continue(0, None)], "Expected `str`, got `null` - at `$.reason`"),
        ([copies("much")], "'much' - at `$.copy`"),
        ([copies("both", donor_generation=3)], "(1, 3)"),
    ],
)
def test_a_wrong_decision_is_one_clear_error(answer, message):
    ANSWER[0] = answer
    with pytest.raises(ConfigError, match=re.escape(message)):
        own("Answers").observe(report(100, members(1, 2)))


@dataclass
class Keeps(Answers):
    """Keeps the states of KEPT; from its answer on, those of THEN."""

    def observe(self, report):
        KEPT[0] = THEN[0]
        return ANSWER[0]

    def remembers(self):
        return KEPT[0]


KEPT, THEN = [frozenset()], [frozenset()]


def test_only_states_that_are_there_can_be_kept_and_brought_back():
    controller, seen = own("Keeps"), report(100, members(1, 2))
    KEPT[0], THEN[0], ANSWER[0] = frozenset(), frozenset({(1, 0)}), [Continue(0, "")]
    assert controller.observe(seen) == ANSWER[0]
    ANSWER[0] = [copies("both", donor_generation=0)]
    assert controller.observe(seen) == ANSWER[0]
    THEN[0] = frozenset({(1, 0), (1, 5)})
    with pytest.raises(ConfigError, match=re.escape("[(1, 5)]")):
        controller.observe(seen)
    KEPT[0] = [1, 0]
    with pytest.raises(ConfigError, match=r"remembers: .*`int`"):
        controller.observe(seen)


def worst_copies_best(members, rng):
    order = sorted(members, key=lambda m: m.objectives[-1])
    return {order[0].member: order[-1].member}


def floats(members, rng):
    return {0.0: 1.0}


CALLED = functools.partial(worst_copies_best)


def one_argument(members):
    return {}


def strangers(members, rng):
    return {0: 77}


def raises(members, rng):
    return {members[0].nothing: 1}


def clears(members, rng):
    return {m.member: m.values.clear() or 0 for m in members}


def reads_values(members, rng):
    return {m.member: members[0].member for m in members if m.values["rate"] > 1e6}


@dataclass
class TooShort:
    def select(self, members, rng, deciding=None):
        return [Selection(0, None, mutate=False, reason="")]


@dataclass
class StrangeDonor:
    def select(self, members, rng, deciding=None):
        return [Selection(m.member, 77, mutate=False, reason="") for m in members]


@dataclass
class Copies:
    """Member 0 copies member 1 in a way that means nothing; made-up members copy nobody."""

    what: str = "both"
    generation: int = -1
    base: bool = False

    def select(self, members, rng, deciding=None):
        past, base = self.generation if self.generation >= 0 else None, {"other": 1.0} if self.base else None
        if len(members) > 3:
            return [Selection(m.member, None, mutate=False, reason="") for m in members]
        return [Selection(m.member, 1, False, "", past, copy=self.what, base=base) for m in members]


@dataclass
class TwoArguments:
    def select(self, members, rng):
        return []


PBT = PbtConfig(period_frames=100, start_frames=0, min_episodes=1)


def test_an_exploit_function_names_who_copies_whom():
    rule = build_exploit(replace(PBT, exploit=f"{HERE}:worst_copies_best"))
    selections = rule.select(members(1, 2, 3), Random(0))
    assert [(s.member, s.donor, s.mutate) for s in selections] == [
        (0, 2, True),
        (1, None, False),
        (2, None, False),
    ]
    assert [s.member for s in rule.select(members(1, 2, 3), Random(0), {2, 0})] == [0, 2]
    assert save_state(rule) == {"class": "OwnExploit", "made": {"class": "OwnDonors"}}
    build_exploit(replace(PBT, exploit=f"{HERE}:reads_values"))


def test_an_exploit_rule_that_changes_values_changes_its_copy():
    given = members(1, 2, 3)
    build_exploit(replace(PBT, exploit=f"{HERE}:clears")).select(given, Random(0))
    assert given == members(1, 2, 3)
    assert all(m.values for m in given)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("one_argument", (), "2 arguments"),
        ("CALLED", (), "a function or a dataclass"),
        ("strangers", (), "donor 77"),
        ("raises", (), "raised AttributeError (test_own_controllers.py, line "),
        ("worst_copies_best", ("a=1",), "--pbt.exploit-option a=1 "),
        ("TooShort", (), "Selection"),
        ("StrangeDonor", (), "donor 77"),
        ("TwoArguments", (), "3 arguments"),
    ],
)
def test_an_exploit_rule_that_cannot_be_used_shows_at_the_start(name, options, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        build_exploit(replace(PBT, exploit=f"{HERE}:{name}", exploit_option=options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["what=much"], "'much' - at `$.copy`"),
        (["generation=4"], "donor (1, 4)"),
        (["base=true"], "['other']"),
    ],
)
def test_a_rule_that_copies_what_is_not_there_is_one_clear_error(options, message):
    rule = build_exploit(replace(PBT, exploit=f"{HERE}:Copies", exploit_option=tuple(options)))
    with pytest.raises(ConfigError, match=re.escape(message)):
        rule.select(members(1, 2), Random(0))
