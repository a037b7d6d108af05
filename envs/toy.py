"""Toy environments with known solutions, which test learning, lossless delivery of steps, and failures of runs.

The id of a toy is `toy/NAME` or `toy/NAME?parameter=number`, such as `toy/memory?delay=20`.
"""

from __future__ import annotations

import difflib
import inspect
import time
from functools import partial
from typing import Any, NoReturn

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Tuple
from numpy.typing import NDArray

from pbt_rl.errors import EnvSetupError

from .base import EnvSpec, ShapingSource
from .family import Backend
from .gym import GymVectorEnv, MakeEnv, probe_with

Obs = Any
Info = dict[str, Any]
Step = tuple[Obs, float, bool, bool, Info]


class Toy(gymnasium.Env[Obs, Any]):
    """Base class of toys.

    A toy's saved state is the random generator and all instance attributes that are numbers or arrays.
    """

    encoder = "mlp"
    """Default of --model.encoder."""
    _steps = 0
    """Steps of the current episode."""

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Obs, Info]:
        super().reset(seed=seed, options=options)
        self._steps = 0
        return self._draw(), {}

    def _draw(self) -> Obs:
        """Draw an observation for `reset`. In some toys, `step` also calls this method."""
        raise NotImplementedError

    def save_state(self) -> dict[str, Any]:
        kinds = bool | int | float | np.generic  # arithmetic with actions yields numpy numbers
        numbers = {k: np.asarray(v).item() for k, v in vars(self).items() if isinstance(v, kinds)}
        arrays = {k: v.tolist() for k, v in vars(self).items() if isinstance(v, np.ndarray)}
        return {"numbers": numbers, "arrays": arrays, "generator": self.np_random.bit_generator.state}

    def restore_state(self, state: dict[str, Any]) -> None:
        for name, number in state["numbers"].items():
            setattr(self, name, number)
        for name, numbers in state["arrays"].items():
            setattr(self, name, np.array(numbers, getattr(self, name).dtype))
        self.np_random.bit_generator.state = state["generator"]


def one_hot(index: int, size: int) -> Obs:
    """Return a one-hot array, float32 [size]."""
    hot = np.zeros(size, np.float32)
    hot[index] = 1
    return hot


class Identity(Toy):
    """Toy: observe an index and repeat it as the action. Reward 1 if correct. Truncated after `length` steps.

    Mean return: length / size for a random policy, length for the optimal policy.
    """

    def __init__(self, size: int = 4, length: int = 16) -> None:
        self.observation_space = Box(0, 1, (size,))
        self.action_space = Discrete(size)
        self._size = size
        self._length = length
        self._index = 0

    def step(self, action: Any) -> Step:
        reward = self._reward(action)
        self._steps += 1
        return self._draw(), reward, False, self._steps >= self._length, {}

    def _reward(self, action: Any) -> float:
        return float(action == self._index)

    def _draw(self) -> Obs:
        self._index = int(self.np_random.integers(self._size))
        return one_hot(self._index, self._size)


MOST_DIGITS = 7
"""Maximum number of digits of a parameter, because some parameters are sizes of arrays."""


class Memory(Toy):
    """Toy: observe a cue, then `delay` blank steps, then a question (last column). Answer with the cue's index.

    Reward 1 if correct. Only the last action counts. Mean return: 1 / size for a random policy and for a policy without
    recurrent state, 1 for the optimal policy.
    """

    def __init__(self, size: int = 4, delay: int = 6) -> None:
        self.observation_space = Box(0, 1, (size + 1,))
        self.action_space = Discrete(size)
        self._size = size
        self._delay = delay
        self._cue = 0

    def _draw(self) -> Obs:
        self._cue = int(self.np_random.integers(self._size))
        return one_hot(self._cue, self._size + 1)

    def step(self, action: int) -> Step:
        self._steps += 1
        obs = np.zeros(self._size + 1, np.float32)
        asked = self._steps == self._delay + 1
        answered = self._steps == self._delay + 2
        obs[-1] = asked
        return obs, float(answered and action == self._cue), answered, False, {}


