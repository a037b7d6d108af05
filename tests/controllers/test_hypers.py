import math
from collections import Counter
from random import Random

import pytest

from pbt_rl.config import Hypers
from pbt_rl.controllers.hypers import HyperSpec, choice_spec, hyper_table, sample_prior, shaping_table
from pbt_rl.controllers.tuning import chosen
from pbt_rl.errors import ConfigError


def test_clamp():
    spec = HyperSpec("x", 1.0, -1.0, 2.5, "linear", tuned=True)
    assert [spec.clamp(v) for v in (-9.0, 0.3, 9.0, math.inf)] == [-1.0, 0.3, 2.5, 2.5]
    with pytest.raises(ValueError, match=r"x is NaN.*-1\.\.2\.5"):
        spec.clamp(math.nan)


def test_integers_are_clamped_to_whole_numbers_inside_the_bounds():
    spec = HyperSpec("n", 3, 2.5, 9.5, "integer", tuned=True)
    assert [spec.clamp(v) for v in (0, 2.6, 4.4, 9.5, math.inf)] == [3, 3, 4, 9, 9]


def test_tables():
    table = hyper_table(Hypers(gamma=0.9))
    assert table["gamma"].default == 0.9
    shaping = shaping_table({"up": 2.0, "down": -2.0, "off": 0.0})
    bounds = {name: (spec.low, spec.high) for name, spec in shaping.items()}
    assert bounds == {
        "shaping.up": (0.02, 200.0),
        "shaping.down": (-200.0, -0.02),
        "shaping.off": (-1.0, 1.0),
    }


def test_a_factor_on_all_rewards_is_tuned_only_by_name():
    table = shaping_table({"score_scale": 1.0, "life_loss_penalty": 0.0})
    tuned = {name for name, spec in chosen(table, ()).items() if spec.tuned}
    assert tuned == {"shaping.life_loss_penalty"}
    named = chosen(table, ("shaping.score_scale=0.1:10",))
    assert {name for name, spec in named.items() if spec.tuned} == {"shaping.score_scale"}


def scales():
    bounds = {"linear": (-3.0, 5.0), "log": (1e-6, 1e-2), "one_minus": (0.9, 0.9999), "integer": (2.0, 64.0)}
    specs = [HyperSpec(scale, low, low, high, scale, tuned=True) for scale, (low, high) in bounds.items()]
    return {s.name: s for s in (*specs, choice_spec("choice", ("a", "b", "c"), "b"))}


@pytest.mark.parametrize(
    ("scale", "middle"), [("linear", 1.0), ("log", 1e-4), ("one_minus", 1 - 10**-2.5), ("integer", 33.0)]
)
def test_a_prior_is_uniform_on_its_scale(scale, middle):
    rng = Random(0)
    draws = sorted(sample_prior(scales()[scale], rng) for _ in range(4000))
    below = sum(d < middle for d in draws)
    assert 1880 < below < 2120
    spread = scales()[scale]
    assert draws[0] <= spread.low + 0.05 * (middle - spread.low)


def test_every_choice_is_drawn_evenly():
    rng = Random(0)
    drawn = Counter(sample_prior(scales()["choice"], rng) for _ in range(3000))
    assert set(drawn) == {0.0, 1.0, 2.0}
    assert min(drawn.values()) > 900


def test_a_prior_without_a_logarithm_is_refused():
    with pytest.raises(ConfigError, match=r"x=0:1 .*log"):
        sample_prior(HyperSpec("x", 0.5, 0.0, 1.0, "log", tuned=True), Random(0))
    with pytest.raises(ConfigError, match=r"x=0:1 .*one.minus"):
        sample_prior(HyperSpec("x", 0.5, 0.0, 1.0, "one_minus", tuned=True), Random(0))


def test_a_choice_that_is_not_one_is_refused():
    with pytest.raises(ConfigError, match=r"act: .*'gelu'"):
        choice_spec("act", ("relu", "tanh"), "gelu")
    assert choice_spec("n", (True, 1), 1).default == 1.0


def test_shaping_is_drawn_evenly_in_its_magnitude_and_keeps_its_sign():
    table, rng = shaping_table({"up": 2.0, "down": -2.0, "off": 0.0}), Random(0)
    draws = {n: [sample_prior(s, rng) for _ in range(2000)] for n, s in table.items()}
    assert 900 < sum(d < 2 for d in draws["shaping.up"]) < 1100
    assert 900 < sum(d < -2 for d in draws["shaping.down"]) < 1100
    assert 900 < sum(d < 0 for d in draws["shaping.off"]) < 1100
    assert all(table[n].clamp(d) == d for n, ds in draws.items() for d in ds)
