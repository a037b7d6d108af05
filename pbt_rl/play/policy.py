"""Trained member as a function: `policy = load_policy("runs/demo")`, then `action, state = policy(obs, state)`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from operator import index
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from pbt_rl.algos.model_config import ModelConfig
from pbt_rl.algos.pack import Pack
from pbt_rl.envs.actions import action_decoder
from pbt_rl.envs.base import EnvSpec
from pbt_rl.envs.lookup import EnvOptions, evaluation_options, make_raw, probe
from pbt_rl.envs.spaces import Leaf, leaves_of, read_rows
from pbt_rl.envs.time_limits import closing
from pbt_rl.envs.user_values import array_of
from pbt_rl.errors import ConfigError, environment_code
from pbt_rl.options.values import path_given
from pbt_rl.play import member as play
from pbt_rl.play.member import PolicyState, load_pack, say
from pbt_rl.record.saved import BEST, Source, saved_to_play


@dataclass(frozen=True)
class _Array:
    """Array of an observation in the format of the environment. path: keys of the array in a nested observation."""

    name: str
    path: tuple[str, ...]
    shape: tuple[int, ...]
    read: Callable[[NDArray[Any], int], NDArray[Any]]
    """Function from (array [R, *shape], R) to an input array of the network. R: number of environments."""


@dataclass(frozen=True)
class Interface:
    """Conversion of an environment's observations to input arrays, and of a policy's output arrays to actions.

    Axes: R environments, A action components.
    """

    arrays: tuple[_Array, ...]
    actions: Callable[[NDArray[Any]], Any]
    """Function from an array [A] to the action of one environment, and from [R, A] to the actions of R environments."""


class Policy(play.Policy):
    """Trained policy as a function of the environment's observations: `action, state = policy(obs, state)`.

    model: network options of the run. seed: seed of action sampling. greedy: True to take the most probable choices,
    and the means of continuous components, instead of sampling. interface: None means the interface of a vector env.
    """

    def __init__(
        self,
        pack: Pack,
        spec: EnvSpec,
        model: ModelConfig,
        seed: int,
        *,
        greedy: bool,
        interface: Interface | None = None,
    ) -> None:
        super().__init__(pack, spec, model, seed, greedy=greedy)
        self._loaded: dict[str, Any] | None = None
        whole = vector_env_interface(spec) if interface is None else interface
        self._interface = replace(whole, arrays=tuple(a for a in whole.arrays if a.name not in spec.critic))

    def __call__(
        self, obs: Any, state: PolicyState | None = None, first: NDArray[np.bool_] | None = None
    ) -> tuple[Any, PolicyState]:
        """Return (action, state for the next call). Raises ConfigError if the observation does not fit.

        obs: observation of one environment, or of R environments with a leading axis R: an array, a nested dict or
        tuple, or a flat dict with the names of `spec.obs`. Observations that only the critic reads (`spec.critic`) may
        be missing. If the environment returns an action mask in the info dict, add the mask to the dict as
        `action_mask`. An observation that is one array then has the key `obs`.
        state: state that the previous call returned for the same rows. None when all episodes begin.
        first: [R] bool, True if the episode of a row begins with this observation. Needed if some episodes begin while
        others continue.
        """
        arrays, rows = self._read(obs)
        count = 1 if rows is None else rows
        if count == 0:
            none = np.zeros((0, self.spec.action.components), self.spec.action.dtype)
            return self._interface.actions(none), self._blank(0)
        if state is not None and (before := state.recurrent_PRS.shape[1]) != count:
            raise ConfigError(
                f"the state has {before} rows, but the observation has {count}: give the state of the previous call, "
                "or None if all episodes begin"
            )
        begins = np.full(count, state is None)
        if first is not None:
            given = np.asarray(first, np.bool_)
            if given.size != count:
                raise ConfigError(
                    f"first has {given.size} entries, but the observation has {count} rows: give [R] bool"
                )
            begins |= given.reshape(count)
        action_RA, state = self.act(arrays, begins, state)
        if rows is None:
            return self._interface.actions(action_RA[0]), state
        return self._interface.actions(action_RA), state

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arguments of `load_policy`. The unpickling process loads the policy again, with the initial seed.

        Raises TypeError for a policy that `load_policy` did not return. Unpickling raises ConfigError if the checkpoint
        was deleted. (A training run deletes old checkpoints.)
        """
        if self._loaded is None:
            raise TypeError("only a policy of load_policy can be pickled")
        return partial(load_policy, **self._loaded), ()

    def _read(self, obs: Any) -> tuple[dict[str, NDArray[Any]], int | None]:
        """Return name -> input array of the network, and the number of rows.

        The number is None if `obs` has no axis of rows. Raises ConfigError if an array has a wrong shape or value, or
        if arrays have different numbers of rows.
        """
        given = {array.name: self._array(array, obs) for array in self._interface.arrays}
        rows_of: dict[str, int | None] = {}
        for array in self._interface.arrays:
            extra = given[array.name].ndim - len(array.shape)
            if extra not in (0, 1) or given[array.name].shape[extra:] != array.shape:
                batched = ", ".join(map(str, ("R", *array.shape)))
                raise ConfigError(
                    f"observation {array.name!r} of {self.spec.env_id} has shape {given[array.name].shape}: give "
                    f"{array.shape}, or ({batched}) for R rows"
                )
            rows_of[array.name] = given[array.name].shape[0] if extra else None
        rows = next(iter(rows_of.values()), None)
        if any(others != rows for others in rows_of.values()):
            numbers = ", ".join(f"{name!r} {'none' if of is None else of}" for name, of in rows_of.items())
            raise ConfigError(
                f"arrays of the observation of {self.spec.env_id} have different numbers of rows ({numbers}): give "
                "each array the same number, or no array an axis of rows"
            )
        count = 1 if rows is None else rows
        try:
            return {
                array.name: array.read(given[array.name].reshape(count, *array.shape), count)
                for array in self._interface.arrays
            }, rows
        except ValueError as error:
            raise ConfigError(str(error)) from error

    def _array(self, array: _Array, obs: Any) -> NDArray[Any]:
        found = self._find(array, obs)
        try:
            return array_of(found)
        except ValueError as error:
            raise ConfigError(
                f"observation {array.name!r} of {self.spec.env_id} cannot be used: {error}"
            ) from error

    def _find(self, array: _Array, obs: Any) -> Any:
        in_tuple = isinstance(obs, tuple) and array.path[:1] != () and array.path[0].isdecimal()
        if not isinstance(obs, Mapping) and not in_tuple and len(self._interface.arrays) == 1:
            return obs
        if isinstance(obs, Mapping) and array.name in obs:
            return obs[array.name]
        if isinstance(obs, Mapping) or in_tuple:
            value = obs
            for key in array.path or (array.name,):
                if isinstance(value, tuple | list) and key.isdecimal() and int(key) < len(value):
                    value = value[int(key)]
                elif isinstance(value, Mapping) and key in value:
                    value = value[key]
                else:
                    break
            else:
                return value
        names = ", ".join(one.name for one in self._interface.arrays)
        raise ConfigError(
            f"the observation of {self.spec.env_id} lacks {array.name!r}: give a dict with {names}, "
            f"got {type(obs).__name__}{sorted(map(str, obs)) if isinstance(obs, Mapping) else ''}"
        )


