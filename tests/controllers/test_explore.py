import json
import math
from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pbt_rl.config import Hypers
from pbt_rl.controllers.decisions import Continue, Replace
from pbt_rl.controllers.explore import (
    ZERO_STEP,
    Perturb,
    PerturbFactors,
    changed_copy,
    mutated,
    perturb,
)
from pbt_rl.controllers.explore_published import (
    ExplorePipeline,
    MultiplyOrDivide,
    PairwiseLearning,
    Resample,
    ResampleAll,
)
from pbt_rl.controllers.hypers import HyperSpec, choice_spec, hyper_table, shaping_table
from pbt_rl.controllers.options import PbtConfig
from pbt_rl.controllers.own import CustomExplore
from pbt_rl.controllers.state import restore_state, save_state
from pbt_rl.errors import ConfigError
from pbt_rl.registry import EXPLORE_RULES
from tests.helpers import populations  # noqa: F401 - its hypothesis profile
from tests.helpers.populations import OFTEN, build, member, report

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


@settings(max_examples=200)
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
    assert perturb(spec("integer", 2, 64), 40, 1.5, multiply=True) == 60


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


def test_initial_members_differ_in_every_tuned_value_by_a_squared_factor():
    table = hyper_table(Hypers())
    tuned = {n: table[n] for n in ("learning_rate", "entropy_coef")}
    explore = Perturb(tuned, mutation_rate=0.0, factor_min=1.2, factor_max=1.5)
    first = {n: s.default for n, s in table.items()}
    other = explore.initial(first, Random(1))
    for name, value in other.items():
        if name not in tuned:
            assert value == first[name]
            continue
        factor = max(value / first[name], first[name] / value)
        assert 1.2**2 - 1e-9 <= factor <= 1.5**2 + 1e-9


NESTED = {
    s.name: s
    for s in (
        HyperSpec("lr", 1e-3, 1e-6, 1e-2, "log", tuned=True),
        HyperSpec("gamma", 0.99, 0.8, 0.9999, "one_minus", tuned=True),
        HyperSpec("unroll", 20, 2, 64, "integer", tuned=True),
        HyperSpec("betas.0", 0.5, 0.0, 1.0, "linear", tuned=True),
        HyperSpec("betas.1", 0.0, -1.0, 1.0, "linear", tuned=True),
        choice_spec("act", ("relu", "elu", "tanh"), "relu"),
        choice_spec("norm", (False, True), False),
        HyperSpec("fixed", 3.0, 3.0, 3.0, "linear", tuned=True),
    )
}
DEFAULTS = {name: s.default for name, s in NESTED.items()}
RULES = {
    "perturb": lambda t: Perturb(t, 0.5, 1.1, 1.5, reset_probability=0.1),
    "factors": PerturbFactors,
    "wild factors": lambda t: PerturbFactors(t, (2.0, 0.5, 1.0), 0.5, "uniform"),
    "multiply-or-divide": MultiplyOrDivide,
    "volatile": lambda t: MultiplyOrDivide(t, 3.0, volatility=0.5),
    "resample": lambda t: Resample(t, 0.25, PerturbFactors(t)),
    "resample-all": ResampleAll,
    "orion": lambda t: ExplorePipeline((ResampleAll(t), MultiplyOrDivide(t, volatility=1e-4))),
    "custom": lambda t: CustomExplore(
        lambda v, rng: {n: x * 100 + rng.random() for n, x in v.items()}, t, PerturbFactors(t)
    ),
}


@pytest.mark.parametrize("rare", [Perturb(NESTED, 0.05, 1.1, 1.5), ResampleAll(NESTED)], ids=["rare", "all"])
def test_a_copy_changes_behind_a_function_too(rare):
    rule, rng = CustomExplore(lambda v, rng: v, NESTED, rare), Random(0)
    assert all(changed_copy(rule, DEFAULTS, rng) != DEFAULTS for _ in range(100))


@pytest.mark.parametrize("name", RULES)
@settings(max_examples=40)
@given(seed=st.integers(0, 2**31), steps=st.integers(1, 20))
def test_every_rule_keeps_to_the_bounds_and_to_what_is_tuned(name, seed, steps):
    tuned = {n: s for n, s in NESTED.items() if n != "lr" or name == "custom"}
    rule, rng = RULES[name](tuned), Random(seed)
    values = rule.initial(DEFAULTS, rng)
    for _ in range(steps):
        before = dict(values)
        after = rule.mutate(values, rng)
        assert values == before, "the values it was given were edited"
        assert list(after) == list(NESTED)
        for n, s in NESTED.items():
            assert s.clamp(after[n]) == after[n]
        assert name == "custom" or after["lr"] == 1e-3
        values = after
    again = Random(seed)
    repeated = rule.initial(DEFAULTS, again)
    for _ in range(steps):
        repeated = rule.mutate(repeated, again)
    assert repeated == values


