"""EnvPool: what its engines have (Atari, MuJoCo, MiniGrid, classic control ...), as native vectors.

A unit is one EnvPool of R rows on one engine thread, stepped in lockstep; nothing loops over rows. EnvPool
resets a row in the step after its episode's end, ignoring that step's action, as a unit does: every final
observation is delivered. A time limit is a truncation.

What the engine does not like ends its process, without an exception. So a task with its options is tried out in
a process of its own first (`_try_out`), and what that one says becomes the error.

Atari is played as by the family atari/: options are --atari.*, the engine gives the newest frame and the raw
score, and clipping and lives are dealt with here. The objective is the raw score.

Axes: R rows.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import signal
import subprocess
import sys
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

from . import atari
from . import gym as gymnasium_env
from .atari import MULTIPLAYER_ONLY, AtariOptions, AtariScoring
from .base import ACTION_MASK, ArraySpec, EnvSetupError, EnvSpec, ShapingSource, StepArrays
from .episodes import EpisodeBook, write_reset
from .spaces import Leaf, action_spec, obs_leaves, read_rows, rows_decoder, with_mask

OURS = ("num_envs", "batch_size", "seed", "env_seed", "max_num_players", "gym_reset_return_info", "base_path")
"""Options of `envpool.make` that the unit sets."""
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
DOOM = "envpool.vizdoom"
SMALLEST_PICTURE = 36
"""Bytes of fewer rows or columns are no picture to a convolution: they are delivered as numbers."""
MOST_CHOICES_SEEN = 512
"""An integer observation with more values is delivered as a number, not one-hot."""
TRIAL_SECONDS = 60.0
_TRIAL = """
import json, sys, warnings
warnings.simplefilter("ignore")
import envpool, numpy
task, words = json.loads(sys.argv[1])
env = envpool.make(task, "gymnasium", num_envs=2, seed=0, **words)
env.reset()
shape, dtype = list(env.spec.action_array_spec.values())[-1].shape, list(env.spec.action_array_spec.values())[-1].dtype
tail = tuple(shape[1:]) if shape and shape[0] == -1 else tuple(shape)
for _ in range(3):
    env.step(numpy.zeros((2, *tail), dtype))
print("played")
"""


@dataclass(frozen=True)
class _Task:
    """A task with its options, as the unit uses it."""

    name: str
    words: Mapping[str, Any]
    """Keywords of `envpool.make`."""
    spec: EnvSpec
    leaves: tuple[Leaf, ...]
    decode: Callable[[NDArray[Any]], Any]
    is_atari: bool


def names() -> tuple[str, ...]:
    """Tasks for one player, sorted; of a task's several names the first."""
    found: dict[str, str] = {}
    for name, (module, spec, words) in _registry.specs.items():
        if module == DOOM:
            continue
        if words.get("max_num_players", 1) == 1 and words.get("task") not in MULTIPLAYER_ONLY:
            version = name.rpartition("-")[2]
            found.setdefault(repr((module, spec, sorted(words.items()), version)), name)
    return tuple(sorted(found.values()))


def probe(name: str, options: AtariOptions, keywords: Mapping[str, Any]) -> EnvSpec:
    """Describe a task, after a trial in a process of its own. Raises EnvSetupError where it cannot be used."""
    task = _describe(name, options, keywords)
    given = ", ".join(f"{key}={value}" for key, value in keywords.items())
    _try_out(name, json.dumps([name, {"num_threads": 1, **task.words}]), given)
    return task.spec


def recipe(name: str, options: AtariOptions, keywords: Mapping[str, Any]) -> dict[str, object]:
    """Defaults of a run: Atari's, or by what is acted and seen."""
    task = _describe(name, options, keywords)
    if task.is_atari:
        return atari.recipe(name)
    found = gymnasium_env.recipe(task.spec)
    if found["model.encoder"] == "mlp":  # the scales of what EnvPool gives differ by orders of magnitude
        found = {**found, "learner.normalize_observations": True}
    return found


