import json
import math
import sys
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pbt_rl.controllers.changes import changes
from pbt_rl.controllers.decisions import Mutate, Replace, Restart
from pbt_rl.controllers.explore import Learning
from pbt_rl.controllers.gaussian_process import FadingKernel, MixedKernel, Surrogate
from pbt_rl.controllers.hypers import HyperSpec, choice_spec, shaping_table
from pbt_rl.controllers.options import PbtConfig
from pbt_rl.controllers.pb2 import (
    MANY_PLAYS_GAMMA,
    Pb2,
    Pb2Mix,
    cap,
    exploration,
    from_unit,
    probabilities,
    to_unit,
    updated,
)
from pbt_rl.controllers.state import restore_state, save_state
from pbt_rl.errors import ConfigError
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


def test_the_kernel_is_that_of_the_paper():
    """The squared exponential times (1 - fading)^(|t - t'| / 2), entry by entry."""
    rng, length, fading = np.random.default_rng(0), 0.3, 0.4
    kernel = FadingKernel(length, -math.log(1 - fading) / 2)
    X, Y = rng.random((5, 3)), rng.random((4, 3))
    for a, row in zip(X, kernel(X, Y), strict=True):
        for b, k in zip(Y, row, strict=True):
            square = sum((p - q) ** 2 for p, q in zip(a[1:], b[1:], strict=True))
            expected = math.exp(-square / (2 * length**2)) * (1 - fading) ** (abs(a[0] - b[0]) / 2)
            assert k == pytest.approx(expected, rel=1e-12)
    assert np.diag(kernel(X)) == pytest.approx(kernel.diag(X))
    values, slopes = kernel(X, eval_gradient=True)
    for i, name in enumerate(("decay", "length")):
        changed = FadingKernel(kernel.length, kernel.decay)
        setattr(changed, name, getattr(kernel, name) * math.exp(1e-6))
        assert slopes[..., i] == pytest.approx((changed(X) - values) / 1e-6, abs=1e-4), name


def test_the_bound_is_the_mean_and_the_deviation_of_a_gaussian_process():
    rng = np.random.default_rng(1)
    X, y, pending, points = rng.random((9, 2)), rng.random(9), rng.random((2, 2)), rng.random((4, 2))
    surrogate = Surrogate(X, y)
    kernel = surrogate._process.kernel_
    constant, noise = kernel.k1.k1.constant_value, kernel.k2.noise_level
    scaled = (y - y.mean()) / y.std()

    def posterior(data, targets, x):
        fading = kernel.k1.k2
        K = constant * fading(data) + noise * np.eye(len(data))
        k = constant * fading(data, x[None])[:, 0]
        mean = k @ np.linalg.solve(K, targets)
        return mean, math.sqrt(constant + noise - k @ np.linalg.solve(K, k))

    for beta in (0.0, 0.5, 2.0):
        for tried in (pending, None):
            found = surrogate.bound(beta, tried)(points)
            known = X if tried is None else np.vstack([X, tried])
            for x, bound in zip(points, found, strict=True):
                mean, _ = posterior(X, scaled, x)
                _, deviation = posterior(known, np.zeros(len(known)), x)
                assert bound == pytest.approx(mean + math.sqrt(beta) * deviation, rel=1e-5, abs=1e-5)


def test_the_surrogate_gets_the_time_and_the_width_of_the_bound(monkeypatch):
    seen = []

    class Recorder:
        def __init__(self, X, y, _choices):
            seen.append((X[:, 0].tolist(), len(y)))

        def bound(self, beta, _pending):
            def bound(X):
                seen.append((set(X[:, 0]), beta))
                return X[:, 1]

            return bound

    monkeypatch.setattr("pbt_rl.controllers.gaussian_process.Surrogate", Recorder)
    rule = Pb2({"lr": TABLE["lr"]}, candidates=20)
    for now in range(1, 7):
        rule.before([member(0, (float(now),), frames=now * MILLION, values={"lr": 1e-3})])
    rule.mutate({"lr": 1e-3}, Random(0))
    (times, n), *asked = seen
    assert (times, n) == (pytest.approx([0, 0.25, 0.5, 0.75, 1.0]), 5), "from the first datum to now"
    assert [at for at, _ in asked] == [{1.0}] * 3, "asked for now"
    assert [beta for _, beta in asked] == pytest.approx([0.2 * math.log(0.4 * 5)] * 3)


def test_without_data_it_draws_from_the_priors():
    rule, rng = Pb2(TABLE), Random(0)
    drawn = [rule.mutate({"lr": 1e-3, "gamma": 0.9, "act": 0.0}, rng) for _ in range(300)]
    assert 110 < sum(v["lr"] < 1e-3 for v in drawn) < 190
    assert {v["act"] for v in drawn} == {0.0, 1.0, 2.0}


def data_of(rule):
    return [datum["improvement"] for datum in save_state(rule)["_data"]]


def test_it_keeps_a_window():
    rule = Pb2(TABLE, window=9, candidates=50)
    list(train(rule, 4, lambda values, now: values["lr"]))
    assert len(data_of(rule)) == 9
    assert isinstance(rule, Learning)


def test_as_an_option_it_is_told_of_every_comparison():
    pbt = PbtConfig(
        period_frames=MILLION, start_frames=0, min_episodes=1, exploit="truncation", explore="pb2"
    )
    controller = build(pbt, TABLE, 0, 5)
    values = controller.initial(5)
    for now in range(1, 5):
        members = [member(i, (float(i),), frames=now * MILLION, values=values[i]) for i in range(5)]
        for d in controller.observe(report(now * MILLION, members)):
            values[d.member] = getattr(d, "values", values[d.member])
    assert len(save_state(controller)["explore"]["_data"]) == 15


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


def test_without_scikit_learn_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'pbt-rl\[search\]'"):
        Pb2(TABLE)


# -- PB2-Mix ------------------------------------------------------------------------------------------------


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
