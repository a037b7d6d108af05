"""EnvPool tasks (Atari, MuJoCo, MiniGrid, classic control ...) as vector envs.

A vector env is one EnvPool of R rows, the *engine*. The engine has one thread unless --env-option num_threads is given.
EnvPool resets a row in the step after its episode's end and ignores the action of that step, as this project requires.
An episode that ends by its time limit is truncated.

With some invalid options the engine ends the process without an exception. Therefore each task is first tried with its
options in a fork of this process (`first_trial.tried`). The output of the fork becomes part of the error message.

Atari games have the options --atari.*, as in the family atari/. The engine returns the newest frame and the raw score.
`AtariScoring` handles clipping and lives. The objective of a task is the raw score or return.

Axes: R rows.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from tempfile import TemporaryDirectory
from typing import Any

import envpool
import numpy as np
from envpool.registration import registry as _registry
from gymnasium import spaces
from numpy.typing import NDArray

from pbt_rl.errors import EnvSetupError

from . import atari
from .actions import action_decoder, action_spec
from .atari import MULTIPLAYER_ONLY, AtariOptions, AtariScoring, raw_scores
from .base import ACTION_MASK, LARGEST_REWARD, ArraySpec, EnvSpec, ShapingSource, StepArrays
from .episode_book import EpisodeBook, all_at_once, heartbeat_of, write_reset
from .family import Backend
from .first_trial import tried
from .gym import recipe as gym_recipe
from .spaces import SMALL, Leaf, obs_leaves, read_rows, with_mask
from .time_limits import GRACE_SECONDS, PROBE_SECONDS

OURS = ("num_envs", "batch_size", "seed", "env_seed", "max_num_players", "gym_reset_return_info", "base_path")
"""Options of `envpool.make` that users cannot set. The vector env sets `num_envs` and `seed`, and needs the defaults of
the other options.
"""
BY_ATARI_OPTIONS = {
    "frame_skip": "frame-skip",
    "stack_num": "frame-stack",
    "repeat_action_probability": "repeat-action-probability",
    "full_action_space": "full-action-space",
    "noop_max": "noop-max",
    "episodic_life": "episodic-life",
    "reward_clip": "clip-reward",
    "use_fire_reset": "fire-reset",
    "max_episode_steps": "max-frames-per-episode",
}
"""Option of `envpool.make` -> corresponding option `--atari.*`."""
DOOM = "envpool.vizdoom"
MOST_CHOICES_SEEN = 512
"""Maximum size of a one-hot observation. An integer observation with more values is converted to numbers."""


@dataclass(frozen=True)
class Task:
    """Task with its options, prepared for the vector env.

    leaves: arrays of an observation, including the action mask.
    decode: converts actions [R, A] to the engine's shape and dtype.
    """

    keywords: Mapping[str, Any]
    """Keywords of `envpool.make`."""
    spec: EnvSpec
    leaves: tuple[Leaf, ...]
    decode: Callable[[NDArray[Any]], Any]
    is_atari: bool
    fire: int | None
    """Index of the action FIRE in an Atari game. None if the game has no action FIRE."""


def names() -> tuple[str, ...]:
    """Return the names of single-player tasks except Doom's, sorted. A task with several names is listed once."""
    found: dict[str, str] = {}
    for name, (module, spec, fixed) in _registry.specs.items():
        if module == DOOM:
            continue
        if fixed.get("max_num_players", 1) == 1 and fixed.get("task") not in MULTIPLAYER_ONLY:
            version = name.rpartition("-")[2]
            found.setdefault(repr((module, spec, sorted(fixed.items()), version)), name)
    return tuple(sorted(found.values()))


