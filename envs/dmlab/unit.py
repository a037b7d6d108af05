"""DeepMind Lab over its own Python module: `dmlab/LEVEL`, and `dmlab30` for all thirty levels together.

A row is a Lab in a process of its own (see `dmlab_process`, `dmlab_row`). A step is 4 engine frames of a 96x72 RGB
picture. Observations are the picture and the level's instruction as hashed words. What is learned from is the
reward of a step, clipped as IMPALA's paper has it: 0.3 * min(tanh r, 0) + 5 * max(tanh r, 0); both factors are
shaping. (Its code has 1.5 * min(tanh(r / 5), 0) + 5 * max(tanh(r / 5), 0), which still tells 1 from 10.)
The objective is the raw score: of one level as it is, of the thirty in percent between random actions and a human.

The module shows nothing after an episode's end, and does not say whether the time was over. Time is told by the
frames that the level had left; an episode that it ends is truncated, and bootstraps from the last picture once
more. That picture is one step old, and so is the state of a recurrent core that sees it twice: the value of the
state four frames earlier stands for that of the last one, which is off by a fifteenth of a second of play. To call
such an end terminal would be off by all that comes after.

A reset takes up to 20 s (maps are compiled). A row that resets delivers `first` with a black picture in each step
until its episode begins: these steps count for nothing, and the other rows play on.

Levels of `dmlab30` are dealt by the `TaskScheduler`, row by row: each gets equally many steps in the long run. Rows of
a unit have the same order, so that all play one level at a time: a slow level slows its unit only, and members, who
have equally many rows in each unit, see the same levels at the same time. Or each row begins elsewhere in it.

Axes: R rows.
"""

from __future__ import annotations

import difflib
import os
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..base import LAST, ActionSpec, ArraySpec, EnvSetupError, EnvSpec, ShapingSource, StepArrays
from ..task_scheduler import TaskScheduler
from .levels import ACTIONS, FOLDER, LEVELS, TASK_CAP, TEST_MIXER_SEED, Level
from .process import SILENCE_SECONDS, LabError, Labs
from .row import FRAME_SKIP, PICTURE, WORDS, RowSetup, row_arrays

ALL = "dmlab30"
GAIN, LOSS = "gain_scale", "loss_scale"
MAX_SEED = 2**31
DUMMY = "dummy"
"""Data set that comes with the engine: colours in place of the photographs."""
PHOTOGRAPHS = ("0001.png", "2400.png")
"""First and last of the 2400 files of the real one."""
NO_CACHE = "none"
_OWN_SETTINGS = ("width", "height", "fps", "logLevel", "datasetPath", "gpuDeviceIndex", "levelDirectory")


def _has_photographs(dataset: str) -> bool:
    return dataset == DUMMY or all((Path(dataset) / name).is_file() for name in PHOTOGRAPHS)


