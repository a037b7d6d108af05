"""Gymnasium environments as a vector env: one environment per row, stepped in a loop.

Return values are checked in every step. EnvSetupError is raised for values of a wrong type or shape, and for numbers
that are not finite. Exceptions of the environment are not caught.
"""

from __future__ import annotations

import contextlib
import difflib
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from pbt_rl.errors import EnvSetupError

from . import atari, time_limits
from .actions import action_spec, actions_decoder
from .base import (
    ACTION_MASK,
    LARGEST_REWARD,
    EnvSpec,
    SavesState,
    ShapingSource,
    StepArrays,
    seeds_of,
    training_info,
)
from .conventions import ConventionWarnings, mistakes_of, notes_of
from .episode_book import ROW, EpisodeBook, heartbeat_of, objective_of, with_heartbeat
from .family import keywords_backend
from .packages import EXTRAS, registered
from .shaping import (
    declared,
    default_shaping,
    find_interface,
    find_training_info,
    frames_per_step,
    unflatten,
    with_critic,
)
from .spaces import Leaf, check_finite, fits_as_it_is, is_grid, leaves_of, looks_like_a_picture, read_leaf
from .time_limits import closing, making, time_limit
from .user_values import attribute, breach, check_distinct, check_has, flag_of, metadata_of, number_of


def recipe(spec: EnvSpec) -> dict[str, object]:
    """Return default options for the action and observation spaces: images, continuous control, grids or vectors."""
    images = [array for array in spec.obs.values() if array.dtype == "uint8" and len(array.shape) > 1]
    grids = [array for array in images if is_grid(array)]
    if len(images) > len(grids):
        found = {"model.encoder": "impala" if grids else "auto", **_IMAGES}
        return found | (
            {"hypers.entropy_coef": _CONTINUOUS["hypers.entropy_coef"]} if spec.action.low else {}
        )
    found = dict(_CONTINUOUS if spec.action.low else _DISCRETE)
    if spec.action.low and not spec.simulator:
        found |= _SMALL_STEPS
    # Observations of device simulators have no bounds.
    if spec.simulator or any(array.unscaled for array in spec.obs.values()):
        found["learner.normalize_observations"] = True  # unnormalised numbers near 1000 prevent learning
    if grids:
        found |= _GRIDS
    if any(map(looks_like_a_picture, spec.obs.values())):
        # An MLP would read the picture as numbers, so the user must choose an encoder.
        del found["model.encoder"]
    elif not spec.action.low and any(array.boolean and len(array.shape) == 3 for array in spec.obs.values()):
        found |= PLANES
    return found


_DISCRETE: dict[str, object] = {
    "model.encoder": "mlp",
    "model.hidden": (64,),
    "model.layers": 2,
    "learner.rollout": 32,
    "learner.batch": 1024,
    "learner.minibatches": 4,
    "learner.epochs": 4,
    "hypers.unroll": 32,
    "learner.lr_schedule": "linear",  # with a constant rate, members at the maximum return became worse
    "hypers.learning_rate": 1e-3,
    "hypers.entropy_coef": 0.005,
    "hypers.clip_ratio": 0.2,
    "hypers.gamma": 0.99,
    "hypers.gae_lambda": 0.95,
    "train_for_frames": 500_000,
}
"""Options for discrete actions and vectors of numbers.

The values published for CartPole (gamma 0.98, lambda 0.8) are not used. With the published values, only one seed of
four learned LunarLander (docs/lab/games.md).
"""

_CONTINUOUS: dict[str, object] = {
    "model.encoder": "mlp",
    "model.hidden": (64,),
    "model.layers": 2,
    "model.critic": "separate",  # with a shared trunk Hopper and Walker2d learn slowly (docs/lab/games.md)
    "model.initial_std": (1.0, 0.5),
    "learner.rollout": 64,
    "learner.batch": 2048,
    "learner.minibatches": 8,
    "learner.epochs": 8,
    "learner.normalize_observations": True,
    "hypers.unroll": 64,
    "hypers.learning_rate": 6e-4,  # with 3e-4 Pendulum was not learned in 100,000 frames (docs/lab/games.md)
    "hypers.entropy_coef": 1e-4,
    "hypers.clip_ratio": 0.2,
    "hypers.gamma": 0.99,
    "hypers.gae_lambda": 0.95,
    "train_for_frames": 2_000_000,
}
"""Options for continuous actions."""

