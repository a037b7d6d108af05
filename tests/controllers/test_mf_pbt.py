import json
import math
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pbt_rl.config import Hypers
from pbt_rl.controllers.decisions import Continue, Replace
from pbt_rl.controllers.exploit import Gap, Truncation
from pbt_rl.controllers.hypers import hyper_table
from pbt_rl.controllers.mf_pbt import Groups, MfPbt
from pbt_rl.controllers.options import PbtConfig
from pbt_rl.controllers.state import restore_state, save_state
from tests.helpers.populations import OFTEN, build, member, report

TABLE = hyper_table(Hypers())
PBT = replace(OFTEN, replace_fraction=0.25, frequencies=(1, 2, 4))


def groups(frequencies=(1, 2, 4), members=12, migrant_hypers="own", rounds=0):
    rule = Groups(frequencies, Truncation(0.25, Gap(0.0, 0.0), others_mutate=False), migrant_hypers)
    rule.populate(members)
    for _ in range(rounds):
        rule.select([member(0), member(1)], Random(0))
    return rule


def of(scores):
    return [member(i, (float(s),), values={"x": float(i)}) for i, s in enumerate(scores)]


#            fast, every round   every 2nd round   every 4th round
SCORES = [40, 30, 20, 10, 41, 31, 21, 11, 42, 32, 22, 12]


@pytest.mark.parametrize(("members", "frequencies"), [(8, (1, 10)), (16, (1, 10)), (17, (1, 10, 25, 50))])
def test_without_frequencies_the_groups_fit_the_population(members, frequencies):
    usual = build(replace(PBT, frequencies=()), TABLE, 0, members, "mf-pbt")
    assert usual.frequencies == frequencies
    given = build(replace(PBT, frequencies=(2, 3)), TABLE, 0, members, "mf-pbt")
    assert given.frequencies == (2, 3)


def test_members_are_dealt_out_in_equal_blocks():
    assert [groups().group(i) for i in range(12)] == [0] * 4 + [1] * 4 + [2] * 4
    uneven = [groups(members=10).group(i) for i in range(10)]
    assert sorted(uneven) == uneven
    assert {uneven.count(g) for g in range(3)} == {3, 4}


@pytest.mark.parametrize(("past", "due"), [(0, {0}), (1, {0, 1}), (2, {0}), (3, {0, 1, 2})])
def test_a_group_is_compared_every_so_many_rounds(past, due):
    rule = groups(rounds=past)
    selections = rule.select(of(SCORES), Random(0))
    changed = {rule.group(f.member) for f in selections if f.donor is not None}
    assert changed == due
    assert len(selections) == 12
    assert all("once in" in f.reason for f in selections if rule.group(f.member) not in due)


def test_the_worst_quarter_copies_the_best_of_its_own_group_and_mutates():
    selections = groups(rounds=3).select(of(SCORES), Random(0))
    for worst, best in ((3, 0), (7, 4), (11, 8)):
        assert (selections[worst].donor, selections[worst].copy, selections[worst].mutate) == (
            best,
            "both",
            True,
        )


def test_a_migrant_of_a_slower_group_brings_its_values_and_of_a_faster_one_its_weights_only():
    selections = groups(rounds=3).select(of(SCORES), Random(0))
    slower = selections[2]  # the third quarter of the fastest group is offered the best of all others: 8
    assert (slower.donor, slower.copy, slower.base, slower.mutate) == (8, "both", None, False)
    faster = selections[10]  # the slowest group is offered 4
    assert (faster.donor, faster.copy, faster.base, faster.mutate) == (4, "weights", None, False)
    assert selections[6].donor == 8
    assert selections[6].copy == "both"
    assert all(selections[i].donor is None for i in (0, 1, 4, 5, 8, 9)), "the better half stays"


def test_the_authors_source_gives_the_values_of_the_groups_best():
    selections = groups(rounds=3, migrant_hypers="best").select(of(SCORES), Random(0))
    assert selections[10].base == {"x": 8.0}
    assert selections[2].base is None


def test_a_migrant_must_be_better_finite_and_comes_once():
    same = groups(rounds=3).select(of([1.0] * 12), Random(0))
    assert all(f.donor is None for f in same)
    broken = [1, 1, math.nan, math.nan, math.nan, 1, 1, 1, math.inf, 1, 1, 1]
    selections = groups(rounds=3).select(of(broken), Random(0))
    assert all(f.donor is None or broken[f.donor] == 1 for f in selections)
    big = groups((1, 2), members=16)
    selections = big.select(of([8, 7, 6, 5, 4, 3, 2, 1, 90, 80, 70, 60, 50, 40, 30, 20]), Random(0))
    assert [selections[i].donor for i in (4, 5)] == [8, 9]


def test_what_is_offered_to_the_third_quarter_comes_before_a_copy_inside():
    """Of a group of four the default share of copies, 0.3, is two members: the third quarter would never migrate."""
    rule = Groups((1, 2), Truncation(0.3, Gap(0.0, 0.0), others_mutate=False), "own")
    rule.populate(8)
    selections = rule.select(of([4, 3, 2, 1, 14, 13, 12, 11]), Random(0))
    assert [s.donor for s in selections[:4]] == [None, None, 4, 0]


def test_the_only_one_of_its_group_that_can_be_compared_stays():
    alone = [member(0, (5.0,)), *(member(i, (float(i),)) for i in range(10, 14))]
    rule = groups((1, 2), members=20)
    assert rule.select(alone, Random(0))[0].donor is None


def test_a_decision_goes_on_from_the_right_values():
    controller = build(PBT, TABLE, 0, 12, "mf-pbt")
    values = controller.initial(12)
    for clock in (100, 200, 300, 400):
        members = [member(i, (s,), values=values[i]) for i, s in enumerate(SCORES)]
        decisions = controller.observe(report(clock, members))
        assert len(decisions) == 12
        if clock == 100:
            assert all(isinstance(d, Continue) for d in decisions[4:])
    assert isinstance(controller, MfPbt)
    by_weights, with_values = decisions[10], decisions[2]
    assert isinstance(by_weights, Replace)
    assert (by_weights.donor, by_weights.copy, by_weights.values) == (4, "weights", values[10])
    assert (with_values.donor, with_values.copy, with_values.values) == (8, "both", values[8])


@settings(max_examples=20)
@given(st.integers(0, 9999), st.sampled_from(["truncation", "top-middle-bottom", "quantile", "impala"]))
def test_it_replays_and_copies_only_what_is_better(seed, exploit):
    pbt = PbtConfig(period_frames=100, start_frames=0, min_episodes=1, exploit=exploit, frequencies=(1, 3))
    controller, other = build(pbt, TABLE, 0, 10, "mf-pbt"), build(pbt, TABLE, 9, 10, "mf-pbt")
    rng = Random(seed)
    values = controller.initial(10)
    generations = [0] * 10
    for clock in range(100, 900, 100):
        scores = [rng.choice([math.nan, *[rng.gauss(0, 1)] * 9]) for _ in range(10)]
        members = [
            member(i, (s,), values=values[i], generation=generations[i])
            for i, s in enumerate(scores)
            if rng.random() < 0.9
        ]
        restore_state(other, json.loads(json.dumps(save_state(controller))))
        decisions = controller.observe(report(clock, members))
        assert other.observe(report(clock, members)) == decisions
        for d in decisions:
            if isinstance(d, Replace) and d.donor_generation is None:
                assert not scores[d.member] >= scores[d.donor]
                assert math.isfinite(scores[d.donor])
            if not isinstance(d, Continue):
                values[d.member] = d.values
                generations[d.member] += 1