def describe(name: str, options: AtariOptions, keywords: Mapping[str, Any]) -> Task:
    """Prepare a task from its spec, without making an environment.

    Raises EnvSetupError for an unknown or unsupported task, and for unsuitable keywords.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Gymnasium warns of bounds that float32 cannot represent
        return _described(name, options, keywords)


def _described(name: str, options: AtariOptions, keywords: Mapping[str, Any]) -> Task:
    env_id = f"envpool/{name}"
    module = _module_of(name)
    if module == DOOM:
        raise EnvSetupError(
            f"{env_id} cannot be used: EnvPool's Doom hangs with some seeds, and its engine process keeps running "
            "when the actor is killed. Use vizdoom/ instead, see `pbt-rl envs`"
        )
    is_atari = module == "envpool.atari"
    for key in keywords:
        own = BY_ATARI_OPTIONS.get(key) if is_atari else None
        if own or key in OURS:
            why = f"use --atari.{own}" if own else "pbt_rl sets it. Remove the option"
            raise EnvSetupError(f"--env-option {key}=... cannot be used with {env_id}: {why}")
    settings = {**_defaults(module, options), **keywords}
    engine = _engine_spec(name, settings)
    if engine.config.max_num_players > 1:
        raise EnvSetupError(
            f"{env_id} has {engine.config.max_num_players} players, but envpool/ supports only single-player tasks. "
            "`pbt-rl envs` lists them"
        )
    action_space = engine.gymnasium_action_space
    action = action_spec(action_space, env_id)
    leaves = with_mask(_leaves(engine, env_id, sum(action.nvec)), action, env_id, in_info=False)
    stack = options.frame_stack if is_atari and len(leaves[0].spec.shape) == 2 else 1
    spec = EnvSpec(
        env_id=env_id,
        obs={leaf.name: leaf.spec for leaf in leaves},
        action=action,
        frame_skip=options.frame_skip if is_atari else 1,
        frame_stack=stack,
        shaping={atari.SCORE_SCALE: 1.0, atari.LIFE_LOSS_PENALTY: 0.01} if is_atari else {},
    )
    fire = _fire(name, options) if is_atari else None
    return Task(settings, spec, leaves, _decoder(engine, action_space), is_atari, fire)


def _fire(name: str, options: AtariOptions) -> int | None:
    """Return the index of FIRE. None if the game has no action FIRE."""
    actions, _ = atari.game_facts(_registry.specs[name][2]["task"])
    return None if "FIRE" not in actions else 1 if options.full_action_space else actions.index("FIRE")


def _module_of(name: str) -> str:
    if name not in _registry.specs:
        known = names()
        close = difflib.get_close_matches(name, known) or [
            other for other in known if other.lower().startswith(name.lower().split("-")[0])
        ]
        hint = f"; did you mean {', '.join('envpool/' + other for other in close[:3])}?" if close else ";"
        raise EnvSetupError(f"envpool/{name} is not a task{hint} `pbt-rl envs` lists them")
    return str(_registry.specs[name][0])


def _defaults(module: str, options: AtariOptions) -> dict[str, Any]:
    """Return the keywords that this family passes to `envpool.make` for tasks of an EnvPool module."""
    if module != "envpool.atari":
        return {}
    return {
        "stack_num": 1,  # the device stacks frames
        "episodic_life": False,
        "reward_clip": False,
        "frame_skip": options.frame_skip,
        "repeat_action_probability": options.repeat_action_probability,
        "full_action_space": options.full_action_space,
        "noop_max": max(options.noop_max, 1),
        "use_fire_reset": options.fire_reset,
        "max_episode_steps": max(options.max_frames_per_episode // options.frame_skip, 1),
    }


def _engine_spec(name: str, keywords: Mapping[str, Any]) -> Any:
    try:
        return envpool.make_spec(name, **keywords)
    except TypeError as error:
        fields = envpool.make_spec(name).config._fields
        unknown = [key for key in keywords if key not in fields]
        if unknown:
            known = ", ".join(sorted(set(fields) - set(OURS)))
            raise EnvSetupError(
                f"envpool/{name} has no option {', '.join(unknown)}. Supported: {known} (--env-option "
                "key=value)"
            ) from error
        given = "; ".join(f"{key}={value!r}" for key, value in keywords.items())
        raise EnvSetupError(
            f"envpool/{name} cannot be made with {given}: a value is of the wrong type"
        ) from error
    except (AssertionError, ImportError, RuntimeError, ValueError) as error:
        raise EnvSetupError(f"envpool/{name} cannot be made: {_last_line(str(error))}") from error


def _decoder(engine: Any, space: spaces.Space[Any]) -> Callable[[NDArray[Any]], Any]:
    """Return a function that converts actions [R, A] to the engine's shape and dtype."""
    of_engine = list(engine.action_array_spec.values())[-1]
    shape = tuple(of_engine.shape)
    tail = shape[1:] if shape and shape[0] == -1 else shape
    decode = action_decoder(space)
    return lambda action_RA: decode(action_RA).reshape(len(action_RA), *tail).astype(of_engine.dtype)