class Shaped(Identity):
    """Identity with an extra action, whose reward is the shaping value `bait`.

    The true objective is the share of correct answers. If `bait` is above 1, the policy with the highest return always
    takes the bait and has objective 0. If `bait` is below 1, the policy with the highest return has objective 1. The
    objective of a random policy is 1 / (size + 1).
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


CELL = 4
"""Side of a cell, in pixels."""
MOVES = np.array([(-1, 0), (1, 0), (0, -1), (0, 1)])


class Treasure(Toy):
    """Toy: walk to a treasure on `size` x `size` cells.

    Reaching the treasure gives reward 1 and terminates the episode. Truncated after `length` steps.
    Walker and treasure start at random cells. The image has a channel for the walker and a channel for the treasure.
    With default parameters a random policy finds the treasure in a fifth of the episodes. The optimal policy always
    finds it, in 4.7 steps on average.
    """

    encoder = "a3c"

    def __init__(self, size: int = 7, length: int = 20) -> None:
        self.observation_space = Box(0, 255, (2, CELL * size, CELL * size), np.uint8)
        self.action_space = Discrete(len(MOVES))
        self._size = size
        self._length = length
        self._places = np.zeros((2, 2), np.int64)

    def _draw(self) -> Obs:
        cells = self.np_random.choice(self._size**2, size=2, replace=False)
        self._places = np.stack(np.divmod(cells, self._size), 1)
        return self._obs()

    def step(self, action: int) -> Step:
        self._steps += 1
        self._places[0] = np.clip(self._places[0] + MOVES[action], 0, self._size - 1)
        found = bool((self._places[0] == self._places[1]).all())
        return self._obs(), float(found), found, not found and self._steps == self._length, {}

    def _obs(self) -> Obs:
        image = np.zeros((2, self._size, CELL, self._size, CELL), np.uint8)
        for channel, (row, column) in enumerate(self._places):
            image[channel, row, :, column] = 255
        return image.reshape(self.observation_space.shape)


class Counting(Toy):
    """Toy that shows (row's id, episode, step, checksum of the episode's actions), for tests of lossless delivery.

    `counting_errors` checks these numbers.

    The id is the lower 24 bits of the row's seed, because float32 holds 24 bits exactly. Episodes last 5 to 17 steps.
    Every third episode is truncated; all others terminate. The reward is the number of the step.
    """

    actions = 5

    def __init__(self) -> None:
        self.observation_space = Box(0, 2**24, (4,))
        self.action_space = Discrete(self.actions)
        self._row_id = 0
        self._episode = -1
        self._checksum = 0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Obs, Info]:
        if seed is not None:
            self._row_id = seed % 2**24
        return super().reset(seed=seed, options=options)

    def _draw(self) -> Obs:
        self._episode += 1
        self._checksum = 0
        return self._obs()

    def step(self, action: int) -> Step:
        self._steps += 1
        self._checksum = next_checksum(self._checksum, action)
        done = self._steps == episode_length(self._episode)
        by_limit = self._episode % 3 == 2
        return self._obs(), float(self._steps), done and not by_limit, done and by_limit, {}

    def _obs(self) -> Obs:
        return np.array([self._row_id, self._episode, self._steps, self._checksum], np.float32)


def episode_length(episode: int) -> int:
    """Return the number of steps of an episode of toy/counting."""
    return 5 + episode * 7 % 13


def next_checksum(checksum: int, action: int) -> int:
    """Update the checksum of an episode's actions with the next action."""
    return (31 * checksum + action + 1) % 65_521


def counting_errors(obs_TF: NDArray[Any], action_T: NDArray[Any], first_T: NDArray[Any]) -> list[str]:
    """Return a description of each lost, repeated or wrong step in one row of toy/counting.

    obs_TF: observations [T, 4].
    action_T: [T] action chosen for the observation at t. The action before a reset is ignored.
    first_T: [T] True for the first step of an episode.

    Episode 0 can begin at any t, because an actor can be restarted.
    """
    errors, steps_T = [], obs_TF.astype(np.int64).tolist()
    if len(steps_T) and first_T[0] and any(steps_T[0][2:]):
        errors.append(f"at 0: an episode begins with {steps_T[0]}")
    for t in range(1, len(steps_T)):
        row_id, episode, step, checksum = steps_T[t - 1]
        if not first_T[t]:
            expected = [row_id, episode, step + 1, next_checksum(checksum, int(action_T[t - 1]))]
        elif steps_T[t][1] == 0:
            expected = [row_id, 0, 0, 0]
        else:
            expected = [row_id, episode + 1, 0, 0]
            if step != episode_length(episode):
                errors.append(f"at {t}: episode {episode} ended after step {step}")
        if steps_T[t] != expected:
            errors.append(f"at {t}: expected (id, episode, step, checksum) {expected}, got {steps_T[t]}")
    return errors


class Masked(Identity):
    """Identity with an action mask. A forbidden action raises ValueError.

    The mask allows the correct action and about half of all other actions. Every fourth step is a pause: the mask is
    all zeros, the action is ignored and the reward is 0. With default parameters, the optimal policy has a return of
    12. A random policy that obeys the mask then has a mean return of less than 6.
    """

    def __init__(self, size: int = 4, length: int = 16) -> None:
        super().__init__(size, length)
        self.observation_space = Dict(
            {"obs": Box(0, 1, (size,)), "action_mask": Box(0, 1, (size,), dtype=np.uint8)}
        )
        self._mask = np.zeros(size, np.uint8)

    def step(self, action: int) -> Step:
        pause = not self._mask.any()
        if not pause and not self._mask[action]:
            raise ValueError(f"toy/masked: action {action} is not allowed by the mask {self._mask.tolist()}")
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, 0.0 if pause else reward, terminated, truncated, info

    def _draw(self) -> Obs:
        obs = super()._draw()
        self._mask = self.np_random.integers(2, size=self._size).astype(np.uint8)
        self._mask[self._index] = 1
        if self._steps % 4 == 3:
            self._mask[:] = 0
        return {"obs": obs, "action_mask": self._mask.copy()}


