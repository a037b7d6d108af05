"""Adapter from an RSL-RL `VecEnv` to a device simulator. The weights of the reward manager become the shaping.

`VecEnv` is RSL-RL's interface to Isaac Lab, mjlab, MuJoCo Playground and Legged Gym. The interface has
`get_observations()` and `step(action) -> observations, reward, dones, extras`. Rows reset in the step that ends their
episode. Types differ between simulators:

    dones                  long, float or bool
    extras["time_outs"]    bool or float, or missing
    observations           dict of observation groups, TensorDict or tensor, or a pair (one of these, extras)

With a reward manager (mjlab, Isaac Lab), this module sets each term's weight to 1 and multiplies the term's value by
the weight of the row's slot. A new weight then takes effect in the next step. The objective is the reward with the
task's default weights, or the reward term or metric that the option `objective` names. The objective never depends on
the tuned weights. Without a reward manager, the spec has no shaping, and the objective is the reward or a metric.

Axes: P slots, R rows, K reward terms, A action components.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from pbt_rl.errors import EnvSetupError

from ..actions import action_spec
from ..base import MOST_STATS, STAT_NAME_BYTES, ArraySpec, EnvSpec
from ..simulators import SimulatorStep

ACTOR_GROUPS = ("actor", "policy", "obs")
"""Names of RSL-RL's observation groups for the policy. The first existing group is used."""
CRITIC_GROUP = "critic"
"""Name of RSL-RL's observation group for the critic. The critic also receives the policy's observation group."""