class EnvPoolUnit:
    """R rows of one task on one engine thread. Equal seeds give equal units."""

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
        self._task = _describe(name, options, keywords)
        self.spec, self.rows = self._task.spec, rows
        self._book = EpisodeBook(rows, shaping)
        self._scoring = AtariScoring(rows, options) if self._task.is_atari else None
        self._leaves = [(leaf, replace(leaf, path=())) for leaf in self._task.leaves]
        seeds = np.random.SeedSequence(seed).generate_state(rows) % 2**31
        self._engine: Any = envpool.make(
            name, "gymnasium", num_envs=rows, seed=seeds.tolist(), **{"num_threads": 1, **self._task.words}
        )
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # it makes its spaces when they are first asked for; see `_describe`
            assert self._engine.observation_space is not None
        self._ended_R = np.zeros(rows, np.bool_)

    def reset(self, out: StepArrays) -> None:
        """See `Unit.reset`."""
        obs, info = self._engine.reset()
        self._ended_R[:] = False
        self._begin(range(self.rows))
        if self._scoring is not None:
            self._scoring.reset(info["lives"])
        self._write_obs(obs, info, out)
        write_reset(out)
        self._book.write(out)

    def step(self, action: NDArray[Any], out: StepArrays) -> None:
        """See `Unit.step`. action: [R, A] of `spec.action.dtype`."""
        starts_R = self._ended_R
        obs, score, over, cut, info = self._engine.step(self._task.decode(action))
        if starts_R.any():
            self._begin(np.flatnonzero(starts_R).tolist())
        played_R = ~starts_R
        over_R, cut_R = over.astype(np.bool_, copy=False), cut.astype(np.bool_, copy=False)
        score_R = np.where(played_R, score.astype(np.float64), 0.0)
        if not np.isfinite(score_R).all():
            raise EnvSetupError(f"{self.spec.env_id} gave a reward that is not finite: leave this task out")
        ends_R = over_R
        reward_R = score_R
        if self._scoring is not None:
            reward_R, life_over_R = self._scoring.step(score_R, info["lives"].astype(np.int64), played_R)
            ends_R = over_R | life_over_R

        self._write_obs(obs, info, out)
        out.reward[:] = reward_R
        out.terminated[:] = played_R & ends_R
        out.truncated[:] = played_R & cut_R & ~out.terminated
        out.first[:] = starts_R
        out.episode_done[:] = self._ended_R = played_R & (over_R | cut_R)
        self._book.add(score_R, out.reward, played_R)
        self._book.write(out)

    def close(self) -> None:
        """Release the engine: its thread is joined when the last reference goes."""
        self._engine = None

    def _begin(self, rows: Iterable[int]) -> None:
        for row in rows:
            values = self._book.begin(row)
            if self._scoring is not None:
                self._scoring.begin(row, values)

    def _write_obs(self, obs: Any, info: Mapping[str, Any], out: StepArrays) -> None:
        for leaf, bare in self._leaves:
            array = info if leaf.in_info else obs
            for key in leaf.path:
                array = array[key]
            rows = np.asarray(array).reshape(self.rows, *leaf.shape)
            out.obs[leaf.name][:] = read_rows(bare, rows, self.rows, self.spec.env_id)


# -- describing ---------------------------------------------------------------------------------------------


