"""An exploit rule and an explore rule in one file, chosen by name: `--pbt.exploit module:Class`."""

import re
import sys
from dataclasses import dataclass, field, replace
from random import Random

import pytest

from pbt_rl.controllers.decisions import Continue, Replace
from pbt_rl.controllers.exploit import Selection, rank, score
from pbt_rl.controllers.explore import ByChance, changed_copy, mutated
from pbt_rl.controllers.hypers import HyperSpec
from pbt_rl.controllers.options import PbtConfig
from pbt_rl.controllers.own import own_exploit, own_explore
from pbt_rl.controllers.state import restore_state, save_state
from pbt_rl.errors import ConfigError
from tests.helpers.populations import build, member, report

TABLE = {"rate": HyperSpec("rate", 1.0, 0.1, 100.0, "log", tuned=True)}
HERE = "tests.controllers.test_own_rules"


@dataclass
class WorstOfAll:
    """The worst member copies the best one, in every `every`-th comparison."""

    every: int = 1
    note: str = "the worst of all"
    _comparisons: int = field(default=0, init=False)

    def select(self, members, rng, deciding=None):
        self._comparisons += 1
        best, *_, worst = rank({m.member: score(m) for m in members}, rng)
        due = self._comparisons % self.every == 0
        return [
            Selection(m.member, best, mutate=True, reason=self.note)
            if due and m.member == worst
            else Selection(m.member, None, mutate=False, reason="stays")
            for m in members
        ]


@dataclass
class Doubled:
    """Every value is doubled, and once more for each mutation before if it accelerates."""

    tuned: dict[str, HyperSpec]
    accelerates: bool
    _mutations: int = field(default=0, init=False)

    def initial(self, values, rng):
        return dict(values)

    def mutate(self, values, rng):
        self._mutations += 1
        factor = 2**self._mutations if self.accelerates else 2
        return {n: self.tuned[n].clamp(factor * v) if n in self.tuned else v for n, v in values.items()}


@dataclass
class Positive:
    most: float = 1.0

    def __post_init__(self):
        if self.most <= 0:
            raise ValueError("most must be positive")


@dataclass
class Nesting:
    """An exploit rule with settings of their own."""

    inner: Positive = field(default_factory=Positive)

    def select(self, members, rng, deciding=None):
        return []


class NoDataclass:
    def select(self, members, rng, deciding=None):
        return []


PBT = PbtConfig(
    period_frames=100,
    start_frames=0,
    min_episodes=1,
    exploit=f"{HERE}:WorstOfAll",
    explore=f"{HERE}:Doubled",
    explore_option=("accelerates=true",),
)


def observed(controller, clock, values=(1.0, 1.0, 1.0)):
    members = [
        member(i, (s,), values={"rate": v}) for i, (s, v) in enumerate(zip((9, 5, 1), values, strict=True))
    ]
    return controller.observe(report(clock, members))


def test_rules_of_ones_own_decide():
    controller = build(replace(PBT, exploit_option=("every=2", "note=at last")), TABLE, 0, 3)
    assert controller.initial(3) == [{"rate": 1.0}] * 3
    assert all(isinstance(d, Continue) for d in observed(controller, 100))
    *stay, copied = observed(controller, 200)
    assert all(isinstance(d, Continue) for d in stay)
    assert isinstance(copied, Replace)
    assert (copied.member, copied.donor, copied.values) == (2, 0, {"rate": 2.0})
    assert copied.reason.startswith("at last; ")
    assert "rate" in copied.reason


def test_their_fields_are_saved():
    first, second = (build(replace(PBT, exploit_option=("every=2",)), TABLE, 0, 3) for _ in range(2))
    for clock in (100, 200, 300):
        observed(first, clock)
    restore_state(second, save_state(first))
    assert observed(second, 400)[2].values == observed(first, 400)[2].values == {"rate": 4.0}


def test_a_rule_whose_state_could_not_be_saved_is_refused():
    controller = build(PBT, TABLE, 0, 3)
    careless = NoDataclass()
    careless.memory = [1]
    rules = {"ready": controller.ready, "explore": controller.explore}
    with pytest.raises(TypeError, match=r"NoDataclass .*dataclass"):
        type(controller)(TABLE, 0, exploit=careless, **rules)
    type(controller)(TABLE, 0, exploit=NoDataclass(), **rules)  # without attributes there is nothing to save


@dataclass
class Untaken:
    """An explore rule that takes no specs."""

    def initial(self, values, rng):
        return dict(values)

    mutate = initial


@dataclass
class Deaf(Doubled):
    def mutate(self, values):
        return dict(values)


def raises_on_call(values, rng):
    return {"rate": 1 / 0}


