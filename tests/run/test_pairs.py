"""Every pair of family and algorithm starts with its own defaults, in every mode."""

import itertools
import json

import pytest

from pbt_rl.algos import lookup as algorithms
from pbt_rl.algos.a3c import A3C
from pbt_rl.algos.appo import APPO
from pbt_rl.config.command import parse_train
from pbt_rl.envs.lookup import FAMILIES, EnvOptions, probe
from pbt_rl.errors import ConfigError
from pbt_rl.plan import Machine, make_plan
from pbt_rl.run.train import train

EXAMPLES = {"gym": ("gym/CartPole-v1", "gym/Pendulum-v1"), "atari": ("atari/pong",), "toy": ("toy/identity",)}
EXAMPLES |= {"pettingzoo": ("pettingzoo/classic/tictactoe_v3",)}
OF_IMAGES = ("unreal",)
"""Algorithms that learn from images only."""
MODES = ("async", "sync", "serial")
HERE = {
    name: EXAMPLES.get(name, (family.example,)) for name, family in FAMILIES.items() if not family.missing
}


@pytest.mark.long
@pytest.mark.parametrize("env", [env for envs in HERE.values() for env in envs])
def test_every_pair_can_be_planned_with_its_defaults(env):
    spec = None
    for algo, mode, members in itertools.product(algorithms.names(), MODES, (1, 4, 20)):
        words = [f"--env={env}", f"--algo={algo}", f"--mode={mode}", f"--num-policies={members}"]
        config = parse_train(words)
        spec = spec or probe(config.env, config.env_options)
        for machine in (Machine(2, 0), Machine(64, 1)):
            (pack,) = make_plan(config, machine, spec.agents).packs
            assert config.learner.minibatches <= pack.vector_envs_per_batch * pack.envs_per_policy


def started(out, env, algo, mode):
    words = "--num-policies=2 --actors=1 --train-for-frames=700 --name=x --devices=cpu --no-figures"
    own = (f"--env={env}", f"--algo={algo}", f"--mode={mode}", f"--out={out}", "--pbt.start-frames=200")
    assert train(parse_train([*words.split(), *own])) == 0
    return json.loads((out / "x" / "summary.json").read_text())["ended"]


def test_a_pair_trains(tmp_path):
    assert started(tmp_path, "gym/Pendulum-v1", "a3c", "serial") == "frames"


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("algo", algorithms.names())
@pytest.mark.parametrize("env", [envs[0] for envs in HERE.values()])
def test_every_pair_trains(tmp_path, env, algo, mode):
    if algo in OF_IMAGES and not sees_images(env):
        with pytest.raises(ConfigError, match=r"'unreal' .*image"):
            started(tmp_path, env, algo, mode)
    else:
        assert started(tmp_path, env, algo, mode) == "frames"


def sees_images(env):
    arrays = probe(env, EnvOptions()).obs.values()
    return any(array.dtype == "uint8" and len(array.shape) >= 2 for array in arrays)


def test_an_algorithm_lies_over_the_environment_and_the_user_over_both():
    config = parse_train(["--env=atari/pong", "--algo=a3c", "--learner.rollout=7"])
    learner = config.learner
    assert (learner.minibatches, learner.epochs, config.hypers.unroll, learner.rollout) == (1, 1, 5, 7)
    usual = parse_train(["--env=atari/pong"]).hypers.learning_rate
    assert config.hypers.learning_rate == pytest.approx(3 * usual)
    assert config.model.encoder == "nature"
    assert parse_train(["--env=atari/pong"]).learner.minibatches == 4
    assert A3C.recipe({"model.core": "lstm"})["learner.rollout"] == 20
    assert "hypers.learning_rate" not in A3C.recipe({})
    assert APPO.recipe({}) == {}  # it is not even loaded for it