_SMALL_STEPS: dict[str, object] = {
    "model.initial_std": (0.5,),
    "learner.minibatches": 32,
    "hypers.learning_rate": 3e-4,
    "hypers.gamma": 0.995,
    "hypers.gae_lambda": 0.97,
}
"""Overrides for continuous actions outside device simulators.

With these values HalfCheetah scores 6,365 instead of 2,109 after 1M frames. Three other MuJoCo tasks also score more,
in the mean of eight seeds (docs/lab/single.md). A batch has 256 optimiser steps instead of 64. These values were not
tried on device simulators.
"""

_GRIDS: dict[str, object] = {
    "model.hidden": (128,),
    "learner.normalize_observations": True,
    "learner.normalize_advantage": False,
    "train_for_frames": 2_000_000,
}
"""Overrides for grids of codes, whose encoder is an MLP.

Advantages are not normalised, because rewards of environments with grids are often sparse. In a batch without rewards,
normalised advantages are pure noise, and the policy collapsed before the first reward (docs/lab/environments.md).
"""

PLANES: dict[str, object] = {
    "model.critic": "separate",
    "model.activation": "relu",
    "learner.rollout": 128,
    "hypers.unroll": 128,
    "learner.batch": 8192,
    "learner.minibatches": 8,
    "hypers.learning_rate": 5e-3,
    "hypers.entropy_coef": 0.01,
    "train_for_frames": 5_000_000,
}
"""Overrides for observations [H, W, C] of 0 and 1 with a plane for each kind of object, such as MinAtar's.

The values are PureJaxRL's (`examples/brax_minatar.ipynb`). On Breakout three seeds reached returns of 25 to 76. One
seed with elu and rollouts of 32 steps reached 18. One seed with a shared network of 128 tanh units, two epochs and a
learning rate of 1e-3 reached 6 (docs/lab/evidence.md).
"""


_IMAGES = {name: value for name, value in atari.recipe().items() if not name.startswith("model.")}
"""Options for images: Atari's options except the network. Rewards are not clipped."""


def _time_limit_of(env: Any) -> int:
    """Return the step limit of Gymnasium's `TimeLimit` wrapper, or 0 if the environment lacks this wrapper."""
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, gymnasium.wrappers.TimeLimit):
            return env._max_episode_steps  # noqa: SLF001 - there is no public access
        env = env.env
    return 0


MakeEnv = Callable[[], gymnasium.Env[Any, Any]]
"""() -> new environment. Called once per row."""

_FLAGS = {bool, np.bool_}


def describe(env_id: str, env: gymnasium.Env[Any, Any]) -> EnvSpec:
    """Return the spec of an environment. Raises EnvSetupError for unsupported spaces or shaping."""
    notes, shaping = notes_of(env_id, env), default_shaping(env_id, env)
    leaves, action = _leaves_of(env_id, env), action_spec(env.action_space, env_id)
    spec = EnvSpec(
        env_id=env_id,
        obs={leaf.name: leaf.spec for leaf in leaves},
        action=action,
        frame_skip=frames_per_step(env_id, env),
        shaping=shaping,
        notes=notes,
        time_limit=_time_limit_of(env),
        mistakes=mistakes_of(env, env.observation_space, action),
    )
    return with_critic(spec, declared(env_id, metadata_of(env)))


def _leaves_of(env_id: str, env: gymnasium.Env[Any, Any]) -> tuple[Leaf, ...]:
    check_has(env_id, env, ("observation_space", "action_space"))
    return leaves_of(env_id, env.observation_space, env.action_space, metadata_of(env))


def _spaces_of(env: gymnasium.Env[Any, Any]) -> tuple[Any, Any]:
    return env.observation_space, env.action_space


def probe_with(env_id: str, make: MakeEnv) -> EnvSpec:
    """Make an environment, close it and return its spec.

    Raises EnvSetupError if the environment is unsuitable, or if making it takes longer than PROBE_SECONDS.
    """
    with time_limit(time_limits.PROBE_SECONDS, making(env_id)):
        env = make()
    with closing(env):
        return describe(env_id, env)


