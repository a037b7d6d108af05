"""Adapter from the interface of OpenAI's gym to Gymnasium's interface."""

from __future__ import annotations

import collections
import inspect
from contextlib import suppress
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from pbt_rl.errors import EnvSetupError

from .user_values import attribute, flag_of, metadata_of, number_of


class OldGym(gymnasium.Env[Any, Any]):
    """Adapter for environments of the old gym: `reset` without a seed, `step` with four values, or spaces of gym.

    Return values that already follow Gymnasium's interface are not changed.
    """

    def __init__(self, env: Any, render_mode: str | None = None) -> None:
        self.old = env
        self.observation_space = converted(env.observation_space)
        self.action_space = converted(env.action_space)
        self.metadata = {"render_modes": ["rgb_array"], **metadata_of(env)}
        self.render_mode = render_mode

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the environment.

        A seed is passed to the parameter `seed` of the environment's `reset`, or to its method `seed`. An environment
        with neither is not seeded.
        """
        super().reset(seed=seed)
        taken = inspect.signature(self.old.reset).parameters
        given = {"seed": seed, "options": options} if "seed" in taken else {}
        if not given and seed is not None:
            self.seed_old(seed)
        answer: Any = self.old.reset(**{name: value for name, value in given.items() if name in taken})
        with_info = isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], dict)
        return answer if with_info else (answer, {})

    def seed_old(self, seed: int) -> None:
        """Seed the environment before a reset."""
        if callable(seeding := attribute(self.old, "seed")):
            seeding(seed)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment. An episode that ends by its time limit is truncated."""
        answer = self.old.step(action)
        if len(answer) != 4:
            five: tuple[Any, Any, bool, bool, dict[str, Any]] = answer
            return five
        obs, reward, done, info = answer
        with suppress(TypeError, ValueError):  # the vector env reports other values
            done = {0.0: False, 1.0: True}.get(number_of(done), done)  # Brax returns floats
        cut = done is True and self.was_cut(info)
        return obs, reward, False if cut else done, cut, info

    def was_cut(self, info: Any) -> bool:
        """Check whether a finished episode ended by its time limit."""
        return isinstance(info, dict) and flag_of(info.get("TimeLimit.truncated") or False)

    def render(self) -> Any:
        """Render a picture."""
        takes = "mode" in inspect.signature(self.old.render).parameters
        return self.old.render(mode="rgb_array") if takes else self.old.render()

    def close(self) -> None:
        """Close the environment if it has a method `close`."""
        if callable(closing := attribute(self.old, "close")):
            closing()


def converted(space: Any) -> spaces.Space[Any]:
    """Convert a space of another package to a Gymnasium space, based on its class name and attributes.

    Raises EnvSetupError for other spaces than Dict, Tuple, Discrete, MultiDiscrete, MultiBinary and Box.
    """
    if isinstance(space, spaces.Space):
        return space
    kind = type(space).__name__
    if kind.startswith("Dict"):
        return spaces.Dict({key: converted(part) for key, part in space.spaces.items()})
    if kind.startswith("Tuple"):
        return spaces.Tuple([converted(part) for part in space.spaces])
    if kind.startswith("Discrete"):
        return spaces.Discrete(int(space.n), start=int(getattr(space, "start", 0)))
    if kind.startswith("MultiDiscrete"):
        return spaces.MultiDiscrete(np.array(space.nvec))
    if kind.startswith("MultiBinary"):
        return spaces.MultiBinary(space.n)
    if kind.startswith("Box"):
        return spaces.Box(space.low, space.high, tuple(map(int, space.shape)), np.dtype(space.dtype).type)
    raise EnvSetupError(f"the space {space} has no equivalent in Gymnasium. Use a space of gymnasium.spaces")


class _InOrder(dict[Any, None]):
    """Set with insertion order. The order of Python's set depends on the memory addresses of the elements."""

    def add(self, item: Any) -> None:
        self[item] = None

    def remove(self, item: Any) -> None:
        del self[item]


class _Crafter(OldGym):
    """Crafter with ordered sets, because Crafter samples from sets.

    With plain sets, equal seeds may give unequal episodes.
    """

    def __init__(self, old: Any, render_mode: str | None = None) -> None:
        super().__init__(old, render_mode)
        world, reset = old._world, old._world.reset  # noqa: SLF001 - there is no public access

        def ordered(seed: int | None = None) -> None:
            reset(seed)
            world._chunks = collections.defaultdict(_InOrder)  # noqa: SLF001

        world.reset = ordered

    def seed_old(self, seed: int) -> None:
        self.old._seed, self.old._episode = seed, 0  # noqa: SLF001 - only the constructor accepts a seed

    def was_cut(self, info: Any) -> bool:
        return bool(info["discount"] > 0)  # 0: the player has died


def make_crafter(render_mode: str | None = None, **options: Any) -> gymnasium.Env[Any, Any]:
    """Make Crafter (Hafner 2021). options: keywords of `crafter.Env`."""
    import crafter  # noqa: PLC0415 - an optional package

    return _Crafter(crafter.Env(**options), render_mode)


def remedy(env: object) -> str:
    """Return advice if an object is an environment of the old gym interface, else ""."""
    needed = ("reset", "step", "observation_space", "action_space")
    if any(attribute(env, name) is None for name in needed):
        return ""
    return (
        "an environment of the old gym interface. Return pbt_rl.envs.old_gym.OldGym(env), or one of "
        "Shimmy's wrappers: GymV21CompatibilityV0(env=env) if its step returns four values, "
        "GymV26CompatibilityV0(env=env) if five"
    )
