"""Runs of FuN: the recipe, and it learns."""

import json

import pytest

from pbt_rl.config.command import parse_train
from tests.helpers.serial import SMALL, run

OPTIONS = SMALL | {
    "algo": "fun",
    "learner.rollout": 25,
    "hypers.unroll": 25,
    "pbt.tune": "intrinsic_coef",
    "pbt.replace_errors": 0,
}


def test_the_recipe_is_the_papers():
    config = parse_train(["--recipe", "fun-atari", "--devices=cpu"])
    assert (config.env, config.algo, config.pbt.objective_episodes) == ("atari/ms_pacman", "fun", 10)
    assert (config.learner.rollout, config.hypers.unroll, config.model.core_size) == (400, 400, 256)
    assert (config.model.encoder, config.model.hidden, config.model.core) == ("a3c", (256,), "none")
    assert (config.hypers.gamma, config.hypers.worker_gamma) == (0.99, 0.95)
    assert [name.partition("=")[0] for name in config.pbt.tune] == [
        "learning_rate",
        "entropy_coef",
        "intrinsic_coef",
    ]


@pytest.mark.long
def test_it_learns_what_needs_memory(tmp_path):
    """toy/memory: a policy without memory earns 0.25 on average. Seen: 0.96 after 65,000 frames."""
    folder = run(
        tmp_path,
        "x",
        OPTIONS,
        env="toy/memory?delay=6",
        num_policies=1,
        envs_per_vector_env=16,
        train_for_frames=60_000,
        **{
            "model.core-size": 32,
            "learner.rollout": 40,
            "hypers.unroll": 40,
            "hypers.learning-rate": 3e-3,
            "learner.threads": 1,
        },
    )
    (member,) = json.loads((folder / "summary.json").read_text())["members"]
    assert member["objective"] > 0.6
