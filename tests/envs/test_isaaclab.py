"""isaaclab/ with a fake of Isaac Lab: start, reward terms, and the error if it is not installed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

STANDIN = Path(__file__).parent.parent / "isaaclab_standin"
ROOT = STANDIN.parent.parent


def told(program):
    """Run a program that prints JSON in a process with the fake, which allows one simulator per process."""
    path = os.pathsep.join((str(ROOT), str(STANDIN)))
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_simulator_is_started_first_and_terms_become_shaping():
    found = told("""
import json, torch
from pbt_rl.envs import lookup
from pbt_rl.envs.lookup import DEFAULTS, EnvOptions
options = EnvOptions(keywords={"objective": "near"})
env = lookup.make_simulator("isaaclab/Isaac-Point-v0", 4, 3, "cpu", options)
env.attach(torch.tensor([[2.0, -0.1], [4.0, 0.0]]))
at = env.reset()["obs"][:, 0].clone()
step = env.step(torch.ones(4, 1))
from isaaclab.app import started
spec = env.spec
print(json.dumps({
    "names": lookup.FAMILIES["isaaclab"].load().names(), "started": started, "shaping": spec.shaping,
    "critic": spec.critic, "obs": {name: one.shape for name, one in spec.obs.items()}, "at": at.tolist(),
    "reward": step.reward.tolist(), "objective": step.objective.tolist()}))
""")
    assert found["names"] == ["Isaac-Point-v0"]
    assert found["started"] == [{"headless": True, "device": "cpu", "enable_cameras": False}]
    assert found["shaping"] == {"near": 2.0, "effort": -0.1}
    assert (found["critic"], found["obs"]) == (["critic"], {"obs": [1], "critic": [2]})
    away = [abs(at + 0.1) for at in found["at"]]
    weighted = [2 * -away[0] - 0.1, 2 * -away[1] - 0.1, 4 * -away[2], 4 * -away[3]]
    assert found["reward"] == pytest.approx([0.5 * x for x in weighted], abs=1e-5)
    assert found["objective"] == pytest.approx([0.5 * -x for x in away], abs=1e-5)


def test_an_unknown_task_names_those_that_there_are():
    text = told("""
import json
from pbt_rl.envs import lookup
from pbt_rl.errors import EnvSetupError
try:
    lookup.make_simulator("isaaclab/Isaac-Nothing-v0", 4, 3, "cpu", lookup.DEFAULTS)
except EnvSetupError as error:
    print(json.dumps(str(error)))
""")
    assert text.startswith("isaaclab/Isaac-Nothing-v0 ")
    assert text.endswith(": Isaac-Point-v0")