BY_CHANCE = {
    "perturb": lambda t: Perturb(t, 0.15, 1.1, 1.5, reset_probability=0.01),
    "factors": lambda t: PerturbFactors(t, probability=0.15),
    "multiply-or-divide": lambda t: MultiplyOrDivide(t, probability=1 / 3),
    "resample": lambda t: Resample(t, 0.25),
    "resample-all": ResampleAll,
    "orion": lambda t: ExplorePipeline((ResampleAll(t), MultiplyOrDivide(t))),
}


@pytest.mark.parametrize("name", BY_CHANCE)
@pytest.mark.parametrize("tuned", [1, 2, 3, 6, 8])
def test_a_copy_moves_at_least_one_value_however_few_are_tuned(name, tuned):
    table = {f"v{i}": spec("log", 1e-9, 1e9, name=f"v{i}") for i in range(tuned)}
    rule, rng, values = BY_CHANCE[name](table), Random(0), dict.fromkeys(table, 1.0)
    copies = [changed_copy(rule, values, rng) for _ in range(2000)]
    assert values not in copies
    moved = Counter(sum(x != 1.0 for x in copy.values()) for copy in copies)
    if name in ("perturb", "factors"):  # drawn as before, given that one moved
        p = 0.15
        for k in range(1, tuned + 1):
            expected = 2000 * math.comb(tuned, k) * p**k * (1 - p) ** (tuned - k) / (1 - (1 - p) ** tuned)
            assert abs(moved[k] - expected) < 5 * math.sqrt(expected) + 1


def test_a_copy_at_a_bound_moves_and_one_that_cannot_stays():
    at_bound = {"x": spec("log", 0.1, 1.0)}
    for seed in range(50):
        assert changed_copy(PerturbFactors(at_bound), {"x": 1.0}, Random(seed)) == {"x": 0.8}
    for stuck in (Perturb(at_bound, 0.0, 1.1, 1.5), Perturb({"x": spec("log", 1.0, 1.0)}, 0.5, 1.1, 1.5)):
        assert changed_copy(stuck, {"x": 1.0}, Random(0)) == {"x": 1.0}


@pytest.mark.parametrize(
    ("rule", "ratios"), [(PerturbFactors, {1.2, 0.8}), (MultiplyOrDivide, {1.2, round(1 / 1.2, 9)})]
)
def test_the_two_kinds_of_factors(rule, ratios):
    wide = {"x": spec("log", 1e-9, 1e9), "y": spec("one_minus", 0.0, 1 - 1e-9)}
    rng = Random(0)
    seen_x, seen_y = Counter(), Counter()
    for _ in range(1000):
        after = rule(wide).mutate({"x": 5.0, "y": 0.6}, rng)
        seen_x[round(after["x"] / 5, 9)] += 1
        seen_y[round((1 - after["y"]) / 0.4, 9)] += 1
    for seen in (seen_x, seen_y):
        assert set(seen) == ratios
        assert min(seen.values()) > 440


def test_each_value_draws_its_own_factor():
    table = {n: spec("log", 1e-9, 1e9, name=n) for n in "ab"}
    rng = Random(0)
    pairs = Counter(
        tuple(x > 1 for x in PerturbFactors(table).mutate({"a": 1.0, "b": 1.0}, rng).values())
        for _ in range(400)
    )
    assert len(pairs) == 4
    assert min(pairs.values()) > 60


@given(st.integers(-30, 30), st.sampled_from([PerturbFactors, MultiplyOrDivide]), st.integers(0, 99))
def test_an_integer_always_moves_by_one_at_least(value, rule, seed):
    free = {"n": spec("integer", -1000, 1000)}
    assert abs(rule(free).mutate({"n": float(value)}, Random(seed))["n"] - value) >= 1


