"""`scripts/lab/worth.py`: the arms begin alike, and what the rows tell is right."""

import importlib.util
import sys
from pathlib import Path
from random import Random

import pytest

from tests.helpers.populations import member

LAB = Path(__file__).parents[2] / "scripts" / "lab"


def load(name):
    spec = importlib.util.spec_from_file_location(name, LAB / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


worth, rules = load("worth"), load("rules")


def test_arms_begin_alike_near_the_recipe_or_far_from_it():
    for task in worth.TASKS.values():
        begins = {name: worth.command(task, arm, 100)[-worth.MEMBERS :] for name, arm in worth.ARMS.items()}
        far = begins.pop("random")
        assert far != begins["control"]
        assert all(begins.pop(name) == far for name in ("wide", "finalists", "finalists_pb2"))
        unknown = begins.pop("random_unknown")
        assert begins.pop("wide_unknown") == unknown != far
        assert len(set(map(tuple, begins.values()))) == 1
        assert f"gamma={task.recipe['gamma']:.6g}" in begins["control"][0]
        assert worth.command(task, worth.ARMS["control"], 101)[-1] != begins["control"][-1]


def test_an_arm_tunes_its_own_values_and_the_reward_weights_of_the_task():
    def tuned(task, arm):
        words = worth.command(worth.TASKS[task], worth.ARMS[arm], 300)
        start = words.index("--pbt.tune") + 1
        return [word.partition("=")[0] for word in words[start : words.index("--pbt.start-values")]]

    three, weights = (
        ["learning_rate", "gamma", "gae_lambda"],
        ["shaping.near", "shaping.slow", "shaping.effort"],
    )
    assert tuned("acrobot", "three") == three
    assert tuned("courier", "three") == three + weights
    assert tuned("courier", "default") == [*worth.USUAL, *weights]
    assert "--pbt.tune" not in worth.command(worth.TASKS["acrobot"], worth.ARMS["default"], 300)


def test_the_probability_of_improvement_is_that_of_a_slow_loop():
    random = Random(0)
    a, b = ([random.randint(0, 9) for _ in range(n)] for n in (7, 5))
    slow = sum(1.0 if x > y else 0.5 if x == y else 0.0 for x in a for y in b) / (len(a) * len(b))
    assert worth.improvement(a, b) == pytest.approx(slow)
    found = {"one": {"x": dict(enumerate(a)), "y": dict(enumerate(b))}, "two": {"x": {0: 1.0}}}
    value, low, high, runs = worth.pooled(found, "x", "y")
    assert (value, runs) == (pytest.approx(slow), 5)
    assert low < value < high


@pytest.mark.parametrize(("rounds", "copies"), [(2, []), (1, [(1, 3)])])
def test_no_lineage_gets_more_than_half_of_the_members_at_first(rounds, copies):
    rule, random = rules.LimitedTruncation(rounds=rounds), Random(0)

    def made(**scores):
        members = [member(m, (score, score + 0.1)) for m, score in enumerate(scores.values())]
        return [(one.member, one.donor) for one in rule.select(members, random) if one.donor is not None]

    assert made(a=1.0, b=3.0, c=4.0, d=9.0) == [(0, 3)]
    assert made(a=5.0, b=0.0, c=4.0, d=9.0) == copies


def test_a_lead_within_the_noise_is_none():
    rule = rules.LimitedTruncation(errors=1.0)
    close = [member(m, (m + 0.0, m + 5.0)) for m in range(4)]
    assert all(one.donor is None for one in rule.select(close, Random(0)))
