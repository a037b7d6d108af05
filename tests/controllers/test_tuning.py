from random import Random

import pytest

from pbt_rl.config import Config, Hypers
from pbt_rl.controllers.controllers import PbtController
from pbt_rl.controllers.explore import Perturb, PerturbFactors
from pbt_rl.controllers.hypers import OFF, Prior, hyper_table, sample_prior, shaping_table
from pbt_rl.controllers.tuning import chosen
from pbt_rl.errors import ConfigError
from pbt_rl.options.declare import changed
from pbt_rl.run.resolved import value_table

SHAPING = shaping_table({"life_lost": -1.0, "bonus": 1.0, "zero": 0.0})
TABLE = hyper_table(Hypers()) | SHAPING


def tuned(table):
    return {name: spec for name, spec in table.items() if spec.tuned}


def perturb(table):
    return Perturb(tuned(table), mutation_rate=1.0, factor_min=1.1, factor_max=1.5)


def initial(table, members):
    controller = PbtController(table, 3, ready=None, exploit=None, explore=perturb(table))
    return controller.initial(members)


def test_only_named_values_are_tuned_in_the_tables_order():
    table = chosen(TABLE, ("shaping.bonus", "gamma"))
    assert list(tuned(table)) == ["gamma", "shaping.bonus"]
    assert list(table) == list(TABLE)
    assert chosen(table, ("shaping.bonus", "gamma")) == table


@pytest.mark.parametrize(
    ("table", "example"), [(TABLE, "learning_rate=1e-06:0.01"), (SHAPING, "shaping.life_lost=")]
)
def test_a_range_without_a_name_is_refused_with_a_value_of_the_table(table, example):
    with pytest.raises(ConfigError, match=rf"0\.1:1 .* {example}"):
        chosen(table, ("0.1:1",))


def test_a_shaping_that_begins_at_0_is_tuned_only_within_a_range_of_the_users_own():
    assert not chosen(TABLE, ())["shaping.zero"].tuned
    with pytest.raises(ConfigError, match=r"--pbt.tune shaping\.zero "):
        chosen(TABLE, ("shaping.zero",))
    spec = chosen(TABLE, ("shaping.zero=0:1",))["shaping.zero"]
    assert (spec.low, spec.high, spec.tuned, spec.default) == (0, 1, True, 0)
    assert all(one["shaping.zero"] >= 0 for one in initial({"shaping.zero": spec}, 50))


def test_bounds_and_priors():
    spec = chosen(TABLE, ("learning-rate=1e-4:5e-4",))["learning_rate"]
    assert (spec.low, spec.high, spec.tuned, spec.default, spec.drawn) == (1e-4, 5e-4, True, 2.5e-4, True)
    assert spec.start == Prior(1e-4, 5e-4, "log")
    spec = chosen(hyper_table(Hypers(learning_rate=0.02)), ())["learning_rate"]
    assert (spec.low, spec.high, spec.drawn) == (1e-6, 0.02, False)
    spec = chosen(TABLE, (), ("learning_rate=1e-3:0.05",))["learning_rate"]
    assert (spec.low, spec.high, spec.drawn, spec.start) == (1e-6, 0.05, True, Prior(1e-3, 0.05, "log"))
    spec = chosen(TABLE, ("gamma",), ("gamma=0.99,0.9,0.999",))["gamma"]
    rng = Random(0)
    assert {sample_prior(spec, rng) for _ in range(60)} == {0.9, 0.99, 0.999}
    assert (spec.low, spec.high) == (0.8, 0.9999)


def test_members_start_drawn_from_a_range_of_the_users_own_with_every_rule():
    table = chosen(TABLE, ("learning_rate=1e-6:1e-2", "entropy_coef"))
    start = initial(table, 300)
    assert start[0] == {name: spec.default for name, spec in table.items()}
    rates = sorted(values["learning_rate"] for values in start)
    assert rates[0] < 3e-6
    assert rates[-1] > 4e-3
    assert 5e-5 < rates[150] < 2e-4
    entropies = [values["entropy_coef"] for values in start]
    assert max(entropies) <= 0.01 * 1.5**2  # the rule's: around the default
    drawn = PerturbFactors(tuned(table)).initial(start[0], Random(0))
    assert drawn["learning_rate"] == sample_prior(table["learning_rate"], Random(0))


def test_a_default_outside_of_given_bounds_is_drawn_for_member_0_too():
    first, _ = initial(chosen(TABLE, ("learning_rate=1e-3:1e-2",)), 2)
    assert 1e-3 <= first["learning_rate"] <= 1e-2
    assert first["gamma"] == 0.99


def test_a_single_member_starts_with_its_default_even_outside_of_given_bounds():
    (only,) = initial(chosen(TABLE, ("learning_rate=1e-3:1e-2",)), 1)
    assert only["learning_rate"] == TABLE["learning_rate"].default