def test_at_a_limit_the_limit_holds_or_is_left_by_a_little():
    table = {"x": spec("linear", 1.0, 2.0), "n": spec("integer", 2, 9)}
    rng = Random(0)
    hard = [MultiplyOrDivide(table).mutate({"x": 2.0, "n": 9.0}, rng) for _ in range(200)]
    assert {v["x"] for v in hard} == {2.0, 2 / 1.2}
    assert {v["n"] for v in hard} == {9.0, 8.0}
    soft = [MultiplyOrDivide(table, volatility=1e-2).mutate({"x": 2.0, "n": 9.0}, rng) for _ in range(400)]
    inside = [2.0 - v["x"] for v in soft if v["x"] > 1.8]
    assert all(0 < d < 0.06 for d in inside)
    assert 0.006 < sum(inside) / len(inside) < 0.010, "the mean of |N(0, 0.01)| is 0.008"
    low = [
        MultiplyOrDivide(table, volatility=1e-2).mutate({"x": 1.0, "n": 2.0}, rng)["x"] for _ in range(100)
    ]
    assert all(1.0 < x < 1.06 for x in low if x < 1.1)
    narrow = MultiplyOrDivide({"x": spec("linear", 1.0, 1.001)}, volatility=5.0)
    assert 1.0 <= narrow.mutate({"x": 1.0}, rng)["x"] <= 1.001


def test_categories_adjacent_and_uniform():
    act = {"a": choice_spec("a", ("p", "q", "r", "s"), "p")}
    rng = Random(0)

    def reached(rule, start):
        return Counter(rule.mutate({"a": start}, rng)["a"] for _ in range(400))

    assert set(reached(PerturbFactors(act), 1.0)) == {0.0, 2.0}
    edge = reached(PerturbFactors(act), 3.0)
    assert set(edge) == {2.0, 3.0}
    assert edge[3.0] > 150, "at the edge it may stay"
    uniform = reached(MultiplyOrDivide(act), 3.0)
    assert set(uniform) == {0.0, 1.0, 2.0, 3.0}
    assert min(uniform.values()) > 60


def test_resample_is_per_key_and_resample_all_takes_the_whole_configuration():
    table = {n: spec("linear", 0.0, 1.0, name=n) for n in "abcd"}
    start = dict.fromkeys("abcd", 0.5)
    rng = Random(0)
    changed = Counter(
        sum(x != 0.5 for x in Resample(table, 0.25).mutate(start, rng).values()) for _ in range(2000)
    )
    assert changed[4] < 25, "2000 * .25^4 = 8 of them"
    assert 800 < changed[1] < 890, "4 * .25 * .75^3"
    whole = Counter(
        sum(x != 0.5 for x in ResampleAll(table, 0.2).mutate(start, rng).values()) for _ in range(2000)
    )
    assert set(whole) == {0, 4}
    assert 350 < whole[4] < 450


def test_a_value_that_changes_may_return_to_its_default():
    table = {"x": HyperSpec("x", 1.0, 1e-9, 1e9, "log", tuned=True)}
    rule, rng = Perturb(table, 1.0, 1.1, 1.5, reset_probability=0.01), Random(0)
    reset = sum(rule.mutate({"x": 7.0}, rng)["x"] == 1.0 for _ in range(5000))
    assert 30 < reset < 75
    assert rule.initial({"x": 7.0}, rng)["x"] != 1.0


def test_a_value_with_a_range_of_the_users_own_is_drawn_anew_and_others_are_not():
    """The default rule; a probability of 0 gives Sample Factory's."""
    table = {
        name: HyperSpec(name, 1.0, 1e-9, 1e9, "log", tuned=True, drawn=drawn)
        for name, drawn in {"own": True, "usual": False}.items()
    }

    def far(config):
        rule, rng = EXPLORE_RULES["perturb"].build(config, table), Random(0)
        moved = [rule.mutate({"own": 1.0, "usual": 1.0}, rng) for _ in range(4000)]
        return [sum(not 1 / 1.5 <= one[name] <= 1.5 for one in moved) for name in table]

    own, usual = far(PbtConfig(reset_probability=0.0))
    assert 880 < own < 1100, "0.25 of 4000, but for a few that are drawn within the factor"
    assert usual == 0
    assert far(PbtConfig(explore_probability=0.0)) == [0, 0]


@pytest.mark.parametrize("name", ["perturb", "resample", "resample-all", "pb2"])
def test_a_member_that_keeps_its_weights_is_thrown_nowhere(name):
    table = {"x": HyperSpec("x", 1.0, 1e-9, 1e9, "log", tuned=True, drawn=True)}
    rule, rng = EXPLORE_RULES[name].build(PbtConfig(reset_probability=0.0), table), Random(0)
    kept = [mutated(rule, {"x": 1.0}, rng)["x"] for _ in range(500)]
    copied = [rule.mutate({"x": 1.0}, rng)["x"] for _ in range(500)]
    assert all(1 / 1.5 <= x <= 1.5 for x in kept)
    assert sum(not 1 / 1.5 <= x <= 1.5 for x in copied) > 50