@dataclass(frozen=True)
class DmlabOptions:
    """Options of DeepMind Lab."""

    actions: Literal["standard", "extended"] = "standard"
    """`standard`: the 9 actions of IMPALA. `extended`: 15, which turn at two speeds and look up and down."""
    renderer: Literal["software", "hardware"] = "software"
    """`hardware`: render on a GPU."""
    gpus: tuple[int, ...] = field(default=(0,), metadata={"at_least": 0})
    """hardware: indices of the GPUs (EGL devices) that render; rows use them in turn."""
    dataset: str = field(
        default=DUMMY,
        metadata={
            "test": _has_photographs,
            "remedy": f"a folder with {PHOTOGRAPHS[0]} to {PHOTOGRAPHS[1]}, or {DUMMY}",
        },
    )
    """Folder of the 2400 pictures that two levels of psychlab show. `dummy`: colours of the engine."""
    one_level_per_unit: bool = True
    """dmlab30: all rows of a unit play the same level at a time. Off: each row begins elsewhere in the order."""
    level_seeds: int = field(default=0, metadata={"at_least": 0, "zero": "any"})
    """Draw the seeds of episodes from this many per level, whose maps `pbt-rl dmlab-cache` can build beforehand."""
    level_cache: str = ""
    """Folder of compiled maps, shared by all processes and runs; empty: pbt_rl/dmlab in the user's cache folder;
    `none`: no cache."""
    level_cache_gb: float = field(default=10.0, metadata={"above": 0})
    """Size of that folder in gigabytes; the least recently used maps are removed."""
    clip_reward: bool = True
    """Learn from tanh of a step's reward. The objective is not clipped."""
    reward_unit: float = field(default=1.0, metadata={"above": 0})
    """Rewards are divided by it before tanh, and losses count 0.3 times as much: 1 is the formula of IMPALA's paper, 5
    that of its published code and of Sample Factory."""
    last_action_reward: bool = True
    """Show the network the last action and reward (clipped to -1..1) beside the picture, as in IMPALA."""
    background_resets: bool = True
    """Let rows play on while another one resets. Off: they wait, so that equal seeds give equal steps (always off in
    serial mode and in evaluations)."""
    test: bool = False
    """Play the test levels and maps (evaluations always do)."""

    @property
    def dataset_path(self) -> str:
        """Setting `datasetPath` of the levels that show pictures."""
        return self.dataset if self.dataset == DUMMY else str(Path(self.dataset).absolute())

    @property
    def cache_folder(self) -> str:
        """Absolute path of the cache; empty for none."""
        if self.level_cache == NO_CACHE:
            return ""
        user = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        return str(Path(self.level_cache or Path(user) / "pbt_rl" / "dmlab").absolute())


def names() -> tuple[str, ...]:
    """`dmlab30` and its levels. Any other level of the engine can be named by its path, such as `lt_chasm`."""
    return (ALL, *(level.name for level in LEVELS))


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


def probe(name: str, options: DmlabOptions, settings: Mapping[str, Any]) -> EnvSpec:
    """Describe a level, and have a process make a Lab of it (of each level), without an episode.

    settings: more of the engine's or of the level's. Raises EnvSetupError with the engine's words.
    """
    spec = describe(name, options)
    with closing(Labs([row_setup(options, settings, 0)])) as labs:
        labs.rows[0].ask("try", level_scripts(name, options))
        try:
            labs.rows[0].answer()
        except LabError as error:
            raise _cannot(name, error) from None
    return spec


def recipe(name: str) -> dict[str, object]:
    """Defaults of a run: IMPALA's network and returns, with PPO's clipped loss."""
    return {
        "model.encoder": "impala",
        "model.hidden": 256,
        "model.core": "lstm",
        "model.core_size": 256,
        "learner.rollout": 32,
        "learner.batch": 1024,
        "learner.epochs": 1,
        "learner.minibatches": 1,
        "learner.returns": "vtrace",
        "hypers.unroll": 32,
        "hypers.learning_rate": 2e-4,
        "hypers.entropy_coef": 0.003,
        "hypers.gamma": 0.99,
        "hypers.gae_lambda": 0.9999,  # IMPALA's V-trace has 1; the table ends here
        # A Lab takes a core and 200 to 300 MB: few rows, and no second unit that a slow one would hold up.
        "units_per_actor": 1,
        "envs_per_unit": 2,
        "actor_timeout_seconds": SILENCE_SECONDS + 60,
        "train_for_frames": 10_000_000_000 if name == ALL else 1_000_000_000,
        "pbt.period_frames": 10_000_000,
        "pbt.start_frames": 100_000_000 if name == ALL else 20_000_000,
        # With tasks, rounds of one episode of each.
        "pbt.objective_episodes": 10 if name == ALL else 100,
        "pbt.min_episodes": 1 if name == ALL else 5,
    }


def level_scripts(name: str, options: DmlabOptions) -> list[str]:
    """Level arguments of the engine for NAME in `dmlab/NAME`."""
    return [_script(level, options) for level in _levels(name)]


def pool_seed(level_script: str, number: int) -> int:
    """Seed `number` of the finite pool of a level (`level_seeds`): the same in every process and run."""
    return zlib.crc32(f"{level_script} {number}".encode()) % MAX_SEED


