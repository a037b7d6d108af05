"""A point on a line with two reward terms, of the shape of a `ManagerBasedRLEnv`."""

from types import SimpleNamespace

import gymnasium
import torch


class RewardManager:
    """Weights, steps of time and terms as Isaac Lab computes them."""

    def __init__(self, env, **terms):
        self._env, self._term_names = env, list(terms)
        self._term_cfgs = [SimpleNamespace(func=f, weight=w, params={}) for f, w in terms.values()]

    @property
    def active_terms(self):
        return self._term_names

    def compute(self, dt):
        total = torch.zeros(self._env.num_envs)
        for config in self._term_cfgs:
            if config.weight == 0.0:
                continue
            total += config.func(self._env, **config.params) * config.weight * dt
        return total


class Point(gymnasium.Env):
    step_dt, max_episode_length = 0.5, 20

    def __init__(self, cfg, render_mode=None, **_):
        self.cfg, self.num_envs, self.device = cfg, cfg.scene.num_envs, cfg.sim.device
        self.random = torch.Generator().manual_seed(cfg.seed)
        self.action_manager = SimpleNamespace(total_action_dim=1)
        self.observation_manager = SimpleNamespace(compute=self.see)
        self.reward_manager = RewardManager(
            self, near=(lambda env: -env.at.abs(), 2.0), effort=(lambda env: env.push.square(), -0.1)
        )
        self.steps = torch.zeros(self.num_envs)

    def see(self):
        return {"policy": self.at[:, None].clone(), "critic": torch.stack((self.at, self.steps), 1)}

    def begin(self):
        return torch.rand(self.num_envs, generator=self.random) * 2 - 1

    def reset(self, *, seed=None, options=None):
        self.at = self.begin()
        return self.see(), {}

    def step(self, action):
        self.push = action[:, 0]
        self.at, self.steps = self.at + 0.1 * self.push, self.steps + 1
        reward = self.reward_manager.compute(dt=self.step_dt)
        terminated, truncated = self.at.abs() > 3, self.steps >= self.max_episode_length
        ended = terminated | truncated
        self.at, self.steps = torch.where(ended, self.begin(), self.at), torch.where(ended, 0, self.steps)
        return self.see(), reward, terminated, truncated & ~terminated, {"log": {}}
