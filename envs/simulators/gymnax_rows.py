"""Rows of a gymnax environment as tensors: one jitted step, with arrays shared with torch by DLPack.

Constraints of the sharing (measured with JAX 0.10 and torch 2.13):

- JAX may read an action after the call returns. Therefore a step waits for its outputs. Later writes to the action's
  memory then have no effect.
- torch can write into an array that JAX considers immutable. Therefore no output shares memory with the state.
- JAX rejects an action that is not contiguous. Therefore actions are made contiguous. JAX copies an action that is not
  aligned to 64 bytes.

Axes: R rows, A action components.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping
from functools import cache
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # otherwise JAX takes three quarters of a GPU

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import torch
import torch.utils.dlpack
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from pbt_rl.errors import EnvSetupError

from ..actions import action_spec
from ..base import ArraySpec, EnvSpec
from .rows import SimulatorStep


def describe(name: str, keywords: Mapping[str, Any]) -> EnvSpec:
    """Return the spec of an environment. JAX infers the shapes without running the environment.

    keywords: parameters of the environment (--env-option).
    Raises EnvSetupError for an unknown name or keyword, and for unsupported spaces.
    """
    return _made(name, keywords)[2]


def _made(name: str, keywords: Mapping[str, Any]) -> tuple[Any, Any, EnvSpec]:
    env_id = f"gymnax/{name}"
    try:
        env, params = gymnax.make(name)
    except ValueError as error:
        raise EnvSetupError(f"{env_id} does not exist. `pbt-rl envs` lists the names") from error
    fields = {field.name for field in dataclasses.fields(params)}
    unknown = sorted(set(keywords) - fields)
    if unknown:
        raise EnvSetupError(
            f"{env_id} has no option {', '.join(unknown)}. Supported: {', '.join(sorted(fields))} "
            "(--env-option key=value)"
        )
    params = params.replace(**keywords)
    seen, _ = jax.eval_shape(env.reset, jax.random.PRNGKey(0), params)
    if not hasattr(seen, "shape"):
        raise EnvSetupError(
            f"{env_id} cannot be used: its observation is {type(seen).__name__}, not one array"
        )
    image = seen.dtype == jnp.uint8 and len(seen.shape) == 3
    shape = seen.shape if image else (math.prod(seen.shape),)
    spec = EnvSpec(
        env_id=env_id,
        obs={"obs": ArraySpec(shape, "uint8" if image else "float32")},
        action=action_spec(
            gymnax.environments.spaces.gymnax_space_to_gym_space(env.action_space(params)), env_id
        ),
        simulator=True,
        time_limit=int(getattr(params, "max_steps_in_episode", 0)),
    )
    return env, params, spec


@cache
def _functions(name: str, rows: int, keywords: tuple[tuple[str, Any], ...]) -> tuple[EnvSpec, Any, Any]:
    """Return (spec, jitted reset, jitted step) of R rows. Cached per process. Raises EnvSetupError as `describe` does.

    reset: key -> (new key, state, observation [R, ...]).
    step: (key, state, action [R, A]) -> (new key, state, (observation, reward, terminated, truncated, final
    observation)).
    """
    env, params, spec = _made(name, dict(keywords))
    array, discrete = spec.obs["obs"], bool(spec.action.nvec)

    def seen(obs: Any) -> Any:
        return obs.reshape(rows, *array.shape).astype(array.dtype)

    def reset(key: Any) -> Any:
        key, now = jax.random.split(key)
        obs, state = jax.vmap(env.reset, (0, None))(jax.random.split(now, rows), params)
        return key, state, seen(obs)

    def step(key: Any, state: Any, action: Any) -> Any:
        key, now = jax.random.split(key)
        chosen = action[:, 0] if discrete else action
        obs, state, reward, over, cut, info = jax.vmap(env.step, (0, 0, 0, None))(
            jax.random.split(now, rows), state, chosen, params
        )
        over, cut = over.reshape(rows).astype(bool), cut.reshape(rows).astype(bool)
        reward = reward.reshape(rows).astype(jnp.float32)
        return key, state, (seen(obs), reward, over, cut & ~over, seen(info["final_observation"]))

    return spec, jax.jit(reset), jax.jit(step)


class GymnaxRows:
    """R rows of one environment: an implementation of `SimulatorEnv`."""

    def __init__(self, name: str, rows: int, seed: int, device: str, keywords: Mapping[str, Any]) -> None:
        self.spec, self._reset, self._step = _functions(name, rows, tuple(sorted(keywords.items())))
        self.rows, self.device = rows, torch.device(device)
        place = _jax_device(self.spec.env_id, self.device)
        self._key = jax.device_put(jax.random.PRNGKey(seed % 2**31), place)
        self._state: Any = None

    def attach(self, weights_PK: Tensor) -> None:
        """Do nothing, because gymnax has no shaping."""

    def reset(self) -> Mapping[str, Tensor]:
        self._key, self._state, obs = self._reset(self._key)
        return {"obs": _tensor(obs)}

    def spread_phases(self, seed: int) -> bool:
        """Set random step counters in the states, so that the first episodes end at different times.

        Returns False without a change if the state has no `time`, or the parameters no `max_steps_in_episode`.
        """
        time = getattr(self._state, "time", None)
        if time is None or not self.spec.time_limit:
            return False
        drawn = np.random.default_rng(seed).integers(self.spec.time_limit, size=self.rows)
        self._state = self._state.replace(time=jax.device_put(drawn.astype(time.dtype), time.device))
        return True

    def step(self, action: Tensor) -> SimulatorStep:
        """Step all rows. The action's memory may be reused afterwards."""
        given = jax.dlpack.from_dlpack(action.detach().contiguous())
        self._key, self._state, out = self._step(self._key, self._state, given)
        obs, reward, over, cut, final = map(_tensor, out)
        return SimulatorStep({"obs": obs}, reward, over, cut, {"obs": final})

    def close(self) -> None:
        self._state = None


def _tensor(array: Any) -> Tensor:
    tensor: Tensor = from_dlpack(array)
    return tensor


def _jax_device(env_id: str, device: torch.device) -> Any:
    try:
        return jax.devices("cpu" if device.type == "cpu" else "gpu")[device.index or 0]
    except (RuntimeError, IndexError) as error:
        raise EnvSetupError(
            f"{env_id} cannot be made on {device}: JAX does not have this device here. Install "
            "jax[cuda13], or train with --devices cpu"
        ) from error
