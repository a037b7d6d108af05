"""A learner among actors that are not equally fast."""

import contextlib

import pytest
import torch

from pbt_rl.actors.messages import LearnerSaved, Load, Save
from pbt_rl.config.command import parse_train
from pbt_rl.envs.base import ActionSpec, ArraySpec, EnvSpec
from pbt_rl.learner.build import packings
from pbt_rl.learner.learner import TrainingClock
from pbt_rl.plan import Machine
from pbt_rl.run.memory import Start
from pbt_rl.run.resolved import ResolvedRun
from pbt_rl.run.serial import SerialFleet


def make_fleet(algo, **more):
    options = {
        "env": "toy/identity",
        "mode": "sync",
        "algo": algo,
        "num-policies": 2,
        "actors": 2,
        "vector-envs-per-actor": 1,
        "learner.rollout": 8,
        "hypers.unroll": 8,
        "learner.batch": 64,
        "learner.minibatches": 1,
        "learner.epochs": 1,
    }
    options |= more
    config = parse_train([f"--{name}={value}" for name, value in options.items()])
    facts = ResolvedRun.resolve(config, Machine(2, 0))
    values = [{name: spec.default for name, spec in facts.table.items()}] * 2
    return SerialFleet(facts, Start.fresh(facts.plan, values))


@pytest.fixture(params=["appo", "a3c"])
def fleet(request):
    with contextlib.closing(make_fleet(request.param)) as fleet:
        yield fleet


def test_sync_vector_envs_that_are_ahead_rest_until_the_batch_is_whole(fleet):
    learner, (fast, slow) = fleet.packs[0].learner, fleet.packs[0].actors
    whole = learner._setup.plan.vector_envs_per_batch
    for turn in range(20):
        fast.iterate()
        learner.iterate()
        if turn == 9:
            slow.iterate()
    resting = learner.sampler.vector_envs[0]
    assert (learner.shared.learning.updates[0] == 0) == (whole == 2)
    assert (resting.taken == 9) == (whole == 2), "8 steps and the observation after them"
    for _ in range(20):
        fast.iterate()
        slow.iterate()
        learner.iterate()
    assert learner.shared.learning.updates[0] >= 2
    assert learner.shared.learning.lag_max == 0 or whole == 1


def test_a_linear_rate_falls_with_the_frames_of_each_member():
    schedule = {"learner.lr-schedule": "linear", "train-for-frames": 1000}
    with contextlib.closing(make_fleet("appo", **schedule)) as fleet:
        learner = fleet.packs[0].learner
        learned, sampled = learner.shared.learning, learner.shared.sampling
        own, shares = float(learner.pack.hypers["learning_rate"][0]), []
        while len(shares) < 3:
            for actor in fleet.packs[0].actors:
                actor.iterate()
            learner.sampler.run_inference()
            if learner.trainer.has_batch:
                learner.trainer.learn()
                shares.append(1 - sampled.steps[0] / 1000)
                assert learned.take_means(0)["learning_rate_in_use"] == pytest.approx(own * shares[-1])
                learner.sampler.resume_finished()
        assert 1 > shares[0] > shares[1] > shares[2] > 0
        sampled.steps[0] = 1100
        assert float(learner._learning_rate_factor()[0]) == 0.0


@pytest.mark.parametrize(
    ("search", "frames"),
    [
        ({"controller": "hypertrick", "search.phases": 3}, 1000),
        ({"controller": "hypertrick", "search.phases": 3, "search.phase-frames": 1000}, 3000),
        ({"controller": "hyperband", "search.resource": 9, "search.phase-frames": 1000}, 9000),
        ({"controller": "random", "search.phases": 2, "search.phase-frames": 1000}, 2000),
    ],
)
def test_a_linear_rate_falls_over_the_training_of_a_search(search, frames):
    schedule = {"learner.lr-schedule": "linear", "train-for-frames": 1000, **search}
    with contextlib.closing(make_fleet("appo", **schedule)) as fleet:
        learner = fleet.packs[0].learner
        learner.shared.sampling.steps[:2] = 500, 900
        expected = [1 - 500 / frames, 1 - 900 / frames]
        assert learner._learning_rate_factor().tolist() == pytest.approx(expected)


def test_a_linear_rate_falls_with_the_seconds_of_the_run_if_they_end_first():
    schedule = {"learner.lr-schedule": "linear", "train-for-frames": 1000, "train-for-seconds": 100}
    with contextlib.closing(make_fleet("appo", **schedule)) as fleet:
        learner, now = fleet.packs[0].learner, [50.0]
        learner.clock = TrainingClock(before=20.0, clock=lambda: now[0])
        learner.shared.sampling.steps[:2] = 100, 600
        factors = []
        for trains, at in ((False, 55.0), (True, 60.0), (True, 90.0), (True, 10_090.0)):
            now[0] = at
            learner.clock.tick(trains=trains)
            factors.append(learner._learning_rate_factor().tolist())
        assert factors[:2] == [pytest.approx([0.8, 0.4])] * 2, "emulators are made: no training yet"
        assert factors[2] == pytest.approx([0.5, 0.4])
        assert factors[3] == pytest.approx([0.0, 0.0]), "50 s and a pause, which counts for a minute at most"
        assert learner.clock.seconds == 110.0