def _leaves(engine: Any, env_id: str, choices: int) -> tuple[Leaf, ...]:
    """Return the arrays of an observation, including the action mask.

    choices: total number of discrete choices. A mask of another size becomes an ordinary observation with the name
    "allowed".
    """
    space = engine.gymnasium_observation_space
    mask = space.spaces.get(ACTION_MASK) if isinstance(space, spaces.Dict) else None
    if isinstance(space, spaces.Dict) and mask is not None:
        space = spaces.Dict({key: part for key, part in space.spaces.items() if key != ACTION_MASK})
    leaves = tuple(_as_delivered(leaf) for leaf in obs_leaves(space, env_id))
    allowed = engine.state_array_spec.get("info:legal_action_mask")
    where = ((ACTION_MASK,), False, mask) if mask is not None else (("legal_action_mask",), True, allowed)
    if where[2] is None:
        return leaves
    size = math.prod(n for n in where[2].shape or () if n != -1)
    if size == choices:
        spec = ArraySpec((size,), "uint8")
        return (*leaves, Leaf(ACTION_MASK, where[0], "mask", (size,), spec, in_info=where[1]))
    # A mask over combinations of choices cannot be applied to independent components.
    seen = Leaf("allowed", where[0], "float", (size,), ArraySpec((size,), "float32"), in_info=where[1])
    return (*leaves, seen)


def _as_delivered(leaf: Leaf) -> Leaf:
    """Change the `Leaf` of an array to that of a flat array of numbers, except for pictures and short one-hot arrays.

    Pictures have sides of at least SMALL pixels. A grey picture (uint8, channels first) loses its channel axis.
    Short one-hot arrays have at most MOST_CHOICES_SEEN entries.
    """
    whole = leaf.kind in ("bytes", "image") and len(leaf.shape) == 3 and min(leaf.spec.shape[1:]) >= SMALL
    if whole and leaf.kind == "bytes" and leaf.shape[0] == 1:
        return replace(leaf, spec=ArraySpec(leaf.shape[1:], "uint8"))  # one grey frame, stacked on the device
    if whole or (leaf.kind == "one_hot" and leaf.spec.shape[0] <= MOST_CHOICES_SEEN):
        return leaf
    return replace(leaf, kind="float", scale=1.0, spec=ArraySpec((math.prod(leaf.shape),), "float32"))


def _last_line(text: str) -> str:
    """Return the last line of an error's text, except lines of the engine's stack trace."""
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith(("***", "@"))]
    return lines[-1][:300] if lines else ""


def probe(name: str, options: AtariOptions, keywords: Mapping[str, Any]) -> EnvSpec:
    """Try a task in a separate process and return its spec. Raises EnvSetupError if the task cannot be used."""
    task = describe(name, options, keywords)
    given = ", ".join(f"{key}={value}" for key, value in keywords.items())
    _try_out(name, json.dumps({"num_threads": 1, **task.keywords}), f" with {given}" if given else "")
    return task.spec


@lru_cache(maxsize=32)
def _try_out(name: str, request: str, given: str) -> None:
    """Make a task and step it a few times, in a fork of this process. Raises EnvSetupError, see `tried`.

    request: JSON of the keywords.
    given: the user's keywords, for the error message.
    """

    def play() -> None:
        with TemporaryDirectory() as folder, contextlib.chdir(folder):  # MuJoCo writes a log
            env = envpool.make(name, "gymnasium", num_envs=2, seed=0, **json.loads(request))
            env.reset()
            action = list(env.spec.action_array_spec.values())[-1]
            of_one = [size for size in action.shape if size != -1]
            for _ in range(3):
                env.step(np.zeros((2, *of_one), action.dtype))

    tried(f"envpool/{name}{given}", play, PROBE_SECONDS + GRACE_SECONDS, when="during its trial")


def recipe(name: str, options: AtariOptions, keywords: Mapping[str, Any]) -> dict[str, object]:
    """Return default options: Atari's options for Atari games, else options for the action and observation spaces."""
    task = describe(name, options, keywords)
    if task.is_atari:
        return atari.recipe()
    found = gym_recipe(task.spec)
    # The scales of EnvPool's observations differ by orders of magnitude.
    if found["model.encoder"] == "mlp":
        found = {**found, "learner.normalize_observations": True}
    return found


