import math
from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pbt_rl.config import Hypers
from pbt_rl.controllers.hypers import HyperSpec, choice_spec, hyper_table, sample_prior, shaping_table
from pbt_rl.controllers.search.search import draw_grid, draw_random, grid_levels, prior_quantile
from pbt_rl.controllers.tuning import chosen
from pbt_rl.errors import ConfigError

RATE = HyperSpec("rate", 1e-3, 1e-5, 1e-1, "log", tuned=True)
GAMMA = HyperSpec("gamma", 0.99, 0.9, 0.9999, "one_minus", tuned=True)
LINE = HyperSpec("line", 0.0, -1.0, 3.0, "linear", tuned=True)
UNROLL = HyperSpec("unroll", 5, 2, 7, "integer", tuned=True)
OPTIMISER = choice_spec("optimiser", ("adam", "rmsprop", "sgd"), "adam")
ALL = (RATE, GAMMA, LINE, UNROLL, OPTIMISER)


def test_a_grid_is_even_on_each_scale():
    (rates,) = grid_levels({"rate": RATE}, 4)
    assert [math.log10(x) for x in rates] == pytest.approx([-4.5, -3.5, -2.5, -1.5])
    (gammas,) = grid_levels({"gamma": GAMMA}, 3)
    assert [math.log10(1 - x) for x in gammas] == pytest.approx([-1.5, -2.5, -3.5])
    assert grid_levels({"line": LINE}, 2) == [[0.0, 2.0]]
    assert grid_levels({"unroll": UNROLL}, 100) == [[2, 3, 4, 5, 6, 7]]
    assert grid_levels({"unroll": UNROLL}, 3) == [[3, 5, 7]]
    assert grid_levels({"optimiser": OPTIMISER}, 9) == [[0, 1, 2]]


def test_a_grid_grows_evenly_and_what_has_one_level_keeps_its_default():
    specs = {s.name: s for s in (RATE, LINE, UNROLL)}
    assert [len(levels) for levels in grid_levels(specs, 12)] == [3, 2, 2]
    assert grid_levels(specs, 3)[2] == [UNROLL.default]
    points = draw_grid(specs, 12, Random(0))
    assert len({tuple(p.items()) for p in points}) == 12
    assert Counter(p["rate"] for p in points).most_common()[0][1] == 4


def test_a_grid_that_cannot_grow_is_used_again():
    points = draw_grid({"optimiser": OPTIMISER}, 7, Random(0))
    assert sorted(p["optimiser"] for p in points) in (
        [0, 0, 0, 1, 1, 2, 2],
        [0, 0, 1, 1, 1, 2, 2],
        [0, 0, 1, 1, 2, 2, 2],
    )
    assert draw_grid({}, 2, Random(0)) == [{}, {}]


def test_a_scale_without_a_logarithm_is_refused():
    with pytest.raises(ConfigError, match=r"x=0:1 .*log"):
        draw_grid({"x": HyperSpec("x", 0.5, 0.0, 1.0, "log", tuned=True)}, 3, Random(0))
    with pytest.raises(ConfigError, match=r"x=0:1 .*one.minus"):
        draw_grid({"x": HyperSpec("x", 0.5, 0.0, 1.0, "one_minus", tuned=True)}, 3, Random(0))


@pytest.mark.parametrize("spec", ALL, ids=lambda s: s.name)
def test_the_grid_has_the_priors_quantiles(spec):
    """The two are written apart: a share of draws as large as the quantile says lies below it."""
    rng = Random(0)
    drawn = [sample_prior(spec, rng) for _ in range(4000)]
    for share in (0.1, 0.35, 0.5, 0.8):
        limit = prior_quantile(spec, share)
        below, at_most = sum(x < limit for x in drawn) / 4000, sum(x <= limit for x in drawn) / 4000
        assert below - 0.03 <= share <= at_most + 0.03


@given(st.lists(st.sampled_from(ALL), unique=True, min_size=1), st.integers(1, 200), st.integers(0, 99))
@settings(max_examples=50, deadline=None)
def test_configurations_are_within_bounds_and_complete(chosen, number, seed):
    specs = {s.name: s for s in chosen}
    for draw in (draw_random, draw_grid):
        made = draw(specs, number, Random(seed))
        assert len(made) == number
        for values in made:
            assert list(values) == list(specs)
            assert all(values[name] == specs[name].clamp(values[name]) for name in specs)


def test_quantiles_of_a_shaping_that_is_negative():
    down = shaping_table({"down": -2.0})["shaping.down"]
    assert [prior_quantile(down, q) for q in (0.0, 0.5, 1.0)] == pytest.approx([-200.0, -2.0, -0.02])


@pytest.mark.parametrize("entry", ["gamma=0.9:0.99", "learning_rate=1e-5:1e-3", "unroll=2:20"])
def test_a_grid_of_a_range_and_of_choices_that_the_user_gives(entry):
    table, name = hyper_table(Hypers()), entry.partition("=")[0]
    levels = [point[name] for point in draw_grid({name: chosen(table, (entry,))[name]}, 5, Random(0))]
    assert len(set(levels)) == 5
    spec = chosen(table, ("gamma",), ("gamma=0.99,0.9,0.999",))["gamma"]
    assert sorted(point["gamma"] for point in draw_grid({"gamma": spec}, 3, Random(0))) == [0.9, 0.99, 0.999]
