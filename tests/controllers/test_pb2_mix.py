"""PB2-Mix: the bandit over categories by hand and at play, the kernel with choices, and the rule of both."""

import json
import math
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pbt_rl.controllers.gaussian_process import MixedKernel
from pbt_rl.controllers.hypers import choice_spec
from pbt_rl.controllers.pb2 import MANY_PLAYS_GAMMA, Pb2Mix, cap, exploration, probabilities, updated
from pbt_rl.controllers.state import restore_state, save_state
from tests.controllers.test_pb2 import MILLION, TABLE, train
from tests.helpers.populations import member


def test_the_share_of_chance_is_that_of_the_paper():
    assert exploration(10, 2, 50) == pytest.approx(math.sqrt(10 * math.log(5) / ((math.e - 1) * 2 * 50)))
    assert exploration(3, 6, 50) == MANY_PLAYS_GAMMA
    assert exploration(100, 1, 1) == 1.0


@given(st.lists(st.floats(0.001, 1), min_size=2, max_size=9), st.integers(1, 8), st.integers(5, 200))
def test_no_category_is_expected_more_than_once_in_a_round(weights, plays, rounds):
    p = probabilities(weights, plays, rounds)
    assert math.fsum(p) == pytest.approx(1)
    gamma = exploration(len(weights), plays, rounds)
    most = cap(weights, plays, gamma)
    if plays < len(weights):
        assert plays * max(p) <= 1 + 1e-9
    if most < math.inf:
        share = (1 / plays - gamma / len(weights)) / (1 - gamma)
        assert most / math.fsum(min(w, most) for w in weights) == pytest.approx(share), "the paper's equation"


def test_a_round_by_hand():
    """Two categories, three plays: gamma 0.2, p = (0.5, 0.5); the first earns 1 + 0.5, the second 0."""
    drift = math.e / (2 * 10)
    raised = 0.5 * math.exp(0.2 * (1.5 / 0.5) / 2) + drift, 0.5 + drift
    expected = [w / sum(raised) for w in raised]
    assert updated([0.5, 0.5], [(0, 1.0), (1, 0.0), (0, 0.5)], 10) == pytest.approx(expected)


def test_a_category_above_the_cap_gets_no_reward():
    weights = [0.9, 0.04, 0.03, 0.03]
    rewarded = updated(weights, [(0, 1.0), (1, 0.0)], 1000)
    assert rewarded == pytest.approx(updated(weights, [(0, 0.0), (1, 0.0)], 1000))


def test_it_follows_the_best_category_when_that_changes():
    rng, weights = Random(0), [1 / 4] * 4
    found = []
    for now in range(120):
        p = probabilities(weights, 6, 100)
        plays = rng.choices(range(4), p, k=6)
        best = 1 if now < 60 else 3
        weights = updated(
            weights, [(c, min(1.0, 0.8 * (c == best) + 0.2 * rng.random())) for c in plays], 100
        )
        found.append(max(range(4), key=probabilities(weights, 6, 100).__getitem__))
    assert found[59] == 1
    assert found[119] == 3


def test_the_kernel_of_choices_and_numbers_is_that_of_the_paper():
    rng = np.random.default_rng(0)
    kernel = MixedKernel(2, 0.3, 0.4, 0.7)
    X, Y = (np.hstack([rng.random((n, 3)), rng.integers(0, 2, (n, 2))]) for n in (5, 4))
    for a, row in zip(X, kernel(X, Y), strict=True):
        for b, k in zip(Y, row, strict=True):
            numbers = math.exp(-sum((p - q) ** 2 for p, q in zip(a[1:3], b[1:3], strict=True)) / (2 * 0.3**2))
            equal = sum(p == q for p, q in zip(a[3:], b[3:], strict=True)) / 2
            mixed = (1 - 0.7) * (equal + numbers) + 0.7 * equal * numbers
            assert k == pytest.approx(mixed * math.exp(-0.4 * abs(a[0] - b[0])), rel=1e-12)
    assert np.diag(kernel(X)) == pytest.approx(kernel.diag(X))
    values, slopes = kernel(X, eval_gradient=True)
    for i, name in enumerate(("decay", "length", "mix")):
        changed = MixedKernel(2, kernel.length, kernel.decay, kernel.mix)
        setattr(changed, name, getattr(kernel, name) * math.exp(1e-6))
        assert slopes[..., i] == pytest.approx((changed(X) - values) / 1e-6, abs=1e-4), name
    assert [h.name for h in kernel.hyperparameters] == ["decay", "length", "mix"]


def test_it_finds_the_choice_that_helps():
    rule = Pb2Mix({"act": TABLE["act"]})
    tried = list(train(rule, 40, lambda values, _now: float(values["act"])))
    acts = [v["act"] for values in tried[-10:] for v in values]
    assert acts.count(2.0) > 0.6 * len(acts), "a third by chance, and a fifth of all draws is chance"


def test_the_numbers_fit_the_choice_that_they_stand_beside():
    """The best rate is 1e-4 with `relu` (0) and 1e-2 with `tanh` (2)."""
    rng, rule = Random(1), Pb2Mix({"lr": TABLE["lr"], "act": TABLE["act"]}, candidates=100)
    targets = {0.0: -4.0, 2.0: -2.0}
    rates = [(rng.uniform(-5, -1), rng.choice((0.0, 2.0))) for _ in range(40)]
    for now in (1, 2):
        rule.before(
            [
                member(
                    i,
                    (now * -abs(x - targets[act]),),
                    frames=now * MILLION,
                    values={"lr": 10.0**x, "act": act},
                )
                for i, (x, act) in enumerate(rates)
            ]
        )
    for act, target in targets.items():
        rule._weights["act"] = [float(i == act) for i in range(3)]
        chosen = [
            v for v in (rule.mutate({"lr": 1e-3, "act": 1.0}, rng) for _ in range(8)) if v["act"] == act
        ]
        assert len(chosen) > 2
        assert abs(math.log10(chosen[0]["lr"]) - target) < 0.5


def test_choices_alone_and_numbers_alone_are_chosen_too():
    acts = {"act": TABLE["act"]}
    rule, rng = Pb2Mix(acts), Random(0)
    assert rule.mutate({"act": 0.0, "other": 3.0}, rng)["other"] == 3.0
    rates = {"lr": TABLE["lr"]}
    assert 1e-5 <= Pb2Mix(rates).mutate({"lr": 1e-3}, rng)["lr"] <= 1e-1


def test_its_state_is_restored_and_fits_these_choices_only():
    rule, other = Pb2Mix(TABLE, candidates=20), Pb2Mix(TABLE, candidates=20)
    list(train(rule, 5, lambda values, _now: values["act"]))
    saved = json.loads(json.dumps(save_state(rule)))
    restore_state(other, saved)
    values = {"lr": 1e-3, "gamma": 0.9, "act": 1.0}
    assert rule.mutate(values, Random(5)) == other.mutate(values, Random(5))
    more = TABLE | {"act": choice_spec("act", ("relu", "elu", "tanh", "gelu"), "relu")}
    with pytest.raises(ValueError, match="the saved"):
        restore_state(Pb2Mix(more), saved)
