"""Adapter from a Gymnasium `VectorEnv` of tensors (autoreset mode SAME_STEP) to a device simulator.

Axes: R rows, A action components.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor

from pbt_rl.errors import EnvSetupError

from ..actions import action_spec, first_choices
from ..base import ArraySpec, EnvSpec
from .rows import SimulatorStep

FINAL = ("final_observation", "final_obs")
"""Keys in the info dict for the final observations of all rows. The first existing key is used."""


class BatchedRows:
    """Implementation of `SimulatorEnv` for a Gymnasium `VectorEnv`.

    Raises EnvSetupError for another autoreset mode than SAME_STEP, for observations that are not tensors, and for an
    action space that is a Dict or Tuple.
    """

    def __init__(self, env_id: str, env: Any) -> None:
        mode = env.metadata.get("autoreset_mode", AutoresetMode.SAME_STEP)
        if mode != AutoresetMode.SAME_STEP:
            raise EnvSetupError(
                f"{env_id} has the autoreset mode {mode}, but rows on a device must reset in the step that ends their "
                'episode. Reset them there, and set metadata["autoreset_mode"] to AutoresetMode.SAME_STEP'
            )
        self._env, self.rows = env, int(env.num_envs)
        obs = _named(env.reset()[0])
        wrong = [name for name, array in obs.items() if not isinstance(array, Tensor)]
        if wrong:
            raise EnvSetupError(
                f"{env_id} returns {', '.join(wrong)} as {type(obs[wrong[0]]).__name__}, not as tensors. Return "
                "tensors, or remove the parameters rows and device of the factory (the environment then runs in actors)"
            )
        self._first: Mapping[str, Tensor] = _as_numbers(obs)
        self.device = next(iter(obs.values())).device
        space = env.single_action_space
        action = action_spec(space, env_id)
        if isinstance(space, gymnasium.spaces.Dict | gymnasium.spaces.Tuple):
            raise EnvSetupError(
                f"{env_id}: the action space {space} has parts. On a device, use Discrete, "
                "MultiDiscrete, MultiBinary or Box"
            )
        self._shape = tuple(space.shape or ())
        self._discrete = isinstance(space, gymnasium.spaces.Discrete)
        start, whole = first_choices(space), bool(action.nvec) and isinstance(space, gymnasium.spaces.Box)
        self._start = torch.tensor(start, device=self.device) if start.any() else None
        """Value of choice 0 of each component. None if all values are 0."""
        self._dtype = getattr(torch, str(space.dtype)) if whole else None
        """dtype of the actions of an integer Box. None for other action spaces."""
        self.spec = EnvSpec(
            env_id=env_id,
            obs={
                name: ArraySpec(tuple(array.shape[1:]), "uint8" if array.dtype is torch.uint8 else "float32")
                for name, array in self._first.items()
            },
            action=action,
            simulator=True,
        )

    def attach(self, weights_PK: Tensor) -> None:
        """Do nothing, because the spec has no shaping."""

    def reset(self) -> Mapping[str, Tensor]:
        """Return the observations [R, ...] of the reset in the constructor. Does not reset again."""
        return self._first

    @torch.no_grad()
    def step(self, action: Tensor) -> SimulatorStep:
        given = action[:, 0] if self._discrete else action.reshape(self.rows, *self._shape)
        if self._start is not None:
            given = given + self._start
        if self._dtype is not None:
            given = given.to(self._dtype)
        obs, reward, over, cut, info = self._env.step(given)
        final = next((info[key] for key in FINAL if key in info), None)
        over = over.bool()
        return SimulatorStep(
            _as_numbers(_named(obs)),
            reward.float(),
            over,
            cut.bool() & ~over,
            None if final is None else _as_numbers(_named(final)),
        )

    def close(self) -> None:
        self._env.close()


def _named(obs: Any, prefix: str = "") -> dict[str, Any]:
    """Flatten nested dicts to name -> array. Names are joined by dots."""
    if not isinstance(obs, Mapping):
        return {prefix or "obs": obs}
    parts = (_named(part, f"{prefix}.{name}" if prefix else str(name)) for name, part in obs.items())
    return {name: array for part in parts for name, array in part.items()}


def _as_numbers(obs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Keep uint8 pictures [R, C, H, W] unchanged. Flatten all other arrays to float32 [R, N]."""
    return {
        name: array
        if array.dtype is torch.uint8 and array.dim() == 4
        else array.reshape(len(array), -1).float()
        for name, array in obs.items()
    }
