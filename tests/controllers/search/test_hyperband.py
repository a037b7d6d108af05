from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pbt_rl.controllers.decisions import Restart, Stop
from pbt_rl.controllers.search.brackets import Hyperband, hyperband_table
from tests.helpers.populations import member, report
from tests.helpers.searches import TABLE, any_score
from tests.helpers.simulation import simulate


def test_the_brackets_of_table_2():
    assert hyperband_table(3, 27) == [
        [(27, 1), (9, 3), (3, 9), (1, 27)],
        [(9, 3), (3, 9), (1, 27)],
        [(6, 9), (2, 27)],
        [(4, 27)],
    ]
    assert sum(rungs[0][0] for rungs in hyperband_table()) == 46


def test_a_run_of_46_does_exactly_that_share_of_the_work():
    sim = simulate(Hyperband(TABLE, 0, phase_frames=100), 46, 46, speed=lambda *_: 100.0, score=any_score)
    assert sim.completion(2700) == pytest.approx(0.3261, abs=5e-5)
    assert sorted(sim.frames, reverse=True)[:3] == [
        4000,
        3900,
        3600,
    ]  # 1 + 3 + 9 + 27 units, 3 + 9 + 27, 9 + 27
    assert sim.total_time == 40
    resumed = simulate(
        Hyperband(TABLE, 0, phase_frames=100, restart=False), 46, 46, speed=lambda *_: 100.0, score=any_score
    )
    assert resumed.completion(2700) == pytest.approx((81 + 63 + 90 + 108) / (46 * 27))
    assert max(resumed.frames) == 2700


def test_the_best_third_of_a_bracket_begins_again():
    controller = Hyperband(TABLE, 0, phase_frames=10, resource=3)  # (3, 1) (1, 3) / (2, 3)
    values = controller.initial(5)
    first = controller.observe(report(0, [member(i, (), frames=0) for i in range(5)]))
    assert [d.until_frames for d in first] == [10, 10, 10, 30, 30]
    at_10 = [member(i, (s,), frames=10, values=values[i]) for i, s in enumerate([1.0, 3.0, 2.0, 0.0, 0.0])]
    decisions = controller.observe(report(10, at_10))
    assert [type(d) for d in decisions] == [Stop, Restart, Stop]
    assert (decisions[1].values, decisions[1].until_frames) == (values[1], 10 + 30)
    again = member(1, (5.0,), frames=39, generation=1, values=values[1])
    assert controller.observe(report(20, [again, *at_10[3:]])) == []
    again = member(1, (5.0,), frames=40, generation=1, values=values[1])
    assert controller.observe(report(20, [again, *at_10[3:]])) == [
        Stop(1, "completed: score 5", completed=True, score=5.0)
    ]


def test_more_members_start_over_and_a_small_bracket_is_divided_alike():
    brackets = Hyperband(TABLE, 0, phase_frames=10).brackets(46 + 27 + 4)
    assert [len(b.members) for b in brackets] == [27, 9, 6, 4, 27, 4]
    assert [r.members for r in brackets[-1].rungs] == [4, 1, 1]
    assert [r.frames for r in brackets[-1].rungs] == [30, 90, 270]
    assert [i for b in brackets for i in b.members] == list(range(77))


@given(st.integers(2, 5), st.integers(1, 100))
def test_brackets_of_any_size(eta, resource):
    table = hyperband_table(eta, resource)
    for rungs in table:
        assert rungs[-1][1] == resource
        for (n, units), (fewer, more) in pairwise(rungs):
            assert n > fewer >= 1
            assert units <= more <= resource
    assert [len(rungs) for rungs in table] == list(range(len(table), 0, -1))
    units_run = sum(n * units for rungs in table for n, units in rungs)
    assert (
        0 < units_run <= 1.1 * resource * sum(rungs[0][0] for rungs in table)
    )  # a rung may cost a little more
