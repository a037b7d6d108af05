import math
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pbt_rl.pbt.explore import ZERO_STEP, Perturb, perturb
from pbt_rl.pbt.hypers import Hypers, HyperSpec, hyper_table, shaping_table

factors = st.floats(1.01, 3.0)


def spec(scale, low, high, *, name="x", tuned=True):
    return HyperSpec(name, low, low, high, scale, tuned)


@st.composite
def spec_and_value(draw):
    scale = draw(st.sampled_from(["linear", "log", "one_minus", "integer"]))
    if scale == "integer":
        low = draw(st.integers(-50, 50))
        high = draw(st.integers(low + 1, 120))
        return spec(scale, low, high), float(draw(st.integers(low, high)))
    ends = {"linear": (-100.0, 100.0), "log": (1e-7, 1e4), "one_minus": (0.0, 0.99999)}[scale]
    a, b, share = (draw(st.floats(0, 1)) for _ in range(3))
    low, high = (ends[0] + (ends[1] - ends[0]) * t for t in sorted((a, b)))
    assume(high - low > 1e-4 * (ends[1] - ends[0]))
    value = draw(st.sampled_from([low, high, low + (high - low) * share, min(max(0.0, low), high)]))
    assume(abs(value) > 1e-6 or value == 0)
    return spec(scale, low, high), min(max(value, low), high)


@settings(max_examples=400)
@given(spec_and_value(), factors, st.booleans())
def test_a_perturbed_value_moves_and_stays_within_its_bounds(case, factor, multiply):
    s, value = case
    moved = perturb(s, value, factor, multiply=multiply)
    assert s.low <= moved <= s.high
    assert moved != value
    if s.scale == "integer":
        assert moved == int(moved)


@given(st.floats(1e-3, 1e3), factors, st.booleans(), st.sampled_from([-1, 1]))
def test_a_factor_multiplies_or_divides_and_keeps_the_sign(magnitude, factor, multiply, sign):
    value = sign * magnitude
    expected = value * factor if multiply else value / factor
    assert perturb(spec("linear", -1e9, 1e9), value, factor, multiply=multiply) == expected


def test_one_minus_acts_on_the_distance_to_one():
    gamma = spec("one_minus", 0.5, 0.9999)
    assert perturb(gamma, 0.99, 2.0, multiply=True) == pytest.approx(0.98)
    assert perturb(gamma, 0.99, 2.0, multiply=False) == pytest.approx(0.995)


def test_an_integer_moves_by_one_where_the_factor_is_too_small_to_be_seen():
    unroll = spec("integer", 2, 64)
    assert perturb(unroll, 4, 1.01, multiply=True) == 5
    assert perturb(unroll, 4, 1.01, multiply=False) == 3
    assert perturb(unroll, 40, 1.5, multiply=True) == 60
    assert perturb(spec("integer", -64, 64), -4, 1.01, multiply=True) == -5


def test_at_a_bound_the_value_turns_round_and_equal_bounds_hold_it():
    lr = spec("log", 1e-6, 1e-2)
    assert perturb(lr, 1e-2, 2.0, multiply=True) == 5e-3
    assert perturb(lr, 1e-6, 2.0, multiply=False) == 2e-6
    assert perturb(spec("linear", 3.0, 3.0), 3.0, 2.0, multiply=True) == 3.0


def test_zero_moves_towards_the_bound_of_the_drawn_direction():
    free = spec("linear", -2.0, 4.0)
    assert perturb(free, 0.0, 1.5, multiply=True) == pytest.approx(ZERO_STEP * 0.5 * 4)
    assert perturb(free, 0.0, 1.5, multiply=False) == pytest.approx(ZERO_STEP * 0.5 * -2)
    assert perturb(spec("linear", 0.0, 1.0), 0.0, 1.5, multiply=False) > 0
    assert perturb(spec("linear", -1.0, 0.0), 0.0, 1.5, multiply=True) < 0
    shaping = shaping_table({"bonus": 0.0})["shaping.bonus"]
    assert perturb(shaping, 0.0, 1.2, multiply=True) != 0


def test_a_value_out_of_bounds_starts_from_the_nearest_allowed_one():
    assert perturb(spec("linear", 1.0, 4.0), 100.0, 2.0, multiply=False) == 2.0
    assert perturb(spec("integer", 1, 9), 4.4, 1.1, multiply=False) == 3


def test_nan_is_refused():
    with pytest.raises(ValueError, match="x is NaN"):
        perturb(spec("linear", 0, 1), math.nan, 1.2, multiply=True)


def test_only_tuned_values_change_and_each_with_the_mutation_rate():
    table = hyper_table(Hypers())
    tuned = {n: s for n, s in table.items() if s.tuned}
    explore = Perturb(tuned, mutation_rate=0.15, factor_min=1.1, factor_max=1.5)
    before = {n: s.default for n, s in table.items()}
    kept = dict(before)
    rng = Random(3)
    changed = dict.fromkeys(table, 0)
    for _ in range(2000):
        after = explore.mutate(before, rng)
        assert list(after) == list(before)
        for name in table:
            changed[name] += after[name] != before[name]
            if after[name] != before[name]:
                factor = max(after[name] / before[name], before[name] / after[name])
                assert 1.1 <= factor <= 1.5
    assert before == kept, "the donor's own values were edited"
    assert all((0.12 < changed[n] / 2000 < 0.18) if n in tuned else changed[n] == 0 for n in table)


def test_multiplied_and_divided_equally_often():
    explore = Perturb({"x": spec("log", 1e-9, 1e9)}, mutation_rate=1, factor_min=1.1, factor_max=1.5)
    rng = Random(0)
    up = sum(explore.mutate({"x": 1.0}, rng)["x"] > 1 for _ in range(2000))
    assert 900 < up < 1100


def test_initial_members_differ_in_every_tuned_value_by_a_squared_factor():
    table = hyper_table(Hypers())
    tuned = {n: table[n] for n in ("learning_rate", "entropy_coef")}
    explore = Perturb(tuned, mutation_rate=0.0, factor_min=1.2, factor_max=1.5)
    first = {n: s.default for n, s in table.items()}
    other = explore.initial(first, Random(1))
    for name, value in other.items():
        factor = max(value / first[name], first[name] / value)
        assert (1.2**2 - 1e-9 <= factor <= 1.5**2 + 1e-9) if name in tuned else factor == 1


@given(st.integers(0, 2**31), st.floats(0, 1))
def test_the_same_seed_gives_the_same_values(seed, rate):
    table = hyper_table(Hypers())
    explore = Perturb(table, rate, 1.1, 1.5)
    first = {n: s.default for n, s in table.items()}
    assert explore.mutate(first, Random(seed)) == explore.mutate(first, Random(seed))
