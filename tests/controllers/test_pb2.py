import json
import math
import sys
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pbt_rl.controllers.changes import changes
from pbt_rl.controllers.decisions import Mutate, Replace, Restart
from pbt_rl.controllers.explore import Learning
from pbt_rl.controllers.gaussian_process import FadingKernel, Surrogate
from pbt_rl.controllers.hypers import HyperSpec, choice_spec, shaping_table
from pbt_rl.controllers.options import PbtConfig
from pbt_rl.controllers.pb2 import Pb2, from_unit, to_unit
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


def test_the_bound_is_the_mean_and_the_std_of_a_gaussian_process():
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
                _, std = posterior(known, np.zeros(len(known)), x)
                assert bound == pytest.approx(mean + math.sqrt(beta) * std, rel=1e-5, abs=1e-5)


def test_the_surrogate_gets_the_time_and_the_width_of_the_bound(monkeypatch):
    seen = []

    class Recorder:
        def __init__(self, X, y):
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


def test_the_improvement_of_a_copy_begins_at_the_score_by_which_its_donor_was_compared():
    """Episodes before the last comparison are in the window, but do not count for a comparison."""
    pbt = PbtConfig(
        period_frames=MILLION, start_frames=0, min_episodes=1, exploit="truncation", explore="pb2"
    )
    controller = build(pbt, TABLE, 0, 5)
    values = controller.initial(5)
    windows = [(float(i), 10.0 * i) for i in range(5)]
    members = [replace(member(i, w, values=values[i]), recent=1) for i, w in enumerate(windows)]
    decisions = controller.observe(report(MILLION, members))
    donors = {d.member: d.donor for d in decisions if isinstance(d, Replace)}
    assert donors
    began = {m: objective for m, (_, objective) in controller.explore._start.items()}
    assert began == {m: 10.0 * donors.get(m, m) for m in range(5)}


def test_its_state_is_restored_and_fits_these_values_only():
    rule, other = Pb2(TABLE, candidates=20), Pb2(TABLE, candidates=20)
    list(train(rule, 5, lambda values, _now: values["lr"]))
    saved = json.loads(json.dumps(save_state(rule)))
    restore_state(other, saved)
    values = {"lr": 1e-3, "gamma": 0.9, "act": 1.0}
    assert rule.mutate(values, Random(5)) == other.mutate(values, Random(5))
    with pytest.raises(ValueError, match=r"PB2 .* lr, gamma.*--pbt.tune"):
        restore_state(Pb2({"lr": TABLE["lr"]}), saved)


def test_without_scikit_learn_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pbt-rl\[search\]"):
        Pb2(TABLE)