class LabUnit:
    """R Labs. Equal seeds give equal episodes; equal steps only without background resets."""

    def __init__(
        self,
        name: str,
        rows: int,
        seed: int,
        options: DmlabOptions,
        settings: Mapping[str, Any],
        shaping: ShapingSource,
    ) -> None:
        assert rows > 0
        self.spec = describe(name, options)
        self.rows = rows
        self._name, self._options, self._shaping = name, options, shaping
        self._scripts = level_scripts(name, options)
        shared, *own = np.random.SeedSequence(seed).spawn(1 + rows)
        self._rngs = [np.random.default_rng(each) for each in own]
        order = np.random.default_rng(shared).permutation(len(self._scripts)).tolist()
        shift = 0 if options.one_level_per_unit else 1
        self._rotas = [TaskScheduler(_rotated(order, shift * row)) for row in range(rows)]

        self._playing_R = np.zeros(rows, np.bool_)
        self._over_R = np.ones(rows, np.bool_)  # the next step begins an episode
        self._began = False
        self._level_R = np.zeros(rows, np.int64)
        self._scale_R2 = np.zeros((rows, 2))
        self._version_R = np.zeros(rows, np.int64)
        self._return_R = np.zeros(rows)
        self._shaped_R = np.zeros(rows)
        self._length_R = np.zeros(rows, np.int64)
        self._labs = Labs([row_setup(options, settings, row) for row in range(rows)])
        self._seen = [row_arrays(self._labs.memory, row) for row in range(rows)]

    def reset(self, out: StepArrays) -> None:
        """See `Unit.reset`. Rows whose episode has not begun yet show nothing (see above)."""
        assert self._over_R.all(), "a unit is reset once"
        nothing_R = np.zeros(self.rows)
        self._deliver(nothing_R.astype(np.int32), nothing_R, np.zeros((2, self.rows), np.bool_), out)

    def step(self, action: NDArray[Any], out: StepArrays) -> None:
        """See `Unit.step`. action: [R, 1] int32."""
        reward_R, ends_2R = np.zeros(self.rows), np.zeros((2, self.rows), np.bool_)
        playing = np.flatnonzero(self._playing_R).tolist()
        for row in playing:
            self._labs.rows[row].ask("step", int(action[row, 0]))
        for row in playing:
            reward_R[row], over, limit = self._answer(row)
            ends_2R[:, row] = over and not limit, over and limit
        self._deliver(action[:, 0], reward_R, ends_2R, out)

    def close(self) -> None:
        """End all processes. Safe to call twice."""
        self._labs.close()

    def cpu_ns(self) -> int:
        """See `base.cpu_clock`: ours and that of the rows."""
        return time.process_time_ns() + self._labs.cpu_ns()

    def _deliver(
        self,
        action_R: NDArray[np.int32],
        reward_R: NDArray[np.float64],
        ends_2R: NDArray[np.bool_],
        out: StepArrays,
    ) -> None:
        """Write the step of the rows that played; begin episodes, and write `first` for all other rows."""
        played_R = self._playing_R.copy()
        clip, unit = self._options.clip_reward, self._options.reward_unit
        learned_R = np.tanh(reward_R / unit) if clip else reward_R
        gain_loss_R2 = np.stack((np.maximum(learned_R, 0), np.minimum(learned_R, 0)), 1)
        out.reward[:] = (self._scale_R2 * gain_loss_R2).sum(1) * played_R
        if self._options.last_action_reward:
            out.obs[LAST][:] = 0
            out.obs[LAST][played_R, action_R[played_R]] = 1
            out.obs[LAST][:, -1] = np.clip(reward_R, -1, 1)
        self._return_R += reward_R
        self._shaped_R += out.reward
        self._length_R += played_R
        for row in np.flatnonzero(self._over_R).tolist():
            self._begin(row)
        self._write_episode(out)
        self._take_begun()
        # Ends are noted last: an episode that is over begins anew with the next step, not with this one.
        terminated_R, truncated_R = ends_2R
        out.terminated[:], out.truncated[:] = terminated_R, truncated_R
        out.first[:] = ~played_R
        out.episode_done[:] = self._over_R = terminated_R | truncated_R
        self._playing_R &= ~self._over_R
        for row in range(self.rows):
            here = self._playing_R[row] or self._over_R[row]
            for array, seen in zip((out.obs["obs"], out.obs["instr"]), self._seen[row], strict=True):
                array[row] = seen if here else 0
        for row in np.flatnonzero(self._over_R).tolist():
            cost = 1 if self._options.test else int(self._length_R[row])  # a test counts episodes
            self._rotas[row].spend(int(self._level_R[row]), cost)

    def _begin(self, row: int) -> None:
        """Have a row begin its next episode."""
        level, rng = self._rotas[row].next(), self._rngs[row]
        path = self._scripts[level]
        pool = self._options.level_seeds
        seed = pool_seed(path, int(rng.integers(pool))) if pool else int(rng.integers(MAX_SEED))
        self._version_R[row], values = self._shaping(row)
        self._scale_R2[row] = values[GAIN], values[LOSS]
        self._level_R[row] = level
        self._return_R[row] = self._shaped_R[row] = self._length_R[row] = 0
        self._labs.rows[row].ask("begin", path, seed)

    def _take_begun(self) -> None:
        """Let rows play whose episode has begun. Waits for one if none could play, and for all if so told."""
        waiting = np.flatnonzero(~self._playing_R).tolist()
        if waiting and not self._playing_R.any():
            self._labs.wait(waiting)
        for row in waiting:
            asked = self._labs.rows[row]
            if not self._options.background_resets or asked.answered or asked.late:
                self._answer(row)
                self._playing_R[row] = self._began = True

    def _answer(self, row: int) -> Any:
        try:
            return self._labs.rows[row].answer()
        except LabError as error:
            if error.refused and not self._began:  # nothing was ever played: the user can mend it
                raise _cannot(self._name, error) from None
            raise RuntimeError(f"DeepMind Lab, level {self._scripts[self._level_R[row]]}: {error}") from None

    def _write_episode(self, out: StepArrays) -> None:
        out.raw_return[:] = out.objective[:] = self._return_R
        out.shaped_return[:] = self._shaped_R
        out.length[:] = self._length_R
        out.shaping_version[:] = self._version_R
        if out.task is not None:
            out.task[:] = self._level_R
            for row, level in enumerate(self._level_R.tolist()):
                out.objective[row] = LEVELS[level].percent(float(self._return_R[row]))