class GymVectorEnv:
    """Vector env of R Gymnasium environments with equal specs. Only the first reset is seeded.

    The constructor calls `make` once per row. It raises EnvSetupError if an environment is unsuitable, if two
    environments have different specs, or if `make` returned the same environment twice.
    """

    def __init__(self, env_id: str, make: MakeEnv, rows: int, seed: int, shaping: ShapingSource) -> None:
        assert rows > 0
        self._heartbeat = heartbeat_of(shaping)
        self._envs: list[gymnasium.Env[Any, Any]] = []
        try:
            self.spec = self._make(env_id, make, rows)
        except BaseException:
            self.close()
            raise
        self.rows = rows
        self._shaping = shaping
        self._shapers = [find_interface(env) for env in self._envs]
        self._informed = [find_training_info(env) for env in self._envs]
        self._spaces = _spaces_of(self._envs[0])
        self._leaves = _leaves_of(env_id, self._envs[0])
        self._decode = actions_decoder(self._envs[0].action_space)
        self._all_allowed = np.ones(sum(self.spec.action.nvec), np.uint8)
        self._seeds: list[int] | None = seeds_of(seed, rows)
        self._book = EpisodeBook(rows, shaping)
        self._warnings = ConventionWarnings(shaping, self.spec)
        self._breach = partial(breach, env_id)
        self._warnings.follow(self._envs[0])
        # State of each row in this step. Lists are used because writing a number into an array takes as long as a step
        # of a small environment.
        self._first = [True] * rows
        self._terminated = [False] * rows
        self._truncated = [False] * rows
        self._ended = [False] * rows
        self._reward = [0.0] * rows
        self._objective: dict[int, float] = {}
        """Row -> objective of the episode that ended with this step. If the objective is the sum of the rewards, the
        row has no entry.
        """
        self._cut_at: dict[int, int] = {}
        """Row -> step at which the row's first episode is truncated. A row is removed when its first episode ends."""

    def _make(self, env_id: str, make: MakeEnv, rows: int) -> EnvSpec:
        """Make the environments and return their common spec."""
        with contextlib.ExitStack() as exits:
            for row in with_heartbeat(self._heartbeat, range(rows)):
                self._envs.append(make())
                if row == 0:
                    exits.enter_context(_equal_mujoco_warnings_once())
        spec = describe(env_id, self._envs[0])
        check_distinct(env_id, self._envs)
        if any(describe(env_id, env) != spec for env in self._envs[1:]):
            raise EnvSetupError(
                f"{env_id}: two environments differ in their spaces or shaping. Make all environments equal"
            )
        return spec

    def spread_phases(self, rng: np.random.Generator) -> bool:
        """Truncate the first episode of each row at a random step. Return False if there is no `TimeLimit` wrapper."""
        limit = self.spec.time_limit
        if limit:
            self._cut_at = dict(enumerate(rng.integers(1, limit + 1, self.rows).tolist()))
        return limit > 0

    def reset(self, out: StepArrays) -> None:
        with np.errstate(over="ignore"):
            for row in with_heartbeat(self._heartbeat, range(self.rows)):
                self._begin_episode(row, None if self._seeds is None else self._seeds[row], out)
        self._seeds = None
        self._write(out)

    def step(self, action: NDArray[Any], out: StepArrays) -> None:
        """Advance all rows by one step. action: [R, A] of `spec.action.dtype`."""
        heartbeat = self._heartbeat
        with np.errstate(over="ignore"):
            for row, one in enumerate(self._decode(action)):
                if self._ended[row]:
                    self._begin_episode(row, None, out)
                else:
                    self._advance(row, one, out)
                heartbeat[ROW] = row
            self._write(out)

    def save_state(self) -> dict[str, Any] | None:
        """Return the state. None if an environment cannot save its state, for example because of a wrapper."""
        states = [env.save_state() if isinstance(env, SavesState) else None for env in self._envs]
        if None in states:
            return None
        return {
            "envs": states,
            "book": self._book.save_state(),
            "ended": list(self._ended),
            "seeds": self._seeds,
            "cut_at": [*self._cut_at.items()],
        }

    def restore_state(self, state: dict[str, Any]) -> None:
        """Continue from a saved state. The arrays of the last step are not written again."""
        for env, saved in zip(self._envs, state["envs"], strict=True):
            assert isinstance(env, SavesState)
            env.restore_state(saved)
        self._book.restore_state(state["book"])
        self._ended, self._seeds = list(state["ended"]), state["seeds"]
        self._cut_at = dict(state["cut_at"])

    def close(self) -> None:
        """Close every environment once, even if one of the environments raises an error."""
        with contextlib.ExitStack() as closing:
            while self._envs:
                closing.callback(self._envs.pop().close)

    def _begin_episode(self, row: int, seed: int | None, out: StepArrays) -> None:
        values = self._book.open_episode(row)
        shaper = self._shapers[row]
        if shaper is not None:
            shaper.set_reward_shaping(unflatten(values), 0)
        informed, info = self._informed[row], training_info(self._shaping, row)
        if informed is not None and info is not None:
            informed.set_training_info(info)
        answer = self._envs[row].reset(seed=seed)
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise self._breach("reset() must return (observation, info)", answer)
        self._warnings.of_info(answer[1])
        self._warnings.of_first_obs(self._envs[row].observation_space, answer[0])
        self._warnings.of_spaces(_spaces_of(self._envs[row]), self._spaces)
        self._warnings.of_shaping(lambda: default_shaping(self.spec.env_id, self._envs[row]))
        if row == 0:
            self._warnings.of_begin()
        self._write_obs(row, answer[0], answer[1], out)
        self._first[row] = True
        self._terminated[row] = self._truncated[row] = self._ended[row] = False
        self._reward[row] = 0.0

    def _advance(self, row: int, action: Any, out: StepArrays) -> None:
        answer: Any = self._envs[row].step(action)
        if not isinstance(answer, tuple) or len(answer) != 5:
            raise self._breach(
                "step() must return (observation, reward, terminated, truncated, info)", answer
            )
        obs, reward, terminated, truncated, info = answer
        if type(info) is not dict and not isinstance(info, Mapping):
            raise self._breach("info must be a dict", info)
        if info and self._warnings.reads:
            self._warnings.of_info(info)
        number = self._number("reward", reward)
        if not -LARGEST_REWARD < number < LARGEST_REWARD:
            raise self._breach("the reward must be finite", reward)
        if type(terminated) not in _FLAGS or type(truncated) not in _FLAGS:
            terminated, truncated = self._flag("terminated", terminated), self._flag("truncated", truncated)
        self._first[row] = False
        self._reward[row] = number
        cut = False
        if truncated:
            if row == 0:
                self._warnings.of_cut(obs)
        elif self._cut_at and self._book.length_R[row] + 1 == self._cut_at.get(row):
            truncated = cut = True
        if terminated or truncated:
            self._cut_at.pop(row, None)
            self._terminated[row] = bool(terminated)
            self._truncated[row] = not terminated
            self._ended[row] = True
            self._end(row, info, out, cut=cut)
            # The mask is optional in the last step of an episode.
            info = {ACTION_MASK: self._all_allowed, **info}
        self._write_obs(row, obs, info, out)

    def _end(self, row: int, info: Mapping[str, Any], out: StepArrays, *, cut: bool) -> None:
        """Record an episode's objective and statistics. cut: True if `spread_phases` has truncated the episode."""
        summed = float(self._book.raw_R[row]) + self._reward[row]
        objective = objective_of(self.spec.env_id, info, summed)
        if objective is not None:
            self._objective[row] = objective
        if not cut:  # because the environment cannot know of the cut
            self._warnings.of_objective(given="true_objective" in info)
        self._warnings.of_end(info, terminated=self._terminated[row])
        self._warnings.of_stats(out, row, info.get("episode_extra_stats"))

    def _write_obs(self, row: int, obs: Any, info: Any, out: StepArrays) -> None:
        for leaf in self._leaves:
            plain = fits_as_it_is(leaf, obs)
            source = info if leaf.in_info else obs
            out.obs[leaf.name][row] = obs if plain else read_leaf(leaf, source, self.spec.env_id)

    def _write(self, out: StepArrays) -> None:
        """Check the observations in `out`, and write the rewards, flags and statistics of a step of all rows."""
        for leaf in self._leaves:
            if leaf.kind == "float":
                check_finite(leaf, out.obs[leaf.name], self.spec.env_id)
        first_R, reward_R = np.array(self._first), np.array(self._reward, np.float64)
        self._book.add(reward_R, reward_R, ~first_R)
        # Episode statistics are written only at ends, because writing them takes a fifth of a small step.
        if True in self._ended:
            self._book.write(out)
            while self._objective:
                row, objective = self._objective.popitem()
                out.objective[row] = objective
        out.first[:] = first_R
        out.reward[:] = reward_R
        out.terminated[:] = self._terminated
        out.truncated[:] = self._truncated
        out.episode_done[:] = self._ended

    def _flag(self, what: str, value: Any) -> bool:
        try:
            return flag_of(value)
        except ValueError:
            raise self._breach(f"{what} must be True or False", value) from None

    def _number(self, what: str, value: Any) -> float:
        try:
            return number_of(value)
        except (TypeError, ValueError):
            raise self._breach(f"the {what} must be a number", value) from None