class Hybrid(Identity):
    """Toy: observe an index and a number, and repeat both as the action.

    If the index is correct, the reward is 1 - |difference of the numbers|, but at least 0. Otherwise the reward is 0.
    Observations are a Tuple that contains a Dict. Actions are a Dict of a Discrete and a Box. Mean return: 5/12 *
    length / size for a random policy, length for the optimal policy.
    """

    def __init__(self, size: int = 4, length: int = 16) -> None:
        super().__init__(size, length)
        self.observation_space = Tuple((Box(0, 1, (size,)), Dict({"number": Box(-1, 1, (1,))})))
        self.action_space = Dict({"number": Box(-1, 1, (1,)), "index": Discrete(size)})
        self._number = 0.0

    def _reward(self, action: Any) -> float:
        closeness = max(0.0, 1 - abs(float(action["number"][0]) - self._number))
        return float(closeness * (action["index"] == self._index))

    def _draw(self) -> Obs:
        index = super()._draw()
        self._number = float(self.np_random.uniform(-1, 1))
        return index, {"number": np.array([self._number], np.float32)}


class Crashing(Identity):
    """Identity that raises RuntimeError in step `steps` after its creation."""

    def __init__(self, steps: int = 200) -> None:
        super().__init__()
        self._left = steps

    def step(self, action: int) -> Step:
        self._left -= 1
        if self._left == 0:
            self._fail()
        return super().step(action)

    def _fail(self) -> NoReturn:
        raise RuntimeError("toy/crashing raises this error on purpose")


class Hanging(Crashing):
    """Identity that hangs in step `steps` after its creation."""

    def _fail(self) -> NoReturn:
        while True:
            time.sleep(3600)


class NotANumber(Identity):
    """Identity whose observation after step 5 of an episode contains NaN."""

    def step(self, action: int) -> Step:
        obs, reward, terminated, truncated, info = super().step(action)
        if self._steps == 5:
            obs[0] = np.nan
        return obs, reward, terminated, truncated, info


class WrongShape(Identity):
    """Identity whose observation after step 5 of an episode has one number too few."""

    def step(self, action: int) -> Step:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs[: self._size - (self._steps == 5)], reward, terminated, truncated, info


TOYS: dict[str, type[Toy]] = {
    "identity": Identity,
    "memory": Memory,
    "shaped": Shaped,
    "treasure": Treasure,
    "counting": Counting,
    "masked": Masked,
    "hybrid": Hybrid,
    "crashing": Crashing,
    "hanging": Hanging,
    "nan": NotANumber,
    "wrong-shape": WrongShape,
}


def names() -> tuple[str, ...]:
    """Return the names of all toys."""
    return tuple(TOYS)


def maker(name: str) -> MakeEnv:
    """Return a function that makes a toy.

    Raises EnvSetupError for an unknown toy or parameter.
    name: may have parameters, as in `memory?delay=20`.
    """
    toy, _, query = name.partition("?")
    if toy not in TOYS:
        close = difflib.get_close_matches(toy, TOYS)
        hint = f"; did you mean {', '.join('toy/' + other for other in close)}?" if close else ";"
        raise EnvSetupError(f"toy/{toy} is not a toy{hint} `pbt-rl envs` lists them: {', '.join(TOYS)}")
    known = tuple(inspect.signature(TOYS[toy]).parameters)
    parameters = {}
    for part in query.split("&") if query else ():
        key, _, value = part.partition("=")
        if key not in known or not value.isdecimal() or len(value) > MOST_DIGITS or int(value) == 0:
            usage = ", ".join(f"{parameter}=NUMBER" for parameter in known) or "none"
            raise EnvSetupError(
                f"toy/{name}: {part!r} is not a parameter with a number above 0. Supported: {usage}"
            )
        parameters[key] = int(value)
    return partial(TOYS[toy], **parameters)


def probe(name: str) -> EnvSpec:
    """Return the spec of a toy. Raises EnvSetupError for an unknown toy or parameter."""
    return probe_with(f"toy/{name}", maker(name))


def make_vector_env(name: str, rows: int, seed: int, shaping: ShapingSource) -> GymVectorEnv:
    """Make R toys."""
    return GymVectorEnv(f"toy/{name}", maker(name), rows, seed, shaping)


def recipe(name: str) -> dict[str, object]:
    """Return default options of a short run, which takes seconds on one core."""
    maker(name)
    return {
        "model.encoder": TOYS[name.partition("?")[0]].encoder,
        "model.hidden": (64,),
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
        "train_for_frames": 100_000,
    }


BACKEND = Backend(
    names=names,
    probe=lambda name, _options: probe(name),
    make_vector_env=lambda name, rows, seed, _options, shaping: make_vector_env(name, rows, seed, shaping),
    recipe=lambda name, _options: recipe(name),
    make=lambda name, _options: maker(name)(),
)