def exits_on_call(values, rng):
    sys.exit(3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"exploit": f"{HERE}:Nothing"}, "AttributeError"),
        ({"exploit": f"{HERE}:NoDataclass"}, "a dataclass"),
        ({"exploit": "raises_on_import:Rule"}, "ZeroDivisionError"),
        ({"exploit": "late_types:Rule"}, "NameError"),
        ({"exploit_option": ("_comparisons=3",)}, "every, note"),
        ({"exploit": f"{HERE}:Nesting", "exploit_option": ("inner.most=-1",)}, "ValueError"),
        ({"exploit": "truncation", "exploit_option": (f"gap.relative=1{'0' * 400}",)}, "finite"),
        ({"explore_option": ()}, "'accelerates'"),
        ({"explore_option": ("accelerates=2",)}, "--pbt.explore-option accelerates=2 "),
        ({"explore": f"{HERE}:Untaken", "explore_option": ()}, "1 positional"),
        ({"explore": f"{HERE}:Deaf"}, "mutate is called"),
        ({"explore": "perturb", "explore_option": ("factor_min=9",)}, "factor_max, 1.5"),
        ({"custom_explore": "os:path"}, "--pbt.custom-explore os:path "),
        ({"custom_explore": f"{HERE}:raises_on_call"}, "raises_on_call raised ZeroDivisionError"),
        ({"custom_explore": f"{HERE}:exits_on_call"}, "exits_on_call raised SystemExit"),
        ({"custom_explore": "exits_on_import:f"}, "SystemExit(3)"),
    ],
)
def test_what_cannot_be_used_is_one_clear_error_at_the_start(options, message, tmp_path, monkeypatch):
    rule = "from dataclasses import dataclass\n@dataclass\nclass Rule:\n    a: Mapping = 1\n    def select(self): ...\n"
    (tmp_path / "raises_on_import.py").write_text("1 / 0\n")
    (tmp_path / "exits_on_import.py").write_text("raise SystemExit(3)\n")
    (tmp_path / "late_types.py").write_text("from __future__ import annotations\n" + rule)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=re.escape(message)):
        build(replace(PBT, **options), TABLE, 0, 3)


@dataclass
class Answering:
    """An explore rule that mutates to ANSWER."""

    tuned: dict[str, HyperSpec]

    def initial(self, values, rng):
        return dict(values)

    def mutate(self, values, rng):
        return ANSWER[0]


ANSWER = [None]


@dataclass
class Learned(Answering):
    """One that makes the values of a copy, and is told of the comparisons."""

    seen: int = 0

    def learn(self, member, own, better, rng):
        return {"rate": own["rate"] + better["rate"] + self.seen}

    def before(self, members):
        self.seen = len(members)

    def after(self, members, changes):
        self.seen += 100


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, "mutate returned None"),
        ({}, "mutate returned {}"),
        ({"rate": None}, "mutate returned a "),
        ({"rate": "1e-3"}, "mutate returned '1e-3' for rate"),
        ({"rate": [1]}, "mutate returned a "),
        ({"rate": float("nan")}, "mutate returned NaN"),
        ({"rate": 10**400}, "mutate returned a value"),
    ],
)
def test_wrong_values_of_an_explore_rule_are_one_clear_error(answer, message):
    rules = replace(PBT, explore=f"{HERE}:Answering", explore_option=())
    ANSWER[0] = {"rate": 1.0}
    controller = build(rules, TABLE, 0, 3)
    ANSWER[0] = answer
    for use in (lambda: build(rules, TABLE, 0, 3), lambda: observed(controller, 100)):
        with pytest.raises(ConfigError, match=re.escape(f"--pbt.explore {HERE}:Answering: {message}")):
            use()


@dataclass
class Redrawing(Answering, ByChance):
    """Draws the values of copies anew, and may change nothing."""

    def mutate(self, values, rng):
        return {"rate": rng.choice([values["rate"], 50.0])}

    def perturb(self, values, rng):
        return {"rate": values["rate"] + 1}


def test_an_explore_rule_may_draw_values_of_copies_only():
    rule = own_explore(f"{HERE}:Redrawing", TABLE, ())
    assert mutated(rule, {"rate": 3.0}, Random(0)) == {"rate": 4.0}
    assert {changed_copy(rule, {"rate": 3.0}, Random(seed))["rate"] for seed in range(20)} == {50.0}


def test_a_rule_saved_without_its_wrapper_is_restored():
    saved, rule = WorstOfAll(), own_exploit(f"{HERE}:WorstOfAll", ())
    saved._comparisons = 7
    restore_state(rule, save_state(saved))
    assert rule.made._comparisons == 7


def test_an_explore_rule_is_held_to_the_bounds_and_may_learn():
    ANSWER[0] = {"rate": 1e9}
    controller = build(replace(PBT, explore=f"{HERE}:Answering", explore_option=()), TABLE, 0, 3)
    assert observed(controller, 100)[2].values == {"rate": 100.0}
    controller = build(replace(PBT, explore=f"{HERE}:Learned", explore_option=()), TABLE, 0, 3)
    assert observed(controller, 100, (4.0, 1.0, 2.0))[2].values == {"rate": 4.0 + 2.0 + 3}
    assert controller.explore.made.seen == 103
