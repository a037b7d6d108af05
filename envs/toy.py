"""Tiny environments with known answers, which show that training learns. Extras have more.

`toy/NAME` or `toy/NAME?parameter=number`, for example `toy/memory?delay=20`.
"""

from __future__ import annotations

import difflib
import inspect
from functools import cache, partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from ..extras import load_object, offered
from .base import EnvSetupError, EnvSpec, ShapingSource
from .family import Backend, budget
from .gym import GymUnit, MakeEnv, probe_with

# ruff: noqa: D102 - the docstring of each class describes its reset and step


Obs = Any
Info = dict[str, Any]
Step = tuple[Obs, float, bool, bool, Info]


class Toy(gymnasium.Env[Obs, Any]):
    """A toy's state is its random generator and those of its attributes that are numbers or arrays of numbers."""

    encoder = "mlp"
    """Of a run on it, by default."""

    def save_state(self) -> dict[str, Any]:
        """See `SavesState`."""
        kinds = bool | int | float | np.generic  # a sum with an action is numpy's
        numbers = {k: np.asarray(v).item() for k, v in vars(self).items() if isinstance(v, kinds)}
        arrays = {k: v.tolist() for k, v in vars(self).items() if isinstance(v, np.ndarray)}
        return {"numbers": numbers, "arrays": arrays, "generator": self.np_random.bit_generator.state}

    def restore_state(self, state: dict[str, Any]) -> None:
        """See `SavesState`."""
        for name, number in state["numbers"].items():
            setattr(self, name, number)
        for name, numbers in state["arrays"].items():
            setattr(self, name, np.array(numbers, getattr(self, name).dtype))
        self.np_random.bit_generator.state = state["generator"]


def one_hot(index: int, size: int) -> Obs:
    """Return float32 [size], 1 at the index."""
    hot = np.zeros(size, np.float32)
    hot[index] = 1
    return hot


class Identity(Toy):
    """See an index, answer it: reward 1 if right. `length` steps, then truncated.

    A random policy earns length / size; the best length.
    """

    def __init__(self, size: int = 4, length: int = 16) -> None:
        self.observation_space = Box(0, 1, (size,))
        self.action_space = Discrete(size)
        self._size = size
        self._length = length
        self._steps = 0
        self._index = 0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Obs, Info]:
        super().reset(seed=seed, options=options)
        self._steps = 0
        return self._next(), {}

    def step(self, action: int) -> Step:
        reward = float(action == self._index)
        self._steps += 1
        return self._next(), reward, False, self._steps >= self._length, {}

    def _next(self) -> Obs:
        self._index = int(self.np_random.integers(self._size))
        return one_hot(self._index, self._size)


MOST_DIGITS = 7
"""Of a parameter: some are sizes of arrays."""


class Memory(Toy):
    """A cue at first, `delay` blank steps, then a question (last column): reward 1 for the cue's index.

    Only the last action counts. A policy without memory cannot earn more than 1 / size on average, as a
    random one does; the best is 1.
    """

    def __init__(self, size: int = 4, delay: int = 6) -> None:
        self.observation_space = Box(0, 1, (size + 1,))
        self.action_space = Discrete(size)
        self._size = size
        self._delay = delay
        self._steps = 0
        self._cue = 0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Obs, Info]:
        super().reset(seed=seed, options=options)
        self._steps = 0
        self._cue = int(self.np_random.integers(self._size))
        return one_hot(self._cue, self._size + 1), {}

    def step(self, action: int) -> Step:
        self._steps += 1
        obs = np.zeros(self._size + 1, np.float32)
        asked = self._steps == self._delay + 1
        answered = self._steps == self._delay + 2
        obs[-1] = asked
        return obs, float(answered and action == self._cue), answered, False, {}