def _describe(name: str, options: AtariOptions, keywords: Mapping[str, Any]) -> _Task:
    """Read a task's spec; no environment is made. Raises EnvSetupError."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Gymnasium's, of bounds that float32 does not hold exactly
        return _described(name, options, keywords)


def _described(name: str, options: AtariOptions, keywords: Mapping[str, Any]) -> _Task:
    env_id = f"envpool/{name}"
    module = _module_of(name)
    if module == DOOM:
        raise EnvSetupError(
            f"{env_id} cannot be used: EnvPool's Doom hangs with some seeds and leaves its engine behind when it is "
            "killed; use vizdoom/ instead, see `pbt-rl envs`"
        )
    is_atari = module == "envpool.atari"
    engine = _engine_spec(
        name, {**_words_of(module, options), **_checked(env_id, keywords, is_atari=is_atari)}
    )
    if engine.config.max_num_players > 1:
        raise EnvSetupError(
            f"{env_id} is for {engine.config.max_num_players} players: envpool/ trains tasks of one; see "
            "`pbt-rl envs`"
        )
    action_space = _action_space(engine)
    action = action_spec(action_space, env_id)
    leaves = with_mask(_leaves(engine, env_id, sum(action.nvec)), action, env_id, in_info=False)
    stack = options.frame_stack if is_atari and leaves[0].spec.shape == _grey(leaves[0]) else 1
    spec = EnvSpec(
        env_id=env_id,
        obs={leaf.name: leaf.spec for leaf in leaves},
        action=action,
        frame_skip=options.frame_skip if is_atari else 1,
        frame_stack=stack,
        shaping={atari.SCORE_SCALE: 1.0, atari.LIFE_LOSS_PENALTY: 0.01} if is_atari else {},
    )
    words = {**_words_of(module, options), **keywords}
    return _Task(name, words, spec, leaves, _decoder(engine, action_space), is_atari)


def _module_of(name: str) -> str:
    if name not in _registry.specs:
        known = names()
        close = difflib.get_close_matches(name, known) or [
            other for other in known if other.lower().startswith(name.lower().split("-")[0])
        ]
        hint = f"; did you mean {', '.join('envpool/' + other for other in close[:3])}?" if close else ";"
        raise EnvSetupError(f"envpool/{name} is not a task{hint} `pbt-rl envs` lists them")
    return str(_registry.specs[name][0])


def _words_of(module: str, options: AtariOptions) -> dict[str, Any]:
    """Our defaults for a kind of tasks."""
    if module != "envpool.atari":
        return {}
    return {
        "stack_num": 1,  # the device stacks
        "episodic_life": False,
        "reward_clip": False,
        "frame_skip": options.frame_skip,
        "repeat_action_probability": options.repeat_action_probability,
        "full_action_space": options.full_action_space,
        "noop_max": max(options.noop_max, 1),
        "use_fire_reset": options.fire_reset,
        "max_episode_steps": max(options.max_frames_per_episode // options.frame_skip, 1),
    }


def _checked(env_id: str, keywords: Mapping[str, Any], *, is_atari: bool) -> Mapping[str, Any]:
    for key in keywords:
        if key in OURS:
            raise EnvSetupError(
                f"--env-option {key}=... cannot be used with {env_id}: the unit sets it itself"
            )
        if is_atari and key in BY_ATARI_OPTIONS:
            raise EnvSetupError(
                f"--env-option {key}=... cannot be used with {env_id}: use --atari.{BY_ATARI_OPTIONS[key]}"
            )
    return keywords


def _engine_spec(name: str, words: Mapping[str, Any]) -> Any:
    try:
        return envpool.make_spec(name, **words)
    except TypeError as error:
        fields = envpool.make_spec(name).config._fields
        unknown = [key for key in words if key not in fields]
        if unknown:
            known = ", ".join(sorted(set(fields) - set(OURS)))
            raise EnvSetupError(
                f"envpool/{name} has no option {', '.join(unknown)}: it has {known} (--env-option key=value)"
            ) from error
        said = "; ".join(f"{key}={value!r}" for key, value in words.items())
        raise EnvSetupError(
            f"envpool/{name} cannot be made with {said}: a value is of the wrong type"
        ) from error
    except (AssertionError, ImportError, RuntimeError, ValueError) as error:
        raise EnvSetupError(f"envpool/{name} cannot be made: {_line(str(error))}") from error


def _action_space(engine: Any) -> spaces.Space[Any]:
    """The action space of one row; whole numbers within bounds become choices."""
    space = engine.gymnasium_action_space
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.integer):
        low, high = space.low.ravel().astype(np.int64), space.high.ravel().astype(np.int64)
        return spaces.MultiDiscrete(high - low + 1, start=low)
    assert isinstance(space, spaces.Space)
    return space


def _decoder(engine: Any, space: spaces.Space[Any]) -> Callable[[NDArray[Any]], Any]:
    """Actions [R, A] -> what the engine takes, in its own shape and dtype."""
    of_engine = list(engine.action_array_spec.values())[-1]
    shape = tuple(of_engine.shape)
    tail = shape[1:] if shape and shape[0] == -1 else shape
    decode = rows_decoder(space)
    return lambda action_RA: decode(action_RA).reshape(len(action_RA), *tail).astype(of_engine.dtype)


def _leaves(engine: Any, env_id: str, choices: int) -> tuple[Leaf, ...]:
    """The observation's arrays: pictures as bytes, anything else as flat numbers, and the mask of actions."""
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
        return (*leaves, Leaf(ACTION_MASK, where[0], "mask", (size,), 0, spec, in_info=where[1]))
    # A mask of combinations, which independent components cannot obey: something to see.
    seen = Leaf("allowed", where[0], "float", (size,), 0, ArraySpec((size,), "float32"), in_info=where[1])
    return (*leaves, seen)


