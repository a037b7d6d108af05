"""RSL-RL's own runner on the toy Pendulum of tensors: the peer of one policy in a simulator on the device.

The same rows, networks (64-64 tanh, a critic of its own), rollout of 24, Adam, clips of ratio and value as in the toy's
recipe. Its learning rate is fixed, so that it computes no divergence, and it keeps no log: each would cost it time.
"""

from __future__ import annotations

import contextlib
import io
from typing import Any

import torch
from rsl_rl.env import VecEnv
from rsl_rl.runners import OnPolicyRunner
from tensordict import TensorDict
from torch import Tensor

from pbt_rl.envs import registry

STEPS = 24


class Rows(VecEnv):
    """The toy behind RSL-RL's interface."""

    def __init__(self, rows: int) -> None:
        self._env = registry.make_resident("tensors/pendulum", rows, 0, "cpu", registry.DEFAULTS)
        self._env.attach(torch.tensor([[*self._env.spec.shaping.values()]]))
        self._obs = self._env.reset()["obs"]
        self.num_envs, self.num_actions, self.max_episode_length = rows, 1, 200
        self.device, self.cfg = "cpu", {}
        self.episode_length_buf = torch.zeros(rows, dtype=torch.long)

    def get_observations(self) -> TensorDict:
        """Return what the rows see."""
        return TensorDict({"policy": self._obs}, batch_size=[self.num_envs])

    def step(self, actions: Tensor) -> tuple[TensorDict, Tensor, Tensor, dict[str, Any]]:
        """Advance every row."""
        step = self._env.step(actions.clamp(-2, 2))
        self._obs = step.obs["obs"]
        dones = (step.terminated | step.truncated).long()
        return self.get_observations(), step.reward, dones, {"time_outs": step.truncated}


class RslSide:
    """RSL-RL's runner; `batch` is one of its iterations."""

    def __init__(self, rows: int, epochs: int, minibatches: int) -> None:
        model = {"class_name": "MLPModel", "hidden_dims": [64, 64], "activation": "tanh"}
        normal = {"class_name": "GaussianDistribution", "init_std": 1.0}
        algorithm = {
            "class_name": "PPO",
            "num_learning_epochs": epochs,
            "num_mini_batches": minibatches,
            "schedule": "fixed",
            "gamma": 0.95,
        }
        config = {
            "algorithm": algorithm,
            "actor": model | {"distribution_cfg": normal},
            "critic": model,
            "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
            "num_steps_per_env": STEPS,
            "save_interval": 10**9,
        }
        self.frames = rows * STEPS
        with contextlib.redirect_stdout(io.StringIO()):
            self._runner = OnPolicyRunner(Rows(rows), config, None, "cpu")

    def batch(self) -> None:
        """Act for a rollout and learn from it."""
        with contextlib.redirect_stdout(io.StringIO()):
            self._runner.learn(1)

    def close(self) -> None:
        """Release nothing."""