@pytest.mark.parametrize(
    ("hypers", "name"),
    [
        (Hypers(entropy_coef=0.0), "entropy_coef"),
        (Hypers(clip_value=OFF), "clip_value"),
        (Hypers(max_grad_norm=OFF), "max_grad_norm"),
    ],
)
def test_what_is_switched_off_is_not_tuned_unless_it_is_named(hypers, name):
    table = hyper_table(hypers)
    assert not chosen(table, ())[name].tuned
    named = chosen(table, (name,))[name]
    assert named.tuned
    for _ in range(20):
        assert TABLE[name].low <= sample_prior(named, Random(1)) <= TABLE[name].high
    first, _ = initial(chosen(table, (name,)), 2)
    if name == "entropy_coef":  # bounds reach 0, so that member 0 may begin there
        assert (named.low, first[name]) == (0.0, 0.0)
        assert perturb({name: named}).mutate({name: 0.0}, Random(0))[name] > 0
    else:
        assert TABLE[name].low <= first[name] <= TABLE[name].high


@pytest.mark.parametrize(
    ("entry", "scale"),
    [
        ("entropy_coef=0:0.1", "linear"),
        ("gamma=0.9:1", "linear"),
        ("gamma=0.9:0.99", "one_minus"),
        ("gamma=0.9:0.99:linear", "linear"),
        ("unroll=2:30:log", "log"),
        ("shaping.life_lost=-1:1", "linear"),
        ("clip_value=0.1:2:one-minus", None),
    ],
)
def test_scales_of_ranges(entry, scale):
    if scale is None:
        with pytest.raises(ConfigError, match=r"clip_value=0.1:2:one-minus .*below 1"):
            chosen(TABLE, (entry,))
        return
    name = entry.partition("=")[0]
    spec = chosen(TABLE, (entry,))[name]
    assert spec.start.scale == scale
    assert spec.scale == TABLE[name].scale  # mutations move on the value's own
    rng = Random(0)
    draws = [sample_prior(spec, rng) for _ in range(300)]
    assert all(spec.clamp(x) == x for x in draws)
    middle = {"linear": (spec.low + spec.high) / 2, "one_minus": 1 - 10**-1.5, "log": 8}[scale]
    assert 110 < sum(x < middle for x in draws) < 190
    perturb({name: spec}).mutate({name: draws[0]}, rng)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("learning_rate=", "LOW:HIGH"),
        ("learning_rate=nan:1e-3", "LOW:HIGH"),
        ("learning_rate=1e-5:1e-3:log:x", "LOW:HIGH"),
        ("learning_rate=-1:1e-3", r"0\.\.1"),
        ("gamma=0.9:1.1", r"0\.\.1"),
    ],
)
def test_entries_that_cannot_be_used(entry, said):
    with pytest.raises(ConfigError, match=f"--pbt.tune {entry} .*{said}"):
        chosen(TABLE, (entry,))


@pytest.mark.parametrize(
    ("tune", "prior", "said"),
    [
        ((), "gamma=0.9:0.99", "gamma .*tuned"),
        (("gamma",), "gamma=0.9,1.1", "within 0..1"),
        (("gamma",), "gamma=0.9,x", "A,B,C"),
        (("gamma=0.9:0.99",), "gamma=0.8:0.95", "within --pbt.tune gamma=0.9:0.99"),
    ],
)
def test_priors_that_cannot_be_used(tune, prior, said):
    with pytest.raises(ConfigError, match=f"--pbt.prior .*{said}"):
        chosen(TABLE, tune, (prior,))


@pytest.mark.parametrize(
    "given", [("shaping.bonus=1:10:int",), ("shaping.bonus=1:10", "shaping.bonus=2:9:int")]
)
def test_mutations_keep_a_value_with_the_scale_int_whole(given):
    spec = chosen(TABLE, given[:1], given[1:])["shaping.bonus"]
    explore, rng = perturb({spec.name: spec}), Random(0)
    assert all(explore.mutate({spec.name: 4.0}, rng)[spec.name].is_integer() for _ in range(20))


def test_the_unroll_never_exceeds_the_rollout():
    config = changed(Config(env="toy/identity"), {"learner.rollout": 16})
    with pytest.raises(ConfigError, match=r"unroll=5:50 .*1\.\.16"):
        chosen(value_table(config, {}), ("unroll=5:50",))


@pytest.mark.parametrize(
    ("algo", "tuned"),
    [
        ("appo", "clip_ratio clip_value entropy_coef learning_rate max_grad_norm value_coef"),
        ("a3c", "entropy_coef learning_rate max_grad_norm value_coef"),
        ("unreal", "entropy_coef learning_rate max_grad_norm value_coef"),
        ("fun", "entropy_coef learning_rate max_grad_norm value_coef"),
    ],
)
def test_what_an_algorithm_does_not_read_is_not_tuned_by_default(algo, tuned):
    table = chosen(value_table(Config(env="toy/identity", algo=algo), {}), ())
    assert sorted(name for name, spec in table.items() if spec.tuned) == tuned.split()