def _as_delivered(leaf: Leaf) -> Leaf:
    shape = leaf.shape
    if leaf.kind == "one_hot" and leaf.spec.shape[0] > MOST_CHOICES_SEEN:
        return replace(leaf, kind="float", spec=ArraySpec((1,), "float32"))
    if leaf.kind == "bytes" and len(shape) == 3 and shape[0] == 1 and min(shape[1:]) >= SMALLEST_PICTURE:
        return replace(leaf, spec=ArraySpec(shape[1:], "uint8"))  # one grey frame, for the device to stack
    picture = leaf.kind in ("bytes", "image") and len(shape) == 3
    if picture and min(leaf.spec.shape[1:]) >= SMALLEST_PICTURE:
        return leaf
    if leaf.kind == "one_hot":
        return leaf
    return replace(leaf, kind="float", spec=ArraySpec((math.prod(shape),), "float32"))


def _grey(leaf: Leaf) -> tuple[int, ...]:
    """Shape of a leaf if it is one grey frame, else of none."""
    return leaf.spec.shape if len(leaf.spec.shape) == 2 else ()


@lru_cache(maxsize=32)
def _try_out(name: str, request: str, given: str) -> None:
    """Make and step a task in a process of its own. Raises EnvSetupError with what that one said last.

    request: JSON of the task and its keywords. given: those of the user, for the message.
    """
    asked = f"envpool/{name} with {given}" if given else f"envpool/{name}"
    with TemporaryDirectory() as folder:  # MuJoCo writes a log of its errors where it runs
        trial = subprocess.Popen(
            [sys.executable, "-c", _TRIAL, request],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
            start_new_session=True,
        )
        try:
            said, complained = trial.communicate(timeout=TRIAL_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(trial.pid, signal.SIGKILL)  # an engine may have processes of its own
            said = None
            trial.communicate()
    if said is None:
        raise EnvSetupError(
            f"{asked} hangs: three steps took more than {TRIAL_SECONDS:g} s. Choose another task or other options"
        )
    if trial.returncode == 0 and said.rstrip().endswith("played"):
        return
    how = f"signal {-trial.returncode}" if trial.returncode < 0 else f"exit code {trial.returncode}"
    last = _line(complained) or _line(said) or "it said nothing"
    raise EnvSetupError(f"{asked} cannot be used: a trial of EnvPool ended with {how}: {last}")


def _line(text: str) -> str:
    """The last line that says something: not one of a stack of addresses."""
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith(("***", "@"))]
    return lines[-1][:300] if lines else ""
