"""The tasks of EnvPool: their names, specs and options."""

from __future__ import annotations

import difflib
import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import envpool
import numpy as np
from envpool.registration import registry as _registry
from gymnasium import spaces
from numpy.typing import NDArray

from .. import atari
from ..actions import action_decoder, action_spec
from ..atari import MULTIPLAYER_ONLY, AtariOptions
from ..base import ACTION_MASK, ArraySpec, EnvSetupError, EnvSpec
from ..spaces import Leaf, obs_leaves, with_mask

OURS = ("num_envs", "batch_size", "seed", "env_seed", "max_num_players", "gym_reset_return_info", "base_path")
"""Options of `envpool.make` that the unit sets itself."""
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


@dataclass(frozen=True)
class Task:
    """A task with its options, as the unit uses it."""

    name: str
    keywords: Mapping[str, Any]
    """Keywords of `envpool.make`."""
    spec: EnvSpec
    leaves: tuple[Leaf, ...]
    decode: Callable[[NDArray[Any]], Any]
    is_atari: bool
    fire: int | None
    """The action FIRE of an Atari game that has it."""


def names() -> tuple[str, ...]:
    """Return the tasks for one player, sorted; the first name of a task that has several."""
    found: dict[str, str] = {}
    for name, (module, spec, fixed) in _registry.specs.items():
        if module == DOOM:
            continue
        if fixed.get("max_num_players", 1) == 1 and fixed.get("task") not in MULTIPLAYER_ONLY:
            version = name.rpartition("-")[2]
            found.setdefault(repr((module, spec, sorted(fixed.items()), version)), name)
    return tuple(sorted(found.values()))


def describe(name: str, options: AtariOptions, keywords: Mapping[str, Any]) -> Task:
    """Read a task's spec; no environment is made. Raises EnvSetupError."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Gymnasium's, of bounds that float32 does not hold exactly
        return _described(name, options, keywords)


def _described(name: str, options: AtariOptions, keywords: Mapping[str, Any]) -> Task:
    env_id = f"envpool/{name}"
    module = _module_of(name)
    if module == DOOM:
        raise EnvSetupError(
            f"{env_id} cannot be used: EnvPool's Doom hangs with some seeds and leaves its engine behind when it is "
            "killed; use vizdoom/ instead, see `pbt-rl envs`"
        )
    is_atari = module == "envpool.atari"
    engine = _engine_spec(
        name, {**_defaults(module, options), **_checked(env_id, keywords, is_atari=is_atari)}
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
    return Task(
        name,
        {**_defaults(module, options), **keywords},
        spec,
        leaves,
        _decoder(engine, action_space),
        is_atari,
        _fire(name, options) if is_atari else None,
    )


def _fire(name: str, options: AtariOptions) -> int | None:
    """All 18 actions are in the order of the emulator, and those of a game as well."""
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
    """Return the defaults of this family for a kind of tasks."""
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


def _engine_spec(name: str, keywords: Mapping[str, Any]) -> Any:
    try:
        return envpool.make_spec(name, **keywords)
    except TypeError as error:
        fields = envpool.make_spec(name).config._fields
        unknown = [key for key in keywords if key not in fields]
        if unknown:
            known = ", ".join(sorted(set(fields) - set(OURS)))
            raise EnvSetupError(
                f"envpool/{name} has no option {', '.join(unknown)}: it has {known} (--env-option key=value)"
            ) from error
        given = "; ".join(f"{key}={value!r}" for key, value in keywords.items())
        raise EnvSetupError(
            f"envpool/{name} cannot be made with {given}: a value is of the wrong type"
        ) from error
    except (AssertionError, ImportError, RuntimeError, ValueError) as error:
        raise EnvSetupError(f"envpool/{name} cannot be made: {_last_line(str(error))}") from error


def _action_space(engine: Any) -> spaces.Space[Any]:
    """Return the action space of one row; whole numbers within bounds become choices."""
    space = engine.gymnasium_action_space
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.integer):
        low, high = space.low.ravel().astype(np.int64), space.high.ravel().astype(np.int64)
        return spaces.MultiDiscrete(high - low + 1, start=low)
    assert isinstance(space, spaces.Space)
    return space


def _decoder(engine: Any, space: spaces.Space[Any]) -> Callable[[NDArray[Any]], Any]:
    """Return a function from actions [R, A] to the engine's shape and dtype."""
    of_engine = list(engine.action_array_spec.values())[-1]
    shape = tuple(of_engine.shape)
    tail = shape[1:] if shape and shape[0] == -1 else shape
    decode = action_decoder(space)
    return lambda action_RA: decode(action_RA).reshape(len(action_RA), *tail).astype(of_engine.dtype)


def _leaves(engine: Any, env_id: str, choices: int) -> tuple[Leaf, ...]:
    """Return the observation's arrays: pictures as bytes, all else as flat numbers, and the action mask."""
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
    return replace(leaf, kind="float", scale=1.0, spec=ArraySpec((math.prod(shape),), "float32"))


def _grey(leaf: Leaf) -> tuple[int, ...]:
    """Return the shape of a leaf if it is one grey frame, else ()."""
    return leaf.spec.shape if len(leaf.spec.shape) == 2 else ()


def _last_line(text: str) -> str:
    """Return the last line with a message, skipping stacks of addresses."""
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith(("***", "@"))]
    return lines[-1][:300] if lines else ""