def load_policy(
    run: Path | str,
    member: str | int = BEST,
    *,
    at: int | None = None,
    greedy: bool = False,
    seed: int = 0,
    trust: bool = False,
) -> Policy:
    """Load a trained member of a run as a policy on the CPU.

    run: folder of the run. member: id of a member, or `best`. at: frames of a checkpoint. None: newest checkpoint.
    greedy: True to take the most probable choices, and the means of continuous components, instead of sampling with
    `seed`.
    trust: True to import the modules that the run's config.json names, such as a custom environment. It is needed only
    for a run of another user, or for a copied or moved run.
    Raises ConfigError for `at` and `seed` that are not whole numbers from 0 on, for a folder without a run, for an
    unsaved member or checkpoint, for weights that do not fit the environment or the config, and if the run needs
    `trust`.
    The function makes the environment, to read its spaces. Raises EnvSetupError if the environment cannot be made.
    """
    folder, seed = path_given("run", run), _whole("seed", seed)
    at = None if at is None else _whole("at", at)
    config, saved = saved_to_play(Source(folder, at, str(member)), say, trust=trust)
    with environment_code(config.env):
        options = evaluation_options(config.env, config.env_options)
        spec = probe(config.env, options)
        interface = gymnasium_interface(spec, options) or vector_env_interface(spec)
    play.warn_of_mistakes(spec)
    pack = load_pack(config, spec, saved, seed)
    policy = Policy(pack, spec, config.model, seed, greedy=greedy, interface=interface)
    policy._loaded = {  # noqa: SLF001 - its own module
        "run": folder.absolute(),
        "member": str(saved.member),
        "at": saved.checkpoint.frames,
        "greedy": greedy,
        "seed": seed,
        "trust": trust,
    }
    return policy


def _whole(name: str, value: Any) -> int:
    """Convert an argument to an integer. Raises ConfigError unless it is a whole number >= 0 of at most 18 digits."""
    try:
        number = index(value)
    except TypeError:
        number = -1
    if not 0 <= number < 10**18:
        raise ConfigError(f"{name}={value!r:.80} cannot be used: give a whole number of at most 18 digits")
    return number


def gymnasium_interface(spec: EnvSpec, options: EnvOptions) -> Interface | None:
    """Return the interface that the spaces of a Gymnasium environment define. None for other environments."""

    def reader(leaf: Leaf) -> Callable[[NDArray[Any], int], NDArray[Any]]:
        bare = replace(leaf, path=(), in_info=False)
        return lambda array, rows: read_rows(bare, array, rows, spec.env_id)

    env = make_raw(spec.env_id, options)
    if env is None:
        return None
    with closing(env):
        if isinstance(env, VectorEnv):
            spaces = env.single_observation_space, env.single_action_space
        elif isinstance(env, gymnasium.Env):
            spaces = env.observation_space, env.action_space
        else:
            return None
        leaves = leaves_of(spec.env_id, *spaces, env.metadata)
        added = {
            name: array for name, array in spec.obs.items() if name not in {leaf.name for leaf in leaves}
        }
        return Interface(
            (
                *(_Array(leaf.name, leaf.path, leaf.shape, reader(leaf)) for leaf in leaves),
                *vector_env_interface(replace(spec, obs=added)).arrays,
            ),
            action_decoder(spaces[1]),
        )


def vector_env_interface(spec: EnvSpec) -> Interface:
    """Return the interface of a vector env: observations as in the spec, actions as arrays of components."""

    def reader(dtype: str) -> Callable[[NDArray[Any], int], NDArray[Any]]:
        return lambda array, _rows: array.astype(dtype, copy=False)

    return Interface(
        tuple(_Array(name, (name,), array.shape, reader(array.dtype)) for name, array in spec.obs.items()),
        lambda action: action,
    )
