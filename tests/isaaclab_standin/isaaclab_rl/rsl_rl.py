import torch


class RslRlVecEnvWrapper:
    """As Isaac Lab's, but for its base class and TensorDict, which are those of RSL-RL and tensordict."""

    def __init__(self, env, clip_actions=None):
        self.env, self.clip_actions = env, clip_actions
        self.num_envs, self.device = self.unwrapped.num_envs, self.unwrapped.device
        self.max_episode_length = self.unwrapped.max_episode_length
        self.num_actions = self.unwrapped.action_manager.total_action_dim
        self.env.reset()

    @property
    def unwrapped(self):
        return self.env.unwrapped

    def get_observations(self):
        return self.unwrapped.observation_manager.compute()

    def step(self, actions):
        if self.clip_actions is not None:
            actions = torch.clamp(actions, -self.clip_actions, self.clip_actions)
        obs, reward, terminated, truncated, extras = self.env.step(actions)
        if not self.unwrapped.cfg.is_finite_horizon:
            extras["time_outs"] = truncated
        return obs, reward, (terminated | truncated).to(torch.long), extras

    def close(self):
        return self.env.close()