class Terms:
    """Reward terms of a reward manager, with separate weights for each slot.

    defaults: term -> the task's weight.
    scale: factor that the manager applies to all terms. Either the duration of a step in seconds, or 1.
    """

    def __init__(self, env_id: str, manager: Any, rows: int, step_seconds: float) -> None:
        self._id, self._rows = env_id, rows
        self._configs = dict(zip(manager.active_terms, manager._term_cfgs, strict=True))  # noqa: SLF001
        self.defaults = {name: float(config.weight) for name, config in self._configs.items()}
        self.scale = step_seconds if getattr(manager, "_scale_by_dt", True) else 1.0
        self.values: dict[str, Tensor] = {}
        """Term -> values [R] in the last step, without weights and without `scale`."""
        self._weights_KR = torch.zeros(0)
        for column, (name, config) in enumerate(self._configs.items()):
            config.weight = 1.0  # a weight of 0 would disable the term forever
            config.func = _Weighted(config.func, self, name, column)

    def attach(self, weights_PK: Tensor) -> None:
        """Set the weights [P, K] of P slots and K terms, in the order of `defaults`. They may change in place."""
        self._weights_PK = weights_PK

    def read_weights(self) -> None:
        """Read the current weights. Call this before each step.

        Raises EnvSetupError if the task has changed a weight of the manager.
        """
        for name, config in self._configs.items():
            if config.weight != 1.0:
                raise EnvSetupError(
                    f"{self._id}: the task (for example its curriculum) overwrote the weight of the reward term "
                    f"{name!r}, so PBT cannot tune it. Remove the curriculum from the task"
                )
        self._weights_KR = self._weights_PK.T.repeat_interleave(self._rows // len(self._weights_PK), 1)

    def weighted(self, name: str, column: int, value: Tensor) -> Tensor:
        """Store a term's values [R]. Return the values multiplied by the weights of the rows' slots.

        column: index of the term in `defaults`.
        """
        self.values[name] = value
        return value * self._weights_KR[column]


class _Weighted:
    """Wrapper of a term's function that multiplies the result by the weights of the rows' slots."""

    def __init__(self, function: Any, terms: Terms, name: str, column: int) -> None:
        self._function, self._terms, self._name, self._column = function, terms, name, column

    def __call__(self, *args: Any, **keywords: Any) -> Tensor:
        return self._terms.weighted(self._name, self._column, self._function(*args, **keywords))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_function"], name)


class VecEnvRows:
    """Implementation of `SimulatorEnv` for an RSL-RL `VecEnv`.

    objective: name of the reward term or metric that is the objective. "": the reward with the default weights.
    Raises EnvSetupError for an unknown objective, and for a missing observation group of the policy.
    """

    def __init__(self, env_id: str, env: Any, objective: str = "") -> None:
        self._env, self.rows, self.device = env, int(env.num_envs), torch.device(env.device)
        self._whole = whole = getattr(env, "unwrapped", env)
        manager = getattr(whole, "reward_manager", None)
        self._terms = None if manager is None else Terms(env_id, manager, self.rows, float(whole.step_dt))
        self._metrics = getattr(whole, "metrics_manager", None)
        self._objective = objective
        if objective:
            self._check_objective(env_id)
        obs = self._groups(env.get_observations())
        self._name = next((name for name in ACTOR_GROUPS if name in obs), "")
        if not self._name:
            raise EnvSetupError(
                f"{env_id} has the observation groups {', '.join(obs)}. One must be named "
                f"{' or '.join(ACTOR_GROUPS)}"
            )
        critic = (CRITIC_GROUP,) if CRITIC_GROUP in obs else ()
        self._critic = bool(critic)
        self._first: Mapping[str, Tensor] | None = self._seen(obs)
        # Actions are unbounded here. A wrapper with `clip_actions` clips actions, but its bound (often 100) is too
        # large for the action range of a policy.
        bound = np.full(int(env.num_actions), np.inf, np.float32)
        self.spec = EnvSpec(
            env_id=env_id,
            obs={name: ArraySpec(tuple(x.shape[1:]), "float32") for name, x in self._first.items()},
            action=action_spec(gymnasium.spaces.Box(-bound, bound), env_id),
            shaping={} if self._terms is None else self._terms.defaults,
            critic=critic,
            simulator=True,
            time_limit=int(getattr(env, "max_episode_length", 0)),
        )
        self._stats: dict[str, Tensor] = {}

    def attach(self, weights_PK: Tensor) -> None:
        if self._terms is not None:
            self._terms.attach(weights_PK)

    def reset(self) -> Mapping[str, Tensor]:
        """Return the observations. A `VecEnv` is already reset when it is made."""
        assert self._first is not None, "reset is called once"
        obs, self._first = self._first, None
        return obs

    def spread_phases(self, seed: int) -> bool:
        """Set random step counters in the first episodes, as in RSL-RL's `learn(init_at_random_ep_len=True)`.

        Returns False without a change if the `VecEnv` has no step counters or no maximum episode length.
        """
        counts, limit = getattr(self._env, "episode_length_buf", None), self.spec.time_limit
        if not isinstance(counts, Tensor) or limit < 1:
            return False
        drawn = torch.randint(limit, counts.shape, generator=torch.Generator().manual_seed(seed))
        self._env.episode_length_buf = drawn.to(counts)
        return True

    @torch.no_grad()
    def step(self, action: Tensor) -> SimulatorStep:
        if self._terms is not None:
            self._terms.read_weights()
        obs, reward, dones, extras = self._env.step(action)
        ended, cut = dones.bool(), extras.get("time_outs")
        cut = torch.zeros_like(ended) if cut is None else cut.bool() & ended
        self._note(extras.get("log") or extras.get("episode") or {})
        return SimulatorStep(
            self._seen(self._groups(obs)),
            reward.float(),
            ended & ~cut,
            cut,
            objective=self._judged(reward),
            stats=self._stats,
        )

    @property
    def metadata(self) -> Any:
        """Metadata of the unwrapped environment, such as the frame rate of videos."""
        return getattr(self._whole, "metadata", None)

    def render(self) -> Any:
        """Render by the unwrapped environment, which must be made with `render_mode="rgb_array"`."""
        return self._whole.render()

    def close(self) -> None:
        close = getattr(self._env, "close", None)
        if close is not None:
            close()

    def _judged(self, reward: Tensor) -> Tensor | None:
        """Return the objective of a step, [R]. None: the objective is the reward."""
        terms = self._terms
        if self._objective and (terms is None or self._objective not in terms.defaults):
            assert self._metrics is not None
            column = self._metrics.active_terms.index(self._objective)
            values: Tensor = self._metrics._step_values[:, column].clone()  # noqa: SLF001 - the only access to a row's value
            return values
        if terms is None:
            return None
        if self._objective:
            return torch.nan_to_num(terms.values[self._objective] * terms.scale, 0.0, 0.0, 0.0)
        total = torch.zeros_like(reward)
        for name, value in terms.values.items():
            total += torch.nan_to_num(value * terms.defaults[name] * terms.scale, 0.0, 0.0, 0.0)
        return total

    def _check_objective(self, env_id: str) -> None:
        terms = [] if self._terms is None else [*self._terms.defaults]
        metrics = [*getattr(self._metrics, "active_terms", ())]
        if self._objective not in (*terms, *metrics):
            raise EnvSetupError(
                f"{env_id} has no reward term or metric {self._objective!r} (--env-option objective). "
                f"Available: reward terms {', '.join(terms) or 'none'}; metrics {', '.join(metrics) or 'none'}"
            )

    def _note(self, log: Mapping[str, Any]) -> None:
        """Store logged values as extra statistics of all rows.

        Each value is a mean over the rows whose episode ended. Tensors of several numbers are left out. After
        MOST_STATS different names, further names are left out.

        log: name -> number, or tensor.
        """
        for name, value in log.items():
            short = name.encode()[-STAT_NAME_BYTES + 1 :].decode(errors="ignore")
            if short not in self._stats and len(self._stats) == MOST_STATS:
                continue
            if isinstance(value, Tensor):
                if value.numel() == 1:
                    self._stats[short] = value.detach().float().reshape(()).expand(self.rows)
            else:
                self._stats[short] = torch.full((self.rows,), float(value), device=self.device)

    def _seen(self, groups: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the policy's observation group as "obs", and the critic's observation group if it exists."""
        seen = {"obs": groups[self._name].float()}
        return seen | {CRITIC_GROUP: groups[CRITIC_GROUP].float()} if self._critic else seen

    @staticmethod
    def _groups(obs: Any) -> Mapping[str, Tensor]:
        """Convert observations of any supported type to: observation group -> [R, ...]."""
        if isinstance(obs, tuple):
            obs = obs[0]
        return {"obs": obs} if isinstance(obs, Tensor) else {str(name): obs[name] for name in obs.keys()}  # noqa: SIM118
