"""From a name and the options to the engine: the spec, level scripts, seeds and settings of a row."""

from __future__ import annotations

import difflib
import zlib
from collections.abc import Mapping
from typing import Any

from ..base import LAST, ActionSpec, ArraySpec, EnvSetupError, EnvSpec
from ..values import level_settings
from .levels import ACTIONS, FOLDER, LEVELS, TASK_CAP, TEST_MIXER_SEED, Level
from .options import DmlabOptions
from .row import FRAME_SKIP, PICTURE, WORDS, RowSetup

ALL = "dmlab30"
GAIN, LOSS = "gain_scale", "loss_scale"
MAX_SEED = 2**31
_FIXED_SETTINGS = ("width", "height", "fps", "logLevel", "datasetPath", "gpuDeviceIndex", "levelDirectory")


def describe(name: str, options: DmlabOptions) -> EnvSpec:
    """Describe a level without starting it.

    Raises EnvSetupError for a name that looks like one of DMLab-30 and is none.
    """
    _levels(name)
    scale = (5.0, 0.3 * options.reward_unit) if options.clip_reward else (1.0, 1.0)
    choices = len(ACTIONS[options.actions])
    last = {LAST: ArraySpec((choices + 1,), "float32")} if options.last_action_reward else {}
    return EnvSpec(
        env_id=f"dmlab/{name}",
        obs={"obs": ArraySpec(PICTURE, "uint8"), "instr": ArraySpec((WORDS,), "int32"), **last},
        action=ActionSpec(nvec=(choices,)),
        frame_skip=FRAME_SKIP,
        shaping=dict(zip((GAIN, LOSS), scale, strict=True)),
        tasks=tuple(level.name for level in LEVELS) if name == ALL else (),
        task_cap=TASK_CAP if name == ALL else None,
    )


def level_scripts(name: str, options: DmlabOptions) -> list[str]:
    """Return the engine's level arguments for NAME in `dmlab/NAME`."""
    return [_script(level, options) for level in _levels(name)]


def played(name: str, options: DmlabOptions) -> str:
    """Return the name of a single level with the `_train` or `_test` that is played; a path as it is."""
    (script,) = level_scripts(name, options)
    return script.removeprefix(FOLDER)


def pool_seed(level_script: str, number: int) -> int:
    """Return seed `number` of the finite pool of a level (`level_seeds`): the same in every process and run."""
    return zlib.crc32(f"{level_script} {number}".encode()) % MAX_SEED


def _levels(name: str) -> tuple[Level | str, ...]:
    """Return the levels of NAME in `dmlab/NAME`; a path if it is none of DMLab-30."""
    if name == ALL:
        return LEVELS
    short = name.removeprefix(FOLDER)
    for level in LEVELS:
        if short in (level.name, f"{level.name}_train" if level.split else level.name):
            return (level,)
        if level.split and short == f"{level.name}_test":
            raise EnvSetupError(
                f"dmlab/{name} is for tests: train on dmlab/{level.name}, and `pbt-rl eval` plays the level of tests"
            )
    kin = {level.name.partition("_")[0] for level in LEVELS}
    if "/" not in short and short.partition("_")[0] in kin:
        close = difflib.get_close_matches(short, [level.name for level in LEVELS])
        hint = f" Did you mean {', '.join('dmlab/' + n for n in close)}?" if close else ""
        raise EnvSetupError(
            f"dmlab/{name} is not a level of DMLab-30.{hint} `pbt-rl envs` lists all {len(LEVELS)} of them"
        )
    return (name,)


def _script(level: Level | str, options: DmlabOptions) -> str:
    return level if isinstance(level, str) else level.script(test=options.test)


def row_setup(options: DmlabOptions, settings: Mapping[str, Any], row: int) -> RowSetup:
    """Return the setup of a row's process; `Labs` fills in the rest. Raises EnvSetupError for fixed settings.

    row: its number among all that take turns on the GPUs.
    """
    fixed = {"width": str(PICTURE[2]), "height": str(PICTURE[1]), "logLevel": "WARN"}
    if options.renderer == "hardware":
        fixed["gpuDeviceIndex"] = str(options.gpus[row % len(options.gpus)])
    taken = sorted(set(_FIXED_SETTINGS) & settings.keys())
    if taken:
        raise EnvSetupError(
            f"--env-option {taken[0]}=... cannot be used: pbt_rl gives the engine this setting itself (see --dmlab.*)"
        )
    test = {"allowHoldOutLevels": "true", "mixerSeed": str(TEST_MIXER_SEED)} if options.test else {}
    return RowSetup(
        config={**fixed, **dict(level_settings(settings))},
        of_level={
            _script(level, options): {
                **test,
                **({"datasetPath": options.dataset_path} if level.dataset else {}),
            }
            for level in LEVELS
        },
        renderer=options.renderer,
        actions=ACTIONS[options.actions],
        cache_folder=options.cache_folder,
        cache_bytes=int(options.level_cache_gb * 1e9),
        memory_fd=-1,
        row=row,
    )
