import json
import statistics
from dataclasses import asdict, replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from populations import build, member, report, scored

from pbt_rl.errors import ConfigError
from pbt_rl.pbt.config import PbtConfig
from pbt_rl.pbt.controllers import PbtController, StaticController, tuned_specs
from pbt_rl.pbt.decisions import (
    Continue,
    Mutate,
    Replace,
    decision_from_dict,
    decision_to_dict,
    report_from_dict,
)
from pbt_rl.pbt.exploit import Gap, Truncation
from pbt_rl.pbt.explore import Perturb
from pbt_rl.pbt.hypers import Hypers, HyperSpec, hyper_table, shaping_table
from pbt_rl.pbt.ready import Synchronous

TABLE = hyper_table(Hypers()) | shaping_table({"life_lost": -1.0, "bonus": 0.0})
PBT = PbtConfig(period_frames=100, start_frames=0, min_episodes=2, mutation_rate=0.5)


def simulate(controller, rounds, seed=0, num_members=6):
    """Reports as a run would give them; applies the decisions to the values. Yields (report, decisions)."""
    rng = Random(seed)
    values = controller.initial(num_members)
    generations = [0] * num_members
    for step in range(1, rounds + 1):
        members = [
            member(
                i,
                [rng.gauss(i, 3) for _ in range(3)],
                frames=100 * step,
                generation=generations[i],
                values=values[i],
            )
            for i in range(num_members)
        ]
        seen = report(100 * step, members)
        decisions = controller.observe(seen)
        yield seen, decisions
        for d in decisions:
            if not isinstance(d, Continue):
                values[d.member] = d.values
                generations[d.member] += 1


def test_initial_members():
    values = build(PBT, TABLE, seed=1).initial(4)
    assert values[0] == {n: s.default for n, s in TABLE.items()}
    for other in values[1:]:
        for name, spec in TABLE.items():
            assert spec.low <= other[name] <= spec.high
            assert (other[name] != spec.default) == spec.tuned
    assert len({tuple(v.values()) for v in values}) == 4


@settings(max_examples=40)
@given(st.sampled_from(["top-middle-bottom", "truncation"]), st.integers(1, 9), st.integers(0, 1000))
def test_each_ready_member_gets_one_decision_within_bounds(rule, num_members, seed):
    controller = build(replace(PBT, exploit=rule), TABLE, seed)
    for seen, decisions in simulate(controller, 5, seed, num_members):
        ids = [m.member for m in seen.members] if num_members > 1 else []
        assert [d.member for d in decisions] == ids
        for d in decisions:
            if isinstance(d, Continue):
                continue
            assert d.values.keys() == TABLE.keys()
            for name, spec in TABLE.items():
                assert spec.low <= d.values[name] <= spec.high
                assert spec.tuned or d.values[name] == spec.default


def test_a_replacement_goes_on_with_the_donors_values_mutated():
    controller = build(replace(PBT, mutation_rate=1.0), TABLE, seed=0)
    best, worst = controller.initial(2)
    members = [member(0, (9, 9), values=best), member(1, (1, 1), values=worst)]
    keep, copy = controller.observe(report(100, members))
    assert isinstance(keep, Continue)
    assert isinstance(copy, Replace)
    assert (copy.donor, copy.copy) == (0, "both")
    for name, spec in TABLE.items():
        if spec.tuned and best[name]:
            ratio = copy.values[name] / best[name]
            assert 1.1 - 1e-9 <= max(ratio, 1 / ratio) <= 1.5 + 1e-9, "not the donor's value, perturbed once"
    assert "89 % below the donor's 9" in copy.reason
    assert "learning_rate 0.00025 ->" in copy.reason


def test_a_mutation_that_draws_nothing_is_a_continue():
    controller = build(replace(PBT, mutation_rate=0.0), TABLE, seed=0)
    kinds = [type(d) for _, decisions in simulate(controller, 3) for d in decisions]
    assert Mutate not in kinds
    assert Replace in kinds


def test_notes_reach_the_reasons():
    controller = build(PBT, TABLE, seed=0)
    values = controller.initial(3)
    members = [member(i, [i] * n, values=values[i]) for i, n in enumerate((3, 3, 1))]
    decisions = controller.observe(report(500, members))
    assert [d.member for d in decisions] == [0, 1]
    for d in decisions:
        assert d.reason.endswith("compared at 500 frames, due at 100; without 2: fewer than 2 episodes")


def test_a_saved_state_continues_bit_for_bit():
    controller = build(PBT, TABLE, seed=5)
    run = simulate(controller, 8)
    for _ in range(4):
        next(run)
    resumed = build(PBT, TABLE, seed=999)
    resumed.load_state_dict(json.loads(json.dumps(controller.state_dict())))
    for seen, decisions in run:
        assert resumed.observe(seen) == decisions
        assert resumed.state_dict() == controller.state_dict()