def test_a_function_of_the_users_own_is_called_after_a_rule_that_draws_nothing_anew():
    table = {"x": HyperSpec("x", 1.0, 1e-9, 1e9, "log", tuned=True)}
    rule = CustomExplore(lambda v, _rng: {"x": v["x"] * 2}, table, Resample(table, 1.0))
    assert mutated(rule, {"x": 1.0}, Random(0)) == {"x": 2.0}
    assert rule.mutate({"x": 1.0}, Random(0)) != {"x": 2.0}


def test_a_pipeline_ends_with_the_first_change():
    def adds(amount):
        return CustomExplore(lambda v, rng: {"x": v["x"] + amount})

    assert ExplorePipeline((adds(0), adds(1), adds(10))).mutate({"x": 0.0}, Random(0)) == {"x": 1.0}


# -- pairwise learning --------------------------------------------------------------------------------------

TABLE = {
    "a": HyperSpec("a", 1.0, 0.0, 10.0, "linear", tuned=True),
    "n": HyperSpec("n", 3, 1, 9, "integer", tuned=True),
    "act": choice_spec("act", ("relu", "elu", "tanh"), "relu"),
    "fixed": HyperSpec("fixed", 5.0, 0.0, 9.0, "linear", tuned=False),
}
TUNED = {name: spec for name, spec in TABLE.items() if spec.tuned}


def test_it_moves_as_the_equations_say():
    """Against the equations, draw by draw: v <- r1 v + r2 (h_w - h_l), h <- h_l + v."""
    rule, rng, again = PairwiseLearning({"a": TABLE["a"]}, probability=0.0), Random(4), Random(4)
    own, velocity = 2.0, 0.0
    for better in (6.0, 7.0, 1.0, 9.5, 9.9):
        found = rule.learn(3, {"a": own}, {"a": better}, rng)["a"]
        again.random()  # whether it is drawn anew
        r2 = again.random()
        velocity = again.random() * velocity + r2 * (better - own)
        own = min(max(own + velocity, 0.0), 10.0)
        assert found == pytest.approx(own)
    assert rule.learn(8, {"a": 2.0}, {"a": 2.0}, rng)["a"] == 2.0, "another member has a velocity of its own"


def test_values_stay_within_their_bounds_and_kinds():
    rule, rng = PairwiseLearning(TUNED), Random(0)
    own = {"a": 9.9, "n": 2.0, "act": 0.0, "fixed": 5.0}
    better = {"a": 10.0, "n": 9.0, "act": 2.0, "fixed": 6.0}
    seen = [rule.learn(0, own, better, rng) for _ in range(300)]
    assert all(0 <= v["a"] <= 10 and v["n"] in range(1, 10) and v["fixed"] == 6.0 for v in seen)
    assert {v["act"] for v in seen} == {0.0, 1.0, 2.0}
    assert rule.mutate(own, rng) == own
    drawn = PairwiseLearning({"a": TABLE["a"]}, probability=1.0)
    values = [drawn.learn(0, {"a": 1.0}, {"a": 1.0}, rng)["a"] for _ in range(200)]
    assert min(values) < 2
    assert max(values) > 8


PBT = replace(OFTEN, replace_fraction=0.25, explore="pairwise")


def test_as_an_option_the_worst_learn_from_the_best_and_a_saved_state_goes_on():
    controller, other = build(PBT, TABLE, 0, 8), build(PBT, TABLE, 1, 8)
    values = controller.initial(8)
    rng, pairs = Random(1), 0
    for now in range(1, 9):
        members = [member(i, (rng.gauss(i, 3),), frames=100 * now, values=values[i]) for i in range(8)]
        restore_state(other, json.loads(json.dumps(save_state(controller))))
        decisions = controller.observe(report(100 * now, members))
        assert other.observe(report(100 * now, members)) == decisions
        for d in decisions:
            assert isinstance(d, Replace | Continue), "nobody changes without a pair"
            if isinstance(d, Replace):
                pairs += 1
                values[d.member] = d.values
    assert pairs == 16
    assert save_state(controller)["explore"]["_velocity"]


def test_a_function_of_the_users_own_is_refused():
    with pytest.raises(ConfigError, match=r"--pbt.custom-explore .* pairwise"):
        build(replace(PBT, custom_explore="tests.helpers.toys:f"), TABLE, 0, 8)
