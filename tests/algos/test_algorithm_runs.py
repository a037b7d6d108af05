"""Runs of algorithms with more than a loss: the same bits under one seed, replacements, going on, a policy to play."""

import json

import numpy as np
import pytest

from pbt_rl.config.command import parse_train
from pbt_rl.envs.lookup import probe
from pbt_rl.play.policy import load_policy
from pbt_rl.report.audit import audit
from tests.helpers.serial import SMALL, run, weights


@pytest.mark.long
@pytest.mark.parametrize(
    ("algo", "rollout", "tuned"), [("fun", 25, "intrinsic_coef"), ("unreal", 10, "entropy_coef")]
)
def test_a_serial_run_is_the_same_every_time_and_goes_on(tmp_path, algo, rollout, tuned):
    unrolled = (
        {"learner.rollout": rollout, "hypers.unroll": 25} if algo == "fun" else {"learner.rollout": rollout}
    )
    options = SMALL | {"algo": algo, "pbt.tune": tuned, "pbt.replace_errors": 0} | unrolled
    one, same = (run(tmp_path, name, options) for name in "ab")
    assert json.loads((one / "summary.json").read_text())["replacements"] > 0
    assert weights(one) == weights(same)
    assert audit(one) == 0
    run(tmp_path, "a", options, train_for_frames=900)
    frames = [m["frames"] for m in json.loads((one / "summary.json").read_text())["members"]]
    assert min(frames) >= 900
    policy = load_policy(one)
    spec = probe(SMALL["env"], parse_train([f"--env={SMALL['env']}", f"--algo={algo}"]).env_options)
    action, state = policy({name: np.zeros(array.shape, array.dtype) for name, array in spec.obs.items()})
    assert 0 <= int(action) < 4
    assert state is not None