@pytest.mark.parametrize(
    ("rule", "changed"), [("top-middle-bottom", [False, True, True]), ("truncation", [False, False, True])]
)
def test_the_two_rules(rule, changed):
    controller = build(replace(PBT, exploit=rule, mutation_rate=1.0), TABLE, seed=0)
    values = controller.initial(3)
    members = [member(i, (9 - 3 * i,) * 2, values=values[i]) for i in range(3)]
    decisions = controller.observe(report(100, members))
    assert [not isinstance(d, Continue) for d in decisions] == changed
    assert isinstance(decisions[2], Replace)


def test_an_empty_answer_leaves_no_state():
    controller = build(PBT, TABLE, seed=0)
    before = json.dumps(controller.state_dict())
    assert controller.observe(report(99, scored([1, 2]))) == []
    assert controller.observe(report(500, [member(0, (1, 1)), member(1, (1,))])) == []
    assert json.dumps(controller.state_dict()) == before


def test_seeds_matter():
    answers = {str([d for _, ds in simulate(build(PBT, TABLE, seed=s), 3) for d in ds]) for s in (0, 0, 1, 2)}
    assert len(answers) == 3


def test_switched_off_all_members_keep_the_defaults():
    controller = build(replace(PBT, enabled=False), TABLE, seed=0)
    assert isinstance(controller, StaticController)
    assert all(decisions == [] for _, decisions in simulate(controller, 5))
    first, *others = controller.initial(3)
    assert first == {n: s.default for n, s in TABLE.items()}
    assert all(o == first and o is not first for o in others)
    controller.load_state_dict(json.loads(json.dumps(controller.state_dict())))


def test_tuned_names():
    assert list(tuned_specs(TABLE, ())) == [n for n, s in TABLE.items() if s.tuned]
    assert list(tuned_specs(TABLE, ("shaping.bonus", "gamma"))) == ["gamma", "shaping.bonus"]
    with pytest.raises(ConfigError, match=r"--pbt.tune learning-rate .*did you mean learning_rate.*gamma"):
        build(replace(PBT, tune=("learning-rate",)), TABLE, seed=0)
    with pytest.raises(ConfigError, match=r"zzz cannot be used: known names are .*shaping.bonus"):
        build(replace(PBT, enabled=False, tune=("zzz",)), TABLE, seed=0)


def test_decisions_and_reports_survive_json():
    for seen, decisions in simulate(build(PBT, TABLE, seed=2), 3):
        for d in decisions:
            assert decision_from_dict(json.loads(json.dumps(decision_to_dict(d)))) == d
        assert report_from_dict(json.loads(json.dumps(asdict(seen)))) == seen


def quadratic(controller, steps=200, step_size=0.02, every=4):
    """Jaderberg et al. 2017, Fig. 2: theta climbs a surrogate of Q that h weighs; the best final Q."""
    controller.initial(2)
    thetas = [(0.9, 0.9), (0.9, 0.9)]
    weights = [{"h0": 1.0, "h1": 0.0}, {"h0": 0.0, "h1": 1.0}]
    score = [0.0, 0.0]
    for step in range(1, steps + 1):
        for i, ((a, b), h) in enumerate(zip(thetas, weights, strict=True)):
            thetas[i] = (a - step_size * 2 * h["h0"] * a, b - step_size * 2 * h["h1"] * b)
            score[i] = 1.2 - thetas[i][0] ** 2 - thetas[i][1] ** 2
        if step % every == 0:
            members = [member(i, (score[i],), frames=step, values=weights[i]) for i in range(2)]
            before = list(thetas)
            for d in controller.observe(report(step, members)):
                if isinstance(d, Replace):
                    thetas[d.member] = before[d.donor]
                if not isinstance(d, Continue):
                    weights[d.member] = d.values
    return max(score)


def quadratic_controller(seed, *, exploit_fraction=0.5, mutation_rate=1.0):
    table = {name: HyperSpec(name, 1.0, 0.0, 1.0, "linear", tuned=True) for name in ("h0", "h1")}
    return PbtController(
        table,
        seed,
        ready=Synchronous(4, 0, 1),
        exploit=Truncation(exploit_fraction, Gap(0.0, 0.0), others_mutate=False),
        explore=Perturb(table, mutation_rate, 1.5, 3.0),
    )


def test_pbt_solves_the_quadratic_that_neither_member_can():
    best = [quadratic(quadratic_controller(seed)) for seed in range(30)]
    assert statistics.median(best) > 1.15
    grid = quadratic(quadratic_controller(0, exploit_fraction=0.0, mutation_rate=0.0))
    assert grid == pytest.approx(0.39, abs=1e-3), "the limit without population-based training, 1.2 - 0.81"
