"""That all of it together learns: serial runs of toys with known answers, a few seconds each."""

import json

import pytest

from pbt_rl.config.command import parse_train
from pbt_rl.run.train import train


def objective(out, env, frames, **options):
    """Train one policy; its mean true objective at the end."""
    small = "--mode=serial --name=x --seed=1 --num-policies=1 --actors=1 --pbt.objective-episodes=60"
    words = small.split()
    words += [f"--env={env}", f"--out={out}", f"--train-for-frames={frames}"]
    words += [f"--{n.replace('__', '.').replace('_', '-')}={value}" for n, value in options.items()]
    assert train(parse_train(words)) == 0
    return json.loads((out / "x" / "summary.json").read_text())["members"][0]["objective"]


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_appo_learns_the_identity(tmp_path, precision):
    # A random policy earns 4 of 16.
    assert objective(tmp_path, "toy/identity", 15_000, learner__precision=precision) > 14


def test_a3c_learns_the_identity(tmp_path):
    assert objective(tmp_path, "toy/identity", 25_000, algo="a3c", envs_per_vector_env=32) > 13


def test_an_algorithm_of_ones_own_learns_the_identity(tmp_path):
    algo = "tests.helpers.third_algorithm:AWR"
    assert objective(tmp_path, "toy/identity", 25_000, algo=algo, hypers__learning_rate=1e-3) > 13


@pytest.mark.parametrize("packing", ["loop", "vmap"])
def test_a_masked_task_is_learned_and_no_forbidden_action_is_sent(tmp_path, packing):
    # A random policy that obeys earns 5.6 of 12; one forbidden action would end the run.
    assert objective(tmp_path, "toy/masked", 15_000, learner__packing=packing) > 11


# toy/hybrid: a random policy earns 1.7 of 16; the index alone, with the number at 0, 8.


@pytest.mark.long
def test_actions_with_discrete_and_continuous_parts_are_learned(tmp_path):
    assert objective(tmp_path, "toy/hybrid", 30_000) > 9.5


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [
        {"learner__packing": "vmap"},
        {"model__action_bounds": "tanh", "model__action_std": "state"},
        {"model__critic": "separate", "hypers__kl_coef": 0.3},
    ],
    ids=str,
)
def test_such_actions_are_learned_by_every_kind_of_policy(tmp_path, options):
    assert objective(tmp_path, "toy/hybrid", 40_000, **options) > 9.5


MEMORY = {"hypers__gamma": 0.9, "learner__epochs": 4}


@pytest.mark.long
def test_memory_is_solved_with_two_recurrent_layers_and_a_separate_critic(tmp_path):
    options = {"model__core": "gru", "model__core_layers": 2, "model__critic": "separate"} | MEMORY
    assert objective(tmp_path, "toy/memory?delay=3&size=2", 30_000, **options) > 0.95


def test_memory_is_solved_with_a_recurrent_core(tmp_path):
    score = objective(tmp_path, "toy/memory?delay=3&size=2", 30_000, model__core="gru", **MEMORY)
    assert score > 0.95


def test_memory_is_not_solved_without(tmp_path):
    score = objective(tmp_path, "toy/memory?delay=3&size=2", 30_000, **MEMORY)
    assert 0.3 < score < 0.7, "it can only guess"


@pytest.mark.slow
def test_memory_of_64_steps_is_learned_through_a_whole_rollout(tmp_path):
    """The gradient goes back that far, within rollouts of 132 (docs/lab/agents.md)."""
    long = {"learner__rollout": 132, "hypers__unroll": 132, "learner__batch": 4224, "model__core": "gru"}
    rows = {"vector_envs_per_actor": 1, "envs_per_vector_env": 32, "learner__lr_schedule": "linear"}
    options = MEMORY | long | rows | {"hypers__learning_rate": 1e-3}
    assert objective(tmp_path, "toy/memory?delay=63&size=2", 300_000, **options) > 0.9
