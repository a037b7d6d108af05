"""Tests for objectives over tasks: rounds, the cap, equal windows for all members, and the displays."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pbt_rl.actors.messages import Episode, LearnerReport
from pbt_rl.controllers.objectives import ObjectiveWindow, mean, spread
from pbt_rl.envs.base import ActionSpec, ArraySpec, EnvSpec, private_step_arrays
from pbt_rl.population.population import Population

TASKS = ("near", "far")


def window(*episodes, size=10, cap=None, tasks=2):
    w = ObjectiveWindow(tasks, size, cap)
    for task, score in episodes:
        w.add(task, score, score * 10)
    return w


def test_a_round_is_an_episode_of_every_task_and_the_newest_count():
    w = window((0, 1.0), (0, 2.0), (0, 3.0), (1, 10.0))
    assert (w.rounds, w.objectives()) == (1, (6.5,))
    w.add(1, 20.0, 0.0)
    assert (w.rounds, w.objectives()) == (2, (6.0, 11.5))
    assert w.objectives(1) == (11.5,)
    assert window((0, 1.0), (0, 2.0)).objectives() == ()
    assert w.of_task(0) == (2.0, 20.0, 3)
    w.clear()
    assert (w.rounds, w.objectives(), w.of_task(0)) == (0, (), None)


def test_the_window_is_counted_in_rounds():
    w = window(*((t, float(i)) for i in range(5) for t in (0, 1)), size=2)
    assert (w.rounds, w.objectives()) == (5, (3.0, 4.0))


def test_without_tasks_a_round_is_an_episode():
    w = window((0, 1.0), (0, math.inf), (0, 3.0), tasks=1, size=2)
    assert w.objectives() == (math.inf, 3.0)


scores = st.lists(st.floats(-300, 300), min_size=3, max_size=3)


@given(scores, scores, scores, st.floats(-100, 200))
def test_the_mean_of_rounds_is_the_mean_of_capped_means(a, b, c, cap):
    w = window(*((t, x) for t, xs in enumerate((a, b, c)) for x in xs), cap=cap, tasks=3)
    expected = sum(min(sum(xs) / 3, cap) for xs in (a, b, c)) / 3
    assert sum(w.objectives()) / 3 == pytest.approx(expected, abs=1e-9)


def test_a_cap_lowers_rounds_together_and_leaves_what_is_not_finite_to_be_seen():
    assert window((0, 100.0), (0, 300.0), cap=100.0, tasks=1).objectives() == (0.0, 200.0)
    assert not math.isfinite(window((0, math.inf), (1, 1.0), cap=100.0).objectives()[0])
    assert math.isnan(window((0, math.nan), (1, 1.0), cap=100.0).objectives()[0])


def population(members=3):
    return Population([{}] * members, 10, 4, tasks=TASKS, task_cap=100.0, min_rounds=2)


def take(p, *episodes):
    p.take(
        "a",
        LearnerReport("cpu", [], [Episode(m, 0, x, x * 10, x, 5, task=t) for m, t, x in episodes], {}, 0, 0),
    )


def test_all_members_are_compared_over_equally_many_rounds():
    p = population()
    take(p, *((0, t, x) for t in (0, 1) for x in (0.0, 10.0, 20.0)))  # three rounds
    take(p, *((1, t, x) for t in (0, 1) for x in (0.0, 10.0)))  # two
    take(p, (2, 0, 50.0), (2, 1, 50.0), (2, 0, 60.0))  # one: too few to be compared
    seen = p.report().members
    assert [m.objectives for m in seen] == [(10.0, 20.0), (0.0, 10.0), (55.0,)]
    assert [m.episodes for m in seen] == [3, 2, 1]
    assert p.members[2].episodes == 3


def test_no_objective_before_every_task_has_an_episode():
    p = population()
    take(p, (0, 0, 500.0))
    assert p.report().members[0].objectives == ()
    assert p.views()[0].objective is None
    assert p.members[0].best is None
    take(p, (0, 1, 20.0))
    assert p.views()[0].objective == 60.0
    assert p.members[0].best is None, "one round is too few to be compared by"
    take(p, (0, 0, 500.0), (0, 1, 20.0))
    assert p.members[0].best == 60.0


def test_steps_hold_their_task_only_if_there_are_tasks():
    spec = EnvSpec("e", {"obs": ArraySpec((1,), "float32")}, ActionSpec(nvec=(2,)))
    assert private_step_arrays(spec, 3).task is None
    many = EnvSpec("e", spec.obs, spec.action, tasks=TASKS)
    assert private_step_arrays(many, 3).task.tolist() == [0, 0, 0]


def test_numbers_that_no_sum_can_hold_or_that_are_none_have_no_mean_and_no_spread():
    largest = 1.7e308
    assert spread([1.0, 3.0]) == 1.0
    assert math.isnan(mean([largest, largest]))
    assert mean([math.inf, 1.0]) == math.inf
    assert math.isnan(mean([math.inf, -math.inf]))
    assert math.isnan(spread([math.inf, 1.0]))
    assert math.isnan(spread([math.nan, 1.0]))
    w = window((0, largest), (0, largest), tasks=1)
    assert math.isnan(w.of_task(0)[0])
    p = population()
    take(p, (0, 0, largest), (0, 0, largest), (0, 1, 1.0))
    assert math.isnan(p.views()[0].tasks["near"].objective)