@contextlib.contextmanager
def _equal_mujoco_warnings_once() -> Iterator[None]:
    """Collect MuJoCo's warnings, and print each text once at the end. MuJoCo does not write them to MUJOCO_LOG.TXT.

    MuJoCo 4 repeats a deprecation warning for each environment. The handler must not run Python code, because MuJoCo
    aborts the process if a handler raises an exception, such as KeyboardInterrupt. A user's handler stays.
    """
    mujoco: Any = sys.modules.get("mujoco")
    if not hasattr(mujoco, "get_mju_user_warning") or mujoco.get_mju_user_warning() is not None:
        yield
        return
    texts: list[str] = []
    mujoco.set_mju_user_warning(texts.append)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(None)
        for text in dict.fromkeys(texts):
            print(f"WARNING: {text}", file=sys.stderr, flush=True)


def names() -> tuple[str, ...]:
    """Return the registered ids whose packages are installed, except Atari's, because Atari is a separate family."""
    found = []
    for env_id, spec in gymnasium.registry.items():
        point = spec.entry_point if isinstance(spec.entry_point, str) else ""
        # Environments that were moved out of Gymnasium have a function of Gymnasium as entry point.
        moved = getattr(spec.entry_point, "__module__", "").startswith("gymnasium.")
        needs = [package for prefix, package in EXTRAS.items() if point.startswith(prefix)]
        if not (moved or point.startswith("ale_py")) and all(map(find_spec, needs)):
            found.append(env_id)
    return tuple(sorted(found))


