"""Gymnasium vector environments as a `VectorEnv`: one call steps all rows.

`metadata["autoreset_mode"]` determines when a row is reset after the end of its episode:

    NEXT_STEP   In the next step, as in this project. Every transition is used for learning.
    SAME_STEP   In the step that ends the episode. `info["final_obs"]` contains the final observation.
    DISABLED    After the step that ends the episode, by a call of `reset(options={"reset_mask": ...})` in this module.

In this project, the reset of a row takes one step (see `StepArrays`). With SAME_STEP and DISABLED, it takes none. One
call steps all rows. Therefore, the first step of the new episode takes the place of the reset:

- The action that the policy chose for the final observation becomes the first action of the new episode. Therefore the
  final observation is delivered with the action mask of the new episode's first observation.
- The first step of the new episode is delivered with `first` set and reward 0. The actual reward of this step counts
  for the episode's return, but not for learning.

Axes: R rows.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, VectorEnv
from numpy.typing import NDArray

from pbt_rl.errors import EnvSetupError

from .actions import action_decoder, action_spec
from .base import (
    ACTION_MASK,
    LARGEST_REWARD,
    EnvSpec,
    RewardShapingInterface,
    ShapingSource,
    StepArrays,
    copied,
    seeds_of,
    training_info,
)
from .conventions import ConventionWarnings, mistakes_of, normalised, notes_of, tells_limit
from .episode_book import EpisodeBook, all_at_once, heartbeat_of, objective_of, write_reset
from .family import Kind
from .shaping import (
    declared,
    default_shaping,
    find_interface,
    find_training_info,
    frames_per_step,
    unflatten,
    with_critic,
)
from .signatures import can_be_called
from .spaces import Leaf, leaves_of, read_leaf, read_rows
from .user_values import array_of, attribute, breach, check_has, metadata_of, wrapped

AnyVectorEnv = VectorEnv[Any, Any, Any]
SPACES = ("single_observation_space", "single_action_space", "observation_space")


def describe_vector(env_id: str, env: AnyVectorEnv) -> EnvSpec:
    """Return the spec of a row. Raises EnvSetupError for unsupported spaces, shaping or autoreset modes."""
    check_has(env_id, env, SPACES)
    _autoreset_mode(env_id, env)
    _check_reach(env_id, env)
    shapers = _shapers(env_id, env)
    shaping = default_shaping(env_id, shapers[0][0]) if shapers else {}
    seen = (env, _one_row(env))
    action = action_spec(env.single_action_space, env_id)
    mistakes = [text for one in seen for text in mistakes_of(one, env.single_observation_space, action)]
    if _hides(env, "obs_rms"):
        mistakes.append(normalised("the rows of AsyncVectorEnv"))
    spec = EnvSpec(
        env_id=env_id,
        obs={leaf.name: leaf.spec for leaf in _leaves_of(env_id, env)},
        action=action,
        frame_skip=frames_per_step(env_id, _declares_frames(env)),
        shaping=shaping,
        notes=tuple(dict.fromkeys(note for one in seen for note in notes_of(env_id, one))),
        mistakes=tuple(dict.fromkeys(mistakes)),
    )
    return with_critic(spec, declared(env_id, metadata_of(env)))


class NativeVectorEnv:
    """Adapter of a Gymnasium vector environment with R rows. Only the first reset is seeded."""

    def __init__(self, env_id: str, env: AnyVectorEnv, seed: int, shaping: ShapingSource) -> None:
        self.spec = describe_vector(env_id, env)
        self.rows = rows = env.num_envs
        self._env: AnyVectorEnv | None = env
        self._mode = _autoreset_mode(env_id, env)
        self._shaping = shaping
        self._shapers = _shapers(env_id, env)
        self._informed = find_training_info(env)
        self._informed_R = [find_training_info(one) for one in _rows_of(env)]
        self._leaves, self._spaces = _leaves_of(env_id, env), _spaces_of(env)
        self._decode = action_decoder(env.single_action_space)
        self._seed: int | None = seeds_of(seed, 1)[0]
        self._ended_R = np.zeros(rows, np.bool_)
        self._compared = False
        """True after a reset with a mask was checked for changes of other rows."""
        self._book = EpisodeBook(rows, shaping)
        self._warnings = ConventionWarnings(shaping, self.spec, rows)
        self._breach = partial(breach, env_id)

    def reset(self, out: StepArrays) -> None:
        assert self._env is not None, "the vector env is closed"
        self._begin_episodes(range(self.rows))
        with all_at_once(heartbeat_of(self._shaping), self.rows):
            obs, info = self._reset(seed=self._seed)
        self._seed = None
        self._warnings.of_info(info)
        self._warnings.of_first_obs(self._env.observation_space, obs)
        self._warnings.of_spaces(_spaces_of(self._env), self._spaces)
        for shaper, _ in self._shapers:
            self._warnings.of_shaping(partial(default_shaping, self.spec.env_id, shaper))
        self._ended_R[:] = False
        self._write_obs(obs, info, out)
        write_reset(out)
        self._book.write(out)

    def _reset(self, **keywords: Any) -> tuple[Any, Any]:
        """Return (observations, infos) of a reset."""
        assert self._env is not None
        answer: Any = self._env.reset(**keywords)
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise self._breach("reset() must return (observations, infos)", answer)
        return answer

    def step(self, action: NDArray[Any], out: StepArrays) -> None:
        """Advance all rows by one step. action: [R, A] of `spec.action.dtype`."""
        assert self._env is not None, "the vector env is closed"
        starts_R = self._ended_R
        in_step = self._mode is AutoresetMode.NEXT_STEP
        if in_step and starts_R.any():
            self._begin_episodes(np.flatnonzero(starts_R).tolist())
        answer: Any = self._env.step(self._decode(action))
        if not isinstance(answer, tuple) or len(answer) != 5:
            rule = "step() must return (observations, rewards, terminations, truncations, infos)"
            raise self._breach(rule, answer)
        obs, reward, terminated, truncated, info = answer
        reward_R = self._rewards(reward)
        terminated_R, truncated_R = self._flags(terminated), self._flags(truncated)
        if in_step:  # in a reset, rewards and ends are meaningless
            pays = bool((starts_R & ((reward_R != 0) | terminated_R | truncated_R)).any())
            self._warnings.of_next_step(info if isinstance(info, Mapping) else {}, pays=pays)
            reward_R = reward_R * ~starts_R
            terminated_R, truncated_R = terminated_R & ~starts_R, truncated_R & ~starts_R
        over_R = terminated_R | truncated_R
        # An episode of one step is not reported, because its only step is delivered as the reset.
        done_R = over_R & ~starts_R

        compared_R = done_R & truncated_R if self._mode is AutoresetMode.SAME_STEP else done_R
        compares = not in_step and self._warnings.compares_finals and bool(compared_R.any())
        before = copied(out.obs) if compares else {}
        self._write_obs(obs, info, out, nobody_acts=bool(over_R.all()))
        self._book.add(reward_R, reward_R, ~starts_R if in_step else True)
        out.first[:] = starts_R
        out.reward[:] = reward_R * ~starts_R
        out.terminated[:] = terminated_R & done_R
        out.truncated[:] = truncated_R & done_R & ~terminated_R
        out.episode_done[:] = done_R
        self._warnings.of_info(info)
        self._book.write(out, self._objectives(np.flatnonzero(done_R).tolist(), info, out))
        self._ended_R = done_R
        if not in_step and over_R.any():
            self._leave(over_R, done_R, info, out, before)

    def close(self) -> None:
        """Close the environment once."""
        if self._env is not None:
            self._env.close()
            self._env = None

    def _leave(
        self,
        over_R: NDArray[np.bool_],
        done_R: NDArray[np.bool_],
        info: Any,
        out: StepArrays,
        before: Mapping[str, NDArray[Any]],
    ) -> None:
        """Begin the next episode in the rows of `over_R`. Deliver the final observation of the rows in `done_R`.

        over_R: rows whose episode has ended. done_R: the same rows, except rows whose episode had only one step.
        before: observations before this step. Empty if final observations are not compared.
        """
        assert self._env is not None
        self._begin_episodes(np.flatnonzero(over_R).tolist())
        if self._mode is AutoresetMode.SAME_STEP:
            first = copied(out.obs) if before else {}
            for row in np.flatnonzero(done_R).tolist():
                finals, final = info.get("final_obs"), None
                with suppress(TypeError, LookupError):  # not an array of R rows
                    final = _of_row(finals, row)
                if final is None:
                    raise self._breach(
                        'with AutoresetMode.SAME_STEP, info["final_obs"] must hold the final observation '
                        f"of every row that ended (row {row})",
                        info if finals is None else finals,
                    )
                for leaf in self._leaves:
                    if leaf.kind != "mask":
                        out.obs[leaf.name][row] = read_leaf(leaf, final, self.spec.env_id)
            if before:
                self._warnings.of_finals(out.truncated, before, out.obs, first)
            return
        obs, info = self._reset(options={"reset_mask": over_R.copy()})
        unseen_R, others_R = over_R & ~done_R, ~over_R
        compared = not self._compared and bool(others_R.any())
        first = {}
        for leaf in self._leaves:
            shown_R = over_R if leaf.kind == "mask" else unseen_R
            if shown_R.any() or compared or before:
                source = info if leaf.in_info else obs
                first[leaf.name] = fresh = read_rows(leaf, source, self.rows, self.spec.env_id)
                if compared and not leaf.in_info:
                    kept = np.array_equal(fresh[others_R], out.obs[leaf.name][others_R])
                    self._warnings.of_masked_reset(changed=not kept)
        if before:
            self._warnings.of_finals(done_R, before, out.obs, first, same_step=False)
        for name, fresh in first.items():
            shown_R = over_R if name == ACTION_MASK else unseen_R
            out.obs[name][shown_R] = fresh[shown_R]
        self._compared |= compared

    def _begin_episodes(self, rows: Iterable[int]) -> None:
        """Begin episodes in these rows: reset their statistics, and set their shaping and training info."""
        for row in rows:
            values = self._book.open_episode(row)
            if self._shapers:
                shaper, index = self._shapers[row]
                shaper.set_reward_shaping(unflatten(values), index)
            info = training_info(self._shaping, row)
            if info is None:
                continue
            if self._informed is not None:
                self._informed.set_training_info({**info, "row": row})
            elif self._informed_R and (informed := self._informed_R[row]) is not None:
                informed.set_training_info(info)

    def _write_obs(self, obs: Any, info: Any, out: StepArrays, *, nobody_acts: bool = False) -> None:
        for leaf in self._leaves:
            source = info if leaf.in_info else obs
            if leaf.in_info and nobody_acts and leaf.name not in info:
                out.obs[leaf.name][:] = 1  # the mask is optional in the last step of an episode
                continue
            out.obs[leaf.name][:] = read_rows(leaf, source, self.rows, self.spec.env_id)

    def _objectives(self, ended: list[int], info: Any, out: StepArrays) -> NDArray[np.float64]:
        """Return objectives [R], and write the extra statistics of rows whose episode has ended.

        ended: indices of rows whose episode has ended. The objective of every other row is the row's raw return so far.
        """
        objective_R = self._book.raw_R
        if not ended:
            return objective_R
        if not isinstance(info, Mapping):
            raise self._breach("infos must be a dict", info)
        outer = info  # with the entries that wrappers of the vector environment add
        if self._mode is AutoresetMode.SAME_STEP and "final_info" in info:
            info = info["final_info"]
        objective_R = objective_R.copy()
        for row in ended:
            try:
                own = info[row] if isinstance(info, np.ndarray | list | tuple) else _filled(info, row)
                of_row = {"episode": _filled(outer, row).get("episode"), **(own or {})}
            except (TypeError, ValueError, LookupError):
                rule = 'infos, and info["final_info"], must have a value for each row in every entry'
                raise self._breach(rule, outer if isinstance(info, Mapping) else info) from None
            objective = objective_of(self.spec.env_id, of_row, objective_R[row])
            if objective is not None:
                objective_R[row] = objective
            self._warnings.of_objective(given="true_objective" in of_row)
            self._warnings.of_end(of_row, terminated=bool(out.terminated[row]))
            self._warnings.of_stats(out, row, of_row.get("episode_extra_stats"))
        return objective_R

    def _rewards(self, reward: Any) -> NDArray[np.float64]:
        try:
            given_R = array_of(reward)
            reward_R = given_R.astype(np.float64)
        except (TypeError, ValueError):
            raise self._breach("rewards must be numbers", reward) from None
        if given_R.dtype.kind in "SU":  # NumPy converts text
            raise self._breach("rewards must be numbers", reward)
        if reward_R.shape != (self.rows,):
            raise self._breach(f"rewards must have shape ({self.rows},)", reward)
        if not (np.abs(reward_R) < LARGEST_REWARD).all():
            raise self._breach("rewards must be finite", reward)
        return reward_R

    def _flags(self, flags: Any) -> NDArray[np.bool_]:
        try:
            flags_R = array_of(flags)
        except ValueError:  # a ragged list
            raise self._breach("terminations and truncations must be True or False", flags) from None
        if flags_R.shape != (self.rows,):
            raise self._breach(f"terminations and truncations must have shape ({self.rows},)", flags)
        if flags_R.dtype != np.bool_ and not ((flags_R == 0) | (flags_R == 1)).all():
            raise self._breach("terminations and truncations must be True or False", flags)
        return flags_R.astype(np.bool_, copy=False)


def _spaces_of(env: AnyVectorEnv) -> tuple[Any, Any]:
    return env.single_observation_space, env.single_action_space


def _leaves_of(env_id: str, env: AnyVectorEnv) -> tuple[Leaf, ...]:
    return leaves_of(env_id, env.single_observation_space, env.single_action_space, metadata_of(env))


def _autoreset_mode(env_id: str, env: AnyVectorEnv) -> AutoresetMode:
    mode = metadata_of(env).get("autoreset_mode")
    try:
        found = AutoresetMode(mode)
    except ValueError:
        raise EnvSetupError(
            f'{env_id}: metadata["autoreset_mode"] of the vector environment is {mode!r}. Set it to the mode that the '
            "environment uses: gymnasium.vector.AutoresetMode.NEXT_STEP, SAME_STEP or DISABLED"
        ) from None
    if found is AutoresetMode.DISABLED and not can_be_called(env.reset, options={}):
        raise EnvSetupError(
            f"{env_id}: its reset{inspect.signature(env.reset)} does not accept options, but AutoresetMode.DISABLED "
            'needs reset(options={"reset_mask": ...}). Add this parameter, or declare another mode'
        )
    return found


def _shapers(env_id: str, env: AnyVectorEnv) -> list[tuple[RewardShapingInterface, int]]:
    """Return (object with `set_reward_shaping`, agent index) of each row, or [] if the rows have no shaping.

    The object is the vector environment or one of its rows. Raises EnvSetupError if the rows have different defaults.
    """
    default_shaping(env_id, env)
    shared = find_interface(env)
    if shared is not None:
        return [(shared, row) for row in range(env.num_envs)]
    single = [find_interface(one) for one in _rows_of(env)]
    defaults = [default_shaping(env_id, one) for one in _rows_of(env)]
    if any(one != defaults[0] for one in defaults):
        raise EnvSetupError(f"{env_id}: two rows have different reward shaping. Use equal defaults")
    return [(one, 0) for one in single if one is not None]


def _check_reach(env_id: str, env: AnyVectorEnv) -> None:
    """Raise EnvSetupError if only rows in other processes have methods for shaping or `set_training_info`.

    AsyncVectorEnv calls a method of all rows with the same arguments, but the arguments differ between rows.
    """
    for what, find, names in (
        ("reward shaping", find_interface, ("get_default_reward_shaping", "set_reward_shaping")),
        ("training info", find_training_info, ("set_training_info",)),
    ):
        if find(env) is None and _hides(env, *names):
            raise EnvSetupError(
                f"{env_id}: the rows of its AsyncVectorEnv have {what} ({', '.join(names)}). These methods cannot be "
                "called because each row runs in a separate process. Use SyncVectorEnv, or return single environments "
                "(actors run them in parallel), or implement these methods in the vector environment"
            )


def _hides(env: Any, *names: str) -> bool:
    """Check whether rows run in processes other than this one, and have all attributes `names`."""
    inner = _in_processes(env)
    return inner is not None and all(any(inner.call("has_wrapper_attr", name)) for name in names)


def _in_processes(env: Any) -> AsyncVectorEnv | None:
    return next((one for one in wrapped(env) if isinstance(one, AsyncVectorEnv)), None)


def _declares_frames(env: AnyVectorEnv) -> Any:
    """Return an object whose `frames_per_step` is the value of a row, even if rows run in other processes."""
    inner = _in_processes(env)
    if inner is None or not _hides(env, "frames_per_step"):
        return _one_row(env)
    return SimpleNamespace(frames_per_step=inner.get_attr("frames_per_step")[0])


def _one_row(env: AnyVectorEnv) -> Any:
    """Return the first row if the environment has a list of rows (`envs`), else the environment."""
    rows = _rows_of(env)
    return rows[0] if rows else env


def _rows_of(env: Any) -> list[Any]:
    found = (attribute(one, "envs") for one in wrapped(env))
    return next((rows for rows in found if isinstance(rows, list)), [])


def _of_row(tree: Any, row: int) -> Any:
    """Return one row of a batched observation, recursively in dicts and tuples.

    Keys that begin with `_` are left out, because they are Gymnasium's masks.
    """
    if isinstance(tree, tuple):
        return tuple(_of_row(value, row) for value in tree)
    if isinstance(tree, Mapping):
        return {key: _of_row(value, row) for key, value in tree.items() if not str(key).startswith("_")}
    return tree[row]


def _filled(info: Mapping[str, Any], row: int) -> dict[str, Any]:
    """Return the objective, statistics and flags of truncations of one row from Gymnasium's batched info.

    The mask `_NAME` [R] is True for rows that have the entry NAME.
    """
    names = ("true_objective", "episode", "episode_extra_stats", *filter(tells_limit, info))
    wanted = {f"{mark}{name}" for name in names for mark in ("", "_")}
    given: dict[str, Any] = _entry({name: info[name] for name in wanted & info.keys()}, row)
    return given


def _entry(value: Any, row: int) -> Any:
    """Return one row of a batched value, recursively in dicts. Unbatched values apply to every row."""
    if isinstance(value, Mapping):
        masks = {name for name in value if name.startswith("_") and name[1:] in value}
        return {
            name: _entry(part, row)
            for name, part in value.items()
            if name not in masks and (f"_{name}" not in masks or value[f"_{name}"][row])
        }
    array = np.asarray(value)
    return array[row] if array.ndim and len(array) > row else value


KIND = Kind(
    "a gymnasium.vector.VectorEnv",
    lambda env: isinstance(env, VectorEnv),
    describe_vector,
    lambda env_id, make, _rows, seed, shaping: NativeVectorEnv(env_id, make(), seed, shaping),
    all_rows=True,
)
