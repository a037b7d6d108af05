"""An RSL-RL `VecEnv` as a resident environment, and the weights of a reward manager as shaping.

`VecEnv` is what Isaac Lab, mjlab, MuJoCo Playground and Legged Gym give to RSL-RL: `get_observations()`, and
`step(action) -> observations, reward, dones, extras`, with rows that begin anew in the step that ends their episode. It
differs between them in types: `dones` is long, float or bool; `extras["time_outs"]` may be missing or float;
observations are a dictionary of groups, a TensorDict, a tensor, or a pair of one of them and extras.

Where there is a reward manager (mjlab, Isaac Lab), each term's weight becomes 1 and its value is multiplied by the
weight of the row's slot, so a member's weights act at once. The objective is then the reward by the weights that the
task came with, or what `objective` names: it never contains the tuned weights.

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
from ..resident import ResidentStep

ACTOR_GROUPS = ("actor", "policy", "obs")
"""Names of the group that an actor sees; the first that there is."""
CRITIC_GROUP = "critic"
"""Name of the group that is added for the critic."""


class Terms:
    """The reward terms of a manager, weighted by slot."""

    def __init__(self, env_id: str, manager: Any, rows: int, step_seconds: float) -> None:
        self._id, self._rows = env_id, rows
        self._configs = dict(zip(manager.active_terms, manager._term_cfgs, strict=True))  # noqa: SLF001
        self.defaults = {name: float(config.weight) for name, config in self._configs.items()}
        self.scale = step_seconds if getattr(manager, "_scale_by_dt", True) else 1.0
        self.values: dict[str, Tensor] = {}
        """name -> [R] values of the last step, without weights."""
        self._weights_KR = torch.zeros(0)
        for column, (name, config) in enumerate(self._configs.items()):
            config.weight = 1.0  # 0 would leave the term out for ever
            config.func = _Weighted(config.func, self, name, column)

    def attach(self, weights_PK: Tensor) -> None:
        """Take the weights, [P, K]."""
        self._weights_PK = weights_PK

    def read_weights(self) -> None:
        """Read the weights of this step."""
        for name, config in self._configs.items():
            if config.weight != 1.0:
                raise EnvSetupError(
                    f"{self._id}: something wrote the weight of the reward term {name!r}, as a curriculum does, so PBT "
                    "cannot tune it: take that curriculum out of the task"
                )
        self._weights_KR = self._weights_PK.T.repeat_interleave(self._rows // len(self._weights_PK), 1)

    def weighted(self, name: str, column: int, value: Tensor) -> Tensor:
        """Keep a term's value and return it by the weights of the rows' slots, [R]."""
        self.values[name] = value
        return value * self._weights_KR[column]


class _Weighted:
    """A term's function, whose result is multiplied by the weights of the rows' slots; all else is as it was."""

    def __init__(self, function: Any, terms: Terms, name: str, column: int) -> None:
        self._function, self._terms, self._name, self._column = function, terms, name, column

    def __call__(self, *args: Any, **keywords: Any) -> Tensor:
        return self._terms.weighted(self._name, self._column, self._function(*args, **keywords))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_function"], name)


class VecEnvRows:
    """See `ResidentEnv`."""

    def __init__(self, env_id: str, env: Any, objective: str = "") -> None:
        self._env, self.rows, self.device = env, int(env.num_envs), torch.device(env.device)
        whole = getattr(env, "unwrapped", env)
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
                f"{env_id} gives the observation groups {', '.join(obs)}: one must be {' or '.join(ACTOR_GROUPS)}"
            )
        critic = (CRITIC_GROUP,) if CRITIC_GROUP in obs else ()
        self._critic = bool(critic)
        self._first: Mapping[str, Tensor] | None = self._seen(obs)
        # A wrapper with `clip_actions` cuts them off itself: no unit of a policy's, since it is often 100.
        bound = np.full(int(env.num_actions), np.inf, np.float32)
        self.spec = EnvSpec(
            env_id=env_id,
            obs={name: ArraySpec(tuple(x.shape[1:]), "float32") for name, x in self._first.items()},
            action=action_spec(gymnasium.spaces.Box(-bound, bound), env_id),
            shaping={} if self._terms is None else self._terms.defaults,
            critic=critic,
            resident=True,
            time_limit=int(getattr(env, "max_episode_length", 0)),
        )
        self._stats: dict[str, Tensor] = {}

    def attach(self, weights_PK: Tensor) -> None:
        if self._terms is not None:
            self._terms.attach(weights_PK)

    def reset(self) -> Mapping[str, Tensor]:
        """A `VecEnv` is reset when it is made, and asked for its observations once."""
        assert self._first is not None, "reset is called once"
        obs, self._first = self._first, None
        return obs

    def spread_phases(self, seed: int) -> bool:
        """As RSL-RL's `learn(init_at_random_ep_len=True)`."""
        counts, limit = getattr(self._env, "episode_length_buf", None), self.spec.time_limit
        if not isinstance(counts, Tensor) or limit < 1:
            return False
        drawn = torch.randint(limit, counts.shape, generator=torch.Generator().manual_seed(seed))
        self._env.episode_length_buf = drawn.to(counts)
        return True

    @torch.no_grad()
    def step(self, action: Tensor) -> ResidentStep:
        if self._terms is not None:
            self._terms.read_weights()
        obs, reward, dones, extras = self._env.step(action)
        ended, cut = dones.bool(), extras.get("time_outs")
        cut = torch.zeros_like(ended) if cut is None else cut.bool() & ended
        self._note(extras.get("log") or extras.get("episode") or {})
        return ResidentStep(
            self._seen(self._groups(obs)),
            reward.float(),
            ended & ~cut,
            cut,
            objective=self._judged(reward),
            stats=self._stats,
        )

    @property
    def metadata(self) -> Any:
        """What the engine says of itself, such as pictures per second."""
        return getattr(getattr(self._env, "unwrapped", self._env), "metadata", None)

    def render(self) -> Any:
        """Show row 0, if the engine was made with `render_mode="rgb_array"`."""
        return getattr(self._env, "unwrapped", self._env).render()

    def close(self) -> None:
        close = getattr(self._env, "close", None)
        if close is not None:
            close()

    def _judged(self, reward: Tensor) -> Tensor | None:
        """Return the objective of a step, [R]."""
        terms = self._terms
        if terms is None:
            return None
        if not self._objective:
            total = torch.zeros_like(reward)
            for name, value in terms.values.items():
                total += torch.nan_to_num(value * terms.defaults[name] * terms.scale, 0.0, 0.0, 0.0)
            return total
        if self._objective in terms.defaults:
            return torch.nan_to_num(terms.values[self._objective] * terms.scale, 0.0, 0.0, 0.0)
        assert self._metrics is not None
        column = self._metrics.active_terms.index(self._objective)
        values: Tensor = self._metrics._step_values[:, column].clone()  # noqa: SLF001 - the only place of a row's value
        return values

    def _check_objective(self, env_id: str) -> None:
        terms = [] if self._terms is None else [*self._terms.defaults]
        metrics = [*getattr(self._metrics, "active_terms", ())]
        if self._objective not in (*terms, *metrics):
            raise EnvSetupError(
                f"{env_id} has nothing named {self._objective!r} to compare members by (--env-option objective): "
                f"there are the reward terms {', '.join(terms) or 'none'} and the metrics "
                f"{', '.join(metrics) or 'none'}"
            )

    def _note(self, log: Mapping[str, Any]) -> None:
        """Keep what is logged of the rows that ended: a mean over them each, so the same for all of them."""
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
        """Return what the actor sees as `obs`, and what the critic sees besides."""
        seen = {"obs": groups[self._name].float()}
        return seen | {CRITIC_GROUP: groups[CRITIC_GROUP].float()} if self._critic else seen

    @staticmethod
    def _groups(obs: Any) -> Mapping[str, Tensor]:
        """Return name of a group -> [R, ...]."""
        if isinstance(obs, tuple):
            obs = obs[0]
        return {"obs": obs} if isinstance(obs, Tensor) else {str(name): obs[name] for name in obs.keys()}  # noqa: SIM118