class Shaped(Identity):
    """Identity with a bait: one more action that always pays `bait`, and is worth nothing.

    The true objective is the share of right answers. Above a bait of 1 the best policy for the reward takes
    the bait and scores 0; below 1 it answers and scores 1. A random policy scores 1 / (size + 1).
    """

    def __init__(self, size: int = 4, length: int = 16) -> None:
        super().__init__(size, length)
        self.action_space = Discrete(size + 1)
        self._bait = self.get_default_reward_shaping()["bait"]
        self._right = 0

    def get_default_reward_shaping(self) -> dict[str, Any]:
        return {"bait": 1.2}

    def set_reward_shaping(self, reward_shaping: dict[str, Any], agent_idx: int | slice) -> None:  # noqa: ARG002
        self._bait = reward_shaping["bait"]

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Obs, Info]:
        self._right = 0
        return super().reset(seed=seed, options=options)

    def step(self, action: int) -> Step:
        obs, right, terminated, truncated, info = super().step(action)
        self._right += int(right)
        if truncated:
            info["true_objective"] = self._right / self._length
        reward = self._bait if action == self._size else right
        return obs, reward, terminated, truncated, info


OWN: dict[str, type[Toy]] = {
    "identity": Identity,
    "memory": Memory,
    "shaped": Shaped,
}


@cache
def toys() -> dict[str, type[Toy]]:
    """Return all toys by name, those of extras last: their `TOYS` say name -> module:Class."""
    declared = offered(__package__ or "", "TOYS")
    return OWN | {name: load_object(path) for more in declared for name, path in more.items()}


def names() -> tuple[str, ...]:
    """Return the names of all toys."""
    return tuple(toys())


def maker(name: str) -> MakeEnv:
    """Make toys by name, parameters as in `memory?delay=20`. Raises EnvSetupError for what is unknown."""
    toy, _, query = name.partition("?")
    if toy not in toys():
        close = difflib.get_close_matches(toy, toys())
        hint = f"; did you mean {', '.join('toy/' + other for other in close)}?" if close else ";"
        raise EnvSetupError(f"toy/{toy} is not a toy{hint} `pbt-rl envs` lists them: {', '.join(toys())}")
    known = tuple(inspect.signature(toys()[toy]).parameters)
    parameters = {}
    for part in query.split("&") if query else ():
        key, _, value = part.partition("=")
        if key not in known or not value.isdecimal() or len(value) > MOST_DIGITS or int(value) == 0:
            usage = ", ".join(f"{parameter}=NUMBER" for parameter in known) or "none"
            raise EnvSetupError(
                f"toy/{name}: {part!r} is not a parameter with a number above 0; it takes: {usage}"
            )
        parameters[key] = int(value)
    return partial(toys()[toy], **parameters)


def probe(name: str) -> EnvSpec:
    """Describe a toy."""
    return probe_with(f"toy/{name}", maker(name))


def make_unit(name: str, rows: int, seed: int, shaping: ShapingSource) -> GymUnit:
    """Make R toys."""
    return GymUnit(f"toy/{name}", maker(name), rows, seed, shaping)


def recipe(name: str) -> dict[str, object]:
    """Defaults of a run on a toy: seconds, on one core."""
    maker(name)
    return {
        "model.encoder": toys()[name.partition("?")[0]].encoder,
        "model.hidden": 64,
        "model.layers": 1,
        "model.core_size": 64,
        "learner.rollout": 16,
        "learner.batch": 512,
        "learner.epochs": 2,
        "learner.minibatches": 2,
        "hypers.unroll": 16,
        "hypers.learning_rate": 2e-3,
        "hypers.entropy_coef": 0.01,
        "hypers.clip_ratio": 0.2,
        **budget(100_000),
    }


BACKEND = Backend(
    names=names,
    probe=lambda name, _options: probe(name),
    make_unit=lambda name, rows, seed, _options, shaping: make_unit(name, rows, seed, shaping),
    recipe=lambda name, _options: recipe(name),
    make=lambda name, _options: maker(name)(),
)
