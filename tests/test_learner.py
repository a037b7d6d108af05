"""A learner among actors that are not equally fast."""

import pytest

from pbt_rl.cli import parse_train
from pbt_rl.fleet import InlineFleet
from pbt_rl.run import Facts
from pbt_rl.topology import Machine


@pytest.fixture(params=["appo", "a3c"])
def fleet(request):
    options = {
        "env": "toy/identity",
        "mode": "sync",
        "algo": request.param,
        "num-policies": 2,
        "actors": 2,
        "units-per-actor": 1,
        "learner.rollout": 8,
        "hypers.unroll": 8,
        "learner.batch": 64,
        "learner.minibatches": 1,
        "learner.epochs": 1,
    }
    config, _ = parse_train([f"--{name}={value}" for name, value in options.items()])
    facts = Facts.find(config, Machine(2, 0))
    values = [{name: spec.default for name, spec in facts.table.items()}] * 2
    fleet = InlineFleet(config, facts.options, facts.spec, facts.plan, values)
    yield fleet
    fleet.close()


def test_sync_units_that_are_ahead_rest_until_the_batch_is_whole(fleet):
    learner, (fast, slow) = fleet._learner, fleet._actors
    whole = learner._setup.plan.units_per_batch
    for turn in range(20):
        fast.turn()
        learner.turn()
        if turn == 9:
            slow.turn()
    resting = learner.sampler.units[0]
    assert (learner.trainer.tallies.updates[0] == 0) == (whole == 2)
    assert (resting.taken == 9) == (whole == 2), "8 steps and the observation after them"
    for _ in range(20):
        fast.turn()
        slow.turn()
        learner.turn()
    assert learner.trainer.tallies.updates[0] >= 2
    assert learner.trainer.tallies.lag_max == 0 or whole == 1