class EnvPoolVectorEnv:
    """R rows of one task in one engine. Equal seeds and equal actions give equal episodes."""

    def __init__(
        self,
        name: str,
        rows: int,
        seed: int,
        options: AtariOptions,
        shaping: ShapingSource,
        keywords: Mapping[str, Any],
    ) -> None:
        assert rows > 0
        self._task = describe(name, options, keywords)
        self.spec, self.rows = self._task.spec, rows
        self._book = EpisodeBook(rows, shaping)
        self._scoring = None
        if self._task.is_atari:
            self._scoring = AtariScoring(rows, options, may_fire=self._task.fire is not None)
        self._leaves = [(leaf, replace(leaf, path=())) for leaf in self._task.leaves]
        seeds = np.random.SeedSequence(seed).generate_state(rows) % 2**31
        self._heartbeat = heartbeat_of(shaping)
        settings = {"num_threads": 1, **self._task.keywords}
        with all_at_once(self._heartbeat, rows):
            self._engine: Any = envpool.make(
                name, "gymnasium", num_envs=rows, seed=seeds.tolist(), **settings
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the first access creates the spaces, which may warn
            assert self._engine.observation_space is not None
        self._ended_R = np.zeros(rows, np.bool_)
        self._none_R = np.zeros(rows, np.bool_)

    def reset(self, out: StepArrays) -> None:
        with all_at_once(self._heartbeat, self.rows):
            obs, info = self._engine.reset()
        self._ended_R[:] = False
        self._begin_episodes(range(self.rows))
        if self._scoring is not None:
            self._scoring.reset(info["lives"])
        self._write_obs(obs, info, out)
        write_reset(out)
        self._book.write(out)

    def step(self, action: NDArray[Any], out: StepArrays) -> None:
        """Advance all rows by one step. action: [R, A] of `spec.action.dtype`."""
        starts_R = self._ended_R
        fire_R = self._none_R if self._scoring is None else self._scoring.fire_R & ~starts_R
        if fire_R.any():
            action = action.copy()
            action[fire_R] = self._task.fire
        obs, score, over, cut, info = self._engine.step(self._task.decode(action))
        if starts_R.any():
            self._begin_episodes(np.flatnonzero(starts_R).tolist())
        goes_R = played_R = ~starts_R
        over_R, cut_R = over.astype(np.bool_, copy=False), cut.astype(np.bool_, copy=False)
        score_R = np.where(goes_R, score.astype(np.float64), 0.0)
        if not (np.abs(score_R) < LARGEST_REWARD).all():
            raise EnvSetupError(f"{self.spec.env_id} returned a reward that is not finite. Use another task")
        ends_R, reward_R = over_R, score_R
        if self._scoring is not None:
            played_R = self._scoring.played(goes_R, fire_R)
            lives_R = info["lives"].astype(np.int64)
            reward_R, life_over_R = self._scoring.step(score_R * played_R, lives_R, goes_R)
            ends_R = over_R | life_over_R

        self._write_obs(obs, info, out)
        out.reward[:] = np.where(played_R, reward_R, 0)
        out.terminated[:] = played_R & ends_R
        out.truncated[:] = played_R & cut_R & ~out.terminated
        out.first[:] = ~played_R
        out.episode_done[:] = self._ended_R = goes_R & (over_R | cut_R)
        self._book.add(score_R, out.reward, played_R)
        self._book.write(out)

    def close(self) -> None:
        """Drop the reference to the engine. The engine's destructor joins the engine thread."""
        self._engine = None

    def _begin_episodes(self, rows: Iterable[int]) -> None:
        for row in rows:
            values = self._book.open_episode(row)
            if self._scoring is not None:
                self._scoring.begin_episode(row, values)

    def _write_obs(self, obs: Any, info: Mapping[str, Any], out: StepArrays) -> None:
        for leaf, bare in self._leaves:
            array = info if leaf.in_info else obs
            for key in leaf.path:
                array = array[key]
            rows = np.asarray(array).reshape(self.rows, *leaf.shape)
            out.obs[leaf.name][:] = read_rows(bare, rows, self.rows, self.spec.env_id)


BACKEND = Backend(
    names=names,
    probe=lambda name, options: probe(name, options.of(AtariOptions), options.keywords),
    make_vector_env=lambda name, rows, seed, options, shaping: EnvPoolVectorEnv(
        name, rows, seed, options.of(AtariOptions), shaping, options.keywords
    ),
    recipe=lambda name, options: recipe(name, options.of(AtariOptions), options.keywords),
    for_evaluation=lambda options: options.with_family(raw_scores(options.of(AtariOptions))),
)
