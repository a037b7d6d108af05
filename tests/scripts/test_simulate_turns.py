"""Plans beside a GPU reach what their cores allow, in a simulation; and the simulation shows plans that do not."""

from dataclasses import replace

import pytest

from scripts.simulate_turns import MACHINES, STEP, Computer, Shape, planned, simulate

SECONDS = 2.0


@pytest.mark.parametrize("policies", [1, 8, 40])
@pytest.mark.parametrize("name", MACHINES)
def test_plans_reach_nine_tenths_of_the_limit_and_discard_nothing(name, policies):
    machine = MACHINES[name]
    alone = policies == 1 and machine.cores == 64  # the batch that the plan's note names
    shape = planned(machine, policies, *(["--learner.batch=6144"] if alone else []))
    found = simulate(shape, SECONDS)
    assert found.share >= 0.90
    assert found.discarded == 0
    assert found.oldest <= 10, "five eighths of the limit"


def test_of_one_policy_on_64_cores_learning_is_the_limit():
    shape = planned(Computer(64, 1), 1)
    allowed = shape.learning_limit / (shape.cores / STEP)
    assert allowed < 0.4
    assert 0.9 * allowed < simulate(shape, SECONDS).share <= allowed


def test_small_units_on_busy_cores_are_slow():
    assert simulate(Shape(16, 16, 2, 6), SECONDS).share < 0.7
    assert simulate(Shape(16, 15, 2, 6), SECONDS).share > 0.9


def test_rollouts_of_too_many_units_are_discarded():
    shape = Shape(16, 15, 2, 8, rollouts_per_batch=1, buffers=32, updates=4)
    found = simulate(shape, SECONDS)
    assert found.discarded > 0
    assert simulate(replace(shape, rollouts_per_batch=4, buffers=38), SECONDS).discarded == 0


def test_a_batch_prepared_ahead_pays_only_where_learning_is_the_limit():
    enough, full = planned(Computer(16, 1), 1), planned(Computer(64, 1), 1)
    gains = [
        simulate(replace(s, ahead=True), SECONDS).share / simulate(s, SECONDS).share for s in (enough, full)
    ]
    assert gains[0] < 1.02
    assert gains[1] > 1.1


def test_what_is_simulated_is_what_is_planned():
    shape = planned(Computer(16, 1), 8)
    assert (shape.cores, shape.actors, shape.rows, shape.max_lag) == (16, 16, 32, 16)