def _rotated(order: list[int], places: int) -> list[int]:
    places %= len(order)
    return order[places:] + order[:places]


def _levels(name: str) -> tuple[Level | str, ...]:
    """Levels of NAME in `dmlab/NAME`; a path where it is none of DMLab-30."""
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
    """What a row's process is told; `Labs` fills in the rest. Raises EnvSetupError for settings that are ours."""
    own = {"width": str(PICTURE[2]), "height": str(PICTURE[1]), "logLevel": "WARN"}
    if options.renderer == "hardware":
        own["gpuDeviceIndex"] = str(options.gpus[row % len(options.gpus)])
    taken = sorted(set(_OWN_SETTINGS) & settings.keys())
    if taken:
        raise EnvSetupError(
            f"--env-option {taken[0]}=... cannot be used: pbt_rl gives the engine this setting itself (see --dmlab.*)"
        )
    test = {"allowHoldOutLevels": "true", "mixerSeed": str(TEST_MIXER_SEED)} if options.test else {}
    return RowSetup(
        config={**own, **dict(_flat(settings))},
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


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Settings as the engine takes them: strings (true, 60, text), those of a table as `table.name`."""
    for key, value in settings.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _flat(value, f"{name}.")
        elif isinstance(value, bool | int | float | str):
            yield name, str(value).lower() if isinstance(value, bool) else str(value)
        else:
            raise EnvSetupError(
                f"--env-option {name}={value} cannot be used: a setting of a level is a number, true, false, a word or "
                'a table of those, such as {"width": 9}'
            )


def _cannot(name: str, error: LabError) -> EnvSetupError:
    hint = (
        ". Write a level of the engine (`pbt-rl envs`, or a path below its game_scripts/levels), and --env-option only "
        "for settings that it knows"
    )
    return EnvSetupError(f"dmlab/{name} cannot be used: {error}{hint if error.refused else ''}")
