import json
import math
import sys
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pbt_rl.errors import ConfigError
from pbt_rl.pbt.changes import changes
from pbt_rl.pbt.decisions import Mutate, Replace, Restart
from pbt_rl.pbt.explore.base import Learning
from pbt_rl.pbt.explore.pb2 import Pb2, from_unit, to_unit
from pbt_rl.pbt.explore.pipeline import ExplorePipeline
from pbt_rl.pbt.hypers import HyperSpec, choice_spec, shaping_table
from pbt_rl.pbt.options import PbtConfig
from pbt_rl.pbt.state import restore_state, save_state
from tests.helpers.populations import build, member, report

TABLE = {
    "lr": HyperSpec("lr", 1e-3, 1e-5, 1e-1, "log", tuned=True),
    "gamma": HyperSpec("gamma", 0.9, 0.5, 0.999, "one_minus", tuned=True),
    "act": choice_spec("act", ("relu", "elu", "tanh"), "relu"),
}
MILLION = 10**6


@given(st.sampled_from(["lr", "gamma", "shaping.down"]), st.floats(0, 1))
def test_the_unit_scale_and_back(name, share):
    spec = (TABLE | shaping_table({"down": -2.0}))[name]
    value = from_unit(spec, share)
    assert spec.low <= value <= spec.high
    assert to_unit(spec, value) == pytest.approx(share, abs=1e-9)


def test_an_integer_is_whole():
    spec = HyperSpec("n", 4, 2, 9, "integer", tuned=True)
    assert [from_unit(spec, s) for s in (0.0, 0.5, 0.49, 1.0)] == [2, 6, 5, 9]


def train(rule, rounds, gain, seed=1, num_members=6):
    """Odd members are changed at every comparison; the objective rises by `gain(values, round)` in between."""
    rng = Random(seed)
    values = [rule.initial({n: s.default for n, s in TABLE.items()}, rng) for _ in range(num_members)]
    objectives = [0.0] * num_members
    for now in range(1, rounds + 1):
        members = [
            member(i, (objectives[i],), frames=now * MILLION, values=values[i]) for i in range(num_members)
        ]
        rule.before(members)
        decisions = []
        for i in range(1, num_members, 2):
            values[i] = rule.mutate(values[i], rng)
            decisions.append(Mutate(i, values[i], ""))
        rule.after(members, changes(decisions, dict.fromkeys(range(num_members), 0)))
        for i in range(num_members):
            objectives[i] += gain(values[i], now) + rng.gauss(0, 0.05)
        yield values[1::2]


def test_it_finds_the_values_that_help_and_follows_them_when_they_move():
    def gain(values, now):
        target = -2 if now <= 8 else -4
        return 1 - abs(math.log10(values["lr"]) - target) / 2

    tried = [[math.log10(v["lr"]) for v in values] for values in train(Pb2(TABLE, candidates=100), 18, gain)]
    assert all(abs(x + 2) < 0.6 for x in tried[7])
    assert all(abs(x + 4) < 0.6 for x in tried[17]), "what it learned at first must fade"


def test_a_batch_does_not_try_one_point_many_times():
    rule, rng = Pb2({"lr": TABLE["lr"]}, candidates=200), Random(0)
    for now in (1, 2):
        rule.before(
            [
                member(i, (float(now),), frames=now * MILLION, values={"lr": 10.0 ** (-2 - i)})
                for i in range(4)
            ]
        )
    tried = [math.log10(rule.mutate({"lr": 1e-3}, rng)["lr"]) for _ in range(6)]
    assert max(tried) - min(tried) > 0.3


def test_without_data_it_draws_from_the_priors():
    rule, rng = Pb2(TABLE), Random(0)
    drawn = [rule.mutate({"lr": 1e-3, "gamma": 0.9, "act": 0.0}, rng) for _ in range(300)]
    assert 110 < sum(v["lr"] < 1e-3 for v in drawn) < 190
    assert {v["act"] for v in drawn} == {0.0, 1.0, 2.0}


def data_of(rule):
    return [datum["improvement"] for datum in save_state(rule)["_data"]]


def test_an_improvement_is_measured_from_what_was_copied():
    values = {"lr": 1e-3, "gamma": 0.9, "act": 0.0}

    def seen(now, *objectives):
        return [member(i, (o,), frames=now * MILLION, values=values) for i, o in enumerate(objectives)]

    rule = Pb2(TABLE)
    rule.before(seen(1, 10.0, 2.0, 3.0, 4.0))
    assert data_of(rule) == []
    copies = [Replace(1, 0, "both", values, ""), Replace(2, 0, "both", values, "", 7), Restart(3, values, "")]
    rule.after(seen(1, 10.0, 2.0, 3.0, 4.0), changes(copies, dict.fromkeys(range(4), 0)))
    rule.before(seen(3, 14.0, 11.0, 30.0, 1.0))
    assert data_of(rule) == [2.0, 0.5], (
        "a million frames, from the donor's 10; the two others' start is not known"
    )
    rule.before(seen(4, math.nan, 12.0, 30.0, 1.0))
    rule.before(seen(5, 15.0, 12.0, 30.0, 1.0))
    assert len(data_of(rule)) == 2 + 3 + 3, "nothing is known of an interval with a broken end"


def test_it_resumes_and_keeps_a_window():
    rule, other = Pb2(TABLE, window=9, candidates=50), Pb2(TABLE, window=9, candidates=50)
    list(train(rule, 4, lambda values, now: values["lr"]))
    assert len(data_of(rule)) == 9
    restore_state(other, json.loads(json.dumps(save_state(rule))))
    members = [
        member(i, (1.0 * i,), frames=5 * MILLION, values={"lr": 1e-3, "gamma": 0.9, "act": 1.0})
        for i in range(6)
    ]
    for r in (rule, other):
        r.before(members)
    assert rule.mutate(members[0].values, Random(5)) == other.mutate(members[0].values, Random(5))
    assert isinstance(rule, Learning)
    assert isinstance(ExplorePipeline((rule,), until_change=False), Learning)


def test_as_an_option_it_is_told_of_every_comparison_and_replays():
    pbt = PbtConfig(
        period_frames=MILLION, start_frames=0, min_episodes=1, exploit="truncation", explore="pb2"
    )
    controller, other = build(pbt, TABLE, 0, 5), build(pbt, TABLE, 1, 5)
    values = controller.initial(5)
    rng = Random(0)
    for now in range(1, 5):
        members = [member(i, (rng.gauss(i, 1),), frames=now * MILLION, values=values[i]) for i in range(5)]
        restore_state(other, json.loads(json.dumps(save_state(controller))))
        decisions = controller.observe(report(now * MILLION, members))
        assert other.observe(report(now * MILLION, members)) == decisions
        for d in decisions:
            values[d.member] = getattr(d, "values", values[d.member])
            assert all(TABLE[n].clamp(v) == v for n, v in values[d.member].items())
    assert len(save_state(controller)["explore"]["_data"]) == 15


def test_without_scikit_learn_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'pbt-rl\[search\]'"):
        Pb2(TABLE)