def maker(gym_id: str, keywords: Mapping[str, Any] = MappingProxyType({})) -> MakeEnv:
    """Return a function that makes environments by id, such as `CartPole-v1` or `package:Name-v0`.

    The function raises EnvSetupError for an unknown id and for a missing package.
    """

    def make() -> gymnasium.Env[Any, Any]:
        try:
            # Gymnasium's checker is disabled because this package's checks take less time and raise errors.
            with warnings.catch_warnings():  # Gymnasium warns if a newer version exists
                warnings.filterwarnings("ignore", ".*is out of date", DeprecationWarning)
                return gymnasium.make(registered(gym_id), disable_env_checker=True, **keywords)
        except (gymnasium.error.Error, ImportError, TypeError) as error:
            if isinstance(error, TypeError) and not keywords:
                raise
            raise EnvSetupError(_cannot_make(gym_id, error)) from error

    return make


def _cannot_make(gym_id: str, error: Exception) -> str:
    reason, hint = str(error).rstrip(".?"), ""
    old: Any = sys.modules.get("gym")
    registry = attribute(attribute(old, "envs"), "registry") or {}
    name = gym_id.rpartition(":")[2]
    if name in (attribute(registry, "env_specs") or registry) or "named 'gym'" in reason:
        return (
            f"gym/{gym_id} cannot be made: it is registered with gym, the predecessor of Gymnasium. "
            f'Write a factory that returns pbt_rl.envs.old_gym.OldGym(gym.make("{name}")), and pass '
            "it as --env module:factory" + ("" if old else ". Also install gym (pip install gym)")
        )
    if gym_id not in gymnasium.registry:
        close = difflib.get_close_matches(gym_id, names())
        hint = f" Did you mean {', '.join(f'gym/{name}' for name in close)}?" if close else ""
        if not close and ":" not in gym_id:
            hint = f" If your own module registers it, write gym/MODULE:{gym_id}."
    return f"gym/{gym_id} cannot be made: {reason}.{hint} `pbt-rl envs` lists what is installed"


def make_vector_env(
    gym_id: str, rows: int, seed: int, shaping: ShapingSource, keywords: Mapping[str, Any]
) -> GymVectorEnv:
    """Make R environments by Gymnasium id."""
    return GymVectorEnv(f"gym/{gym_id}", maker(gym_id, keywords), rows, seed, shaping)


BACKEND = keywords_backend(
    "gym",
    names,
    lambda name, keywords: probe_with(f"gym/{name}", maker(name, keywords)),
    make_vector_env,
    recipe,
    make=lambda name, options: maker(name, options.keywords)(),
)
