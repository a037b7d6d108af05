"""Runs of UNREAL: the same bits under one seed, replacements, resuming, and a clear refusal without images."""

import json

import numpy as np
import pytest

from pbt_rl.cli.train import parse_train
from pbt_rl.envs.registry import probe
from pbt_rl.play.policy import load_policy
from tests.helpers.serial import SMALL, run, weights

OPTIONS = SMALL | {
    "algo": "unreal",
    "learner.rollout": 10,
    "pbt.tune": "entropy_coef",
    "pbt.replace_errors": 0,
}


@pytest.mark.long
def test_a_serial_run_is_the_same_every_time_and_goes_on(tmp_path):
    one, same = (run(tmp_path, name, OPTIONS) for name in "ab")
    assert json.loads((one / "summary.json").read_text())["replacements"] > 0
    assert weights(one) == weights(same)
    run(tmp_path, "a", OPTIONS, train_for_frames=900)
    frames = [m["frames"] for m in json.loads((one / "summary.json").read_text())["members"]]
    assert min(frames) >= 900
    policy = load_policy(one)
    spec = probe(
        "toy/treasure?length=10", parse_train([f"--env={SMALL['env']}", "--algo=unreal"])[0].env_options
    )
    action, state = policy({name: np.zeros(array.shape, array.dtype) for name, array in spec.obs.items()})
    assert 0 <= int(action) < 4
    assert state is not None