def test_the_seconds_of_a_device_simulator_count():
    words = "--env tensors/pendulum --mode sync --num-policies 2 --rows 4 --train-for-seconds 100"
    resolved = ResolvedRun.resolve(parse_train(words.split()), Machine(2, 0))
    values = [{name: spec.default for name, spec in resolved.table.items()}] * 2
    with contextlib.closing(SerialFleet(resolved, Start.fresh(resolved.plan, values))) as fleet:
        learner = fleet.packs[0].learner
        for _ in range(4):
            learner.iterate()
        assert learner.clock.seconds > 0


def test_a_budget_of_seconds_limits_the_frames_that_a_curriculum_expects():
    with contextlib.closing(make_fleet("appo", **{"train-for-seconds": 100})) as fleet:
        learner, table = fleet.packs[0].learner, fleet.packs[0].learner._table
        whole = table.budget_frames.tolist()
        table.frames[:] = 0, 300
        learner.send_report()
        assert table.budget_frames.tolist() == whole, "no time has passed"
        learner.clock.seconds = 25.0
        learner.send_report()
        assert table.budget_frames.tolist() == [1, 1200]


@pytest.mark.parametrize("saved", [False, True])
def test_a_copy_goes_on_where_its_donors_linear_rate_is(saved):
    """A member whose weights were drawn late has a high rate, which is not for the weights that it copies."""
    schedule = {"learner.lr-schedule": "linear", "train-for-frames": 1000}
    with contextlib.closing(make_fleet("appo", **schedule)) as fleet:
        learner = fleet.packs[0].learner
        members, pool = learner.trainer.members, fleet.memory.pool
        values = dict(members._values[1])
        learner.shared.sampling.steps[:2] = 900
        learner.trainer.load(Load(1, 1, 1, values, initialised=(1, 1)))
        assert learner._learning_rate_factor().tolist() == pytest.approx([0.1, 1.0])
        if saved:
            pool.grow(1)
            members.save(Save(0, 0, 0))
            learner.trainer.load(Load(1, 1, 2, values, entry=0))
        else:
            learner.trainer.load(Load(1, 1, 2, values, of_slot=0))
        assert learner._learning_rate_factor().tolist() == pytest.approx([0.1, 0.1])


def test_a_statistic_of_a_users_own_loss_is_reported_by_its_name():
    with contextlib.closing(make_fleet("tests.helpers.third_algorithm:AWR")) as fleet:
        learned = fleet.packs[0].learner.shared.learning
        while learned.updates[0] == 0:
            for actor in fleet.packs[0].actors:
                actor.iterate()
            fleet.packs[0].learner.sampler.run_inference()
            while fleet.packs[0].learner.trainer.has_batch:
                fleet.packs[0].learner.trainer.learn()
        assert learned.take_means(0)["regression_weight"] > 1.0
        assert learned.take_means(0) == {}


def test_in_serial_mode_a_message_of_any_size_passes():
    observations = {"units": ["x" * 4_000_000]}  # of eight rows of Atari
    with contextlib.closing(make_fleet("appo", mode="serial")) as fleet:
        list(fleet.events(0.0))
        fleet.packs[0].learner.send(LearnerSaved(1, observations))
        (event,) = fleet.events(0.0)
        assert event.message.learner == observations
        assert event.message.learner is not observations


@pytest.mark.parametrize(
    ("shape", "dtype", "device", "slots", "options", "packing"),
    [
        ((8,), "float32", "cpu", 16, {"steps": 4095}, "vmap"),
        ((8,), "float32", "cpu", 16, {"steps": 4096}, "loop"),
        ((8,), "float32", "cuda", 16, {"steps": 4096}, "vmap loop"),
        ((8,), "float32", "cpu", 3, {}, "vmap"),
        ((8,), "float32", "cpu", 2, {}, "loop"),
        ((8,), "float32", "cuda", 1, {}, "loop"),
        ((8,), "float32", "cuda", 2, {}, "vmap loop"),
        ((84, 84), "uint8", "cpu", 8, {}, "loop"),
        ((84, 84), "uint8", "cuda", 8, {}, "bmm streams loop vmap"),
        ((84, 84), "uint8", "cuda", 1, {}, "bmm loop"),
        ((84, 84), "uint8", "cuda", 8, {"mode": "serial"}, "bmm"),
        ((84, 84), "uint8", "cpu", 1, {"learner.packing": "vmap"}, "vmap"),
        ((84, 84), "uint8", "cpu", 1, {"learner.packing": "bmm"}, "bmm"),
        ((8,), "float32", "cuda", 4, {"learner.packing": "loop"}, "loop"),
        ((8,), "float32", "cpu", 4, {"model.encoder": "mine:make"}, "loop"),
        ((84, 84), "uint8", "cuda", 4, {"model.encoder": "mine:make"}, "loop"),
    ],
)
def test_how_policies_may_be_computed_depends_on_what_they_see_and_on_the_device(
    shape, dtype, device, slots, options, packing
):
    arguments = [f"--{name}={v}" for name, v in options.items() if name != "steps"]
    config = parse_train(["--env", "toy/identity", *arguments])
    spec = EnvSpec("x", {"obs": ArraySpec(shape, dtype)}, ActionSpec(nvec=(2,)))
    steps = options.get("steps", 1024)
    assert packings(config, torch.device(device), spec, slots, steps) == tuple(packing.split())
