"""DeepMind Lab as a vector env: `dmlab/LEVEL`, and `dmlab30` for all thirty levels.

Each row is a Lab in a separate process (see `lab_processes.py`, `row.py`). A step is 4 engine frames.

    observation   "obs": picture, 96x72 RGB. "instr": the level's instruction as hashed words. Also the last action and
                  reward, unless --dmlab.last-action-reward is off
    reward        clipped as in IMPALA's paper: 0.3 * min(tanh r, 0) + 5 * max(tanh r, 0). Both factors are shaping
                  values. With --dmlab.reward-unit 5, clipped as in IMPALA's code:
                  1.5 * min(tanh(r / 5), 0) + 5 * max(tanh(r / 5), 0), which tells rewards of 1 and 10 apart.
    objective     raw score of a level; for dmlab30 the human-normalised score in percent

The engine returns no observation after an episode's end, and does not report whether the time limit ended the episode.
An end by the time limit is inferred from the number of frames left before the last step. An episode that ends by its
time limit is truncated, and its returns bootstrap from its last observation. The final step delivers the
observation of the preceding step. This observation is one step (a fifteenth of a second) old.

A reset takes up to 20 s because maps are compiled. Until its episode begins, a resetting row sets `first` and
delivers a black picture in each step. These steps do not count toward the episode's length. The other rows continue,
unless --dmlab.background-resets is off.

In `dmlab30`, a `TaskScheduler` chooses the level of each row's next episode. In the long run all levels get equal
numbers of steps, or of episodes in evaluations. By default all rows of a vector env begin with the same level and go
through the levels in one order, so they mostly run the same level at the same time. This has two advantages:

- A slow level slows only its own vector env.
- All members mostly run the same levels at the same time, because each vector env has rows of all members.

Axes: R rows.
"""

from __future__ import annotations

import difflib
import time
import zlib
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbt_rl.errors import EnvSetupError

from ..base import LARGEST_REWARD, LAST, ActionSpec, ArraySpec, EnvSpec, ShapingSource, StepArrays
from ..episode_book import EpisodeBook
from ..family import Backend, EnvOptions
from ..user_values import level_settings
from .dmlab_options import DmlabOptions
from .lab_processes import SILENCE_SECONDS, LabError, Labs
from .levels import ACTIONS, FOLDER, LEVELS, TASK_CAP, TEST_MIXER_SEED, Level
from .row import FRAME_SKIP, PICTURE, WORDS, RowSetup, row_arrays

ALL = "dmlab30"
GAIN, LOSS = "gain_scale", "loss_scale"
MAX_SEED = 2**31
_FIXED_SETTINGS = ("width", "height", "fps", "logLevel", "datasetPath", "gpuDeviceIndex", "levelDirectory")


def describe(name: str, options: DmlabOptions) -> EnvSpec:
    """Return the spec of `dmlab/NAME` without starting the engine.

    name: NAME, a level or "dmlab30".
    Raises EnvSetupError for a test level of DMLab-30, and for an unknown name that resembles a level of DMLab-30.
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
    """Return the engine's names of the levels for NAME in `dmlab/NAME`."""
    return [level if isinstance(level, str) else level.script(test=options.test) for level in _levels(name)]


def pool_seed(level_script: str, number: int) -> int:
    """Return one of a level's seeds. The seed is equal in all processes and runs.

    number: index of the seed, below the option `level_seeds`.
    """
    return zlib.crc32(f"{level_script} {number}".encode()) % MAX_SEED


def _levels(name: str) -> tuple[Level | str, ...]:
    """Return the levels for NAME in `dmlab/NAME`.

    Outside DMLab-30, NAME is the engine's path of a level. The result is then (NAME,).
    Raises EnvSetupError, see `describe`.
    """
    if name == ALL:
        return LEVELS
    short = name.removeprefix(FOLDER)
    for level in LEVELS:
        if short in (level.name, f"{level.name}_train" if level.split else level.name):
            return (level,)
        if level.split and short == f"{level.name}_test":
            raise EnvSetupError(
                f"dmlab/{name} is a test level. Train on dmlab/{level.name}; `pbt-rl eval` runs the "
                "test level"
            )
    kin = {level.name.partition("_")[0] for level in LEVELS}
    if "/" not in short and short.partition("_")[0] in kin:
        close = difflib.get_close_matches(short, [level.name for level in LEVELS])
        hint = f" Did you mean {', '.join('dmlab/' + n for n in close)}?" if close else ""
        raise EnvSetupError(
            f"dmlab/{name} is not a level of DMLab-30.{hint} `pbt-rl envs` lists all {len(LEVELS)} levels"
        )
    return (name,)


def row_setup(options: DmlabOptions, settings: Mapping[str, Any], row: int) -> RowSetup:
    """Return the setup of a row's process, without the shared memory (`memory_fd`), which `Labs` sets.

    settings: the user's settings of the engine or of the level (--env-option).
    row: index of the row in the run. GPUs are assigned by this index, round-robin.
    Raises EnvSetupError for settings that only pbt_rl may set.
    """
    fixed = {"width": str(PICTURE[2]), "height": str(PICTURE[1]), "logLevel": "WARN"}
    if options.renderer == "hardware":
        fixed["gpuDeviceIndex"] = str(options.gpus[row % len(options.gpus)])
    taken = sorted(set(_FIXED_SETTINGS) & settings.keys())
    if taken:
        raise EnvSetupError(
            f"--env-option {taken[0]}=... cannot be used: pbt_rl sets it. Use the options --dmlab.* instead"
        )
    test = {"allowHoldOutLevels": "true", "mixerSeed": str(TEST_MIXER_SEED)} if options.test else {}
    shown = {"datasetPath": options.dataset_path}
    return RowSetup(
        config=fixed | dict(level_settings(settings)),
        of_level={
            level.script(test=options.test): test | (shown if level.dataset else {}) for level in LEVELS
        },
        renderer=options.renderer,
        actions=ACTIONS[options.actions],
        cache_folder=options.cache_folder,
        cache_bytes=int(options.level_cache_gb * 1e9),
        memory_fd=-1,
        row=row,
    )


FRAMES_PER_SECOND = 60
STEP_SECONDS = SILENCE_SECONDS + 60
"""Timeout of a step or reset. The timeout is longer than SILENCE_SECONDS, because the error after SILENCE_SECONDS is
more specific.
"""
BOTS = ("lasertag_", "lt_")
"""Name prefixes of levels with the engine's bots."""
ANY_LEVEL = "lt_chasm"
"""Level for the test of GPUs. Its compiled map is part of the engine, so an episode begins quickly."""
FIXED_LENGTH = ("rooms_collect_good_objects", "rooms_exploit_deferred_effects", "rooms_keys_doors_puzzle")
"""Levels that ignore the setting `episodeLengthSeconds`."""


def names() -> tuple[str, ...]:
    """Return `dmlab30` and its levels. Other levels can be used by the engine's path, such as `lt_chasm`."""
    return (ALL, *(level.name for level in LEVELS))


def probe(name: str, options: DmlabOptions, settings: Mapping[str, Any]) -> EnvSpec:
    """Make a Lab (instance of the engine) of each level, without running an episode, and return the spec.

    With --dmlab.renderer hardware, an episode also begins on each GPU, in another Lab.

    settings: the user's settings of the engine or of the level (--env-option).
    Raises EnvSetupError if the engine rejects a level or a setting, crashes or hangs, or cannot render on the GPUs.
    Also raises EnvSetupError for --dmlab.gpus without the renderer hardware.
    """
    spec = describe(name, options)
    if options.renderer == "hardware":
        _try_gpus(options)
    elif options.gpus != DmlabOptions.gpus and not options.test:
        raise EnvSetupError(
            f"--dmlab.gpus {_shown(options.gpus)} requires --dmlab.renderer hardware. Add this option, or remove "
            "--dmlab.gpus"
        )
    with closing(Labs([row_setup(options, settings, 0)])) as labs:
        labs.rows[0].ask("try", level_scripts(name, options))
        try:
            labs.rows[0].answer()
        except LabError as error:
            raise _cannot(name, error) from None
    return replace(spec, notes=(*spec.notes, *_notes(name, settings)))


def _notes(name: str, settings: Mapping[str, Any]) -> list[str]:
    """Return a warning if levels ignore the setting `episodeLengthSeconds`."""
    if "episodeLengthSeconds" not in settings:
        return []
    fixed = [level for level in FIXED_LENGTH if level in name or name == ALL]
    return [f"episodeLengthSeconds has no effect in {', '.join(fixed)} (fixed length)"] if fixed else []


def _try_gpus(options: DmlabOptions) -> None:
    """Begin an episode on each GPU, because the engine opens a GPU only when an episode begins.

    Raises EnvSetupError if an episode fails.
    """
    gpus = tuple(dict.fromkeys(options.gpus))
    with closing(Labs([row_setup(options, {}, options.gpus.index(gpu)) for gpu in gpus])) as labs:
        for row in labs.rows:
            row.ask("begin", ANY_LEVEL, 0)
        for gpu, row in zip(gpus, labs.rows, strict=True):
            try:
                row.answer()
            except LabError as error:
                given = options.gpus != DmlabOptions.gpus
                option = f"--dmlab.gpus {_shown(options.gpus)}" if given else "--dmlab.renderer hardware"
                said = " ".join(f"{error} {row.last_words() if error.refused else ''}".split())
                raise EnvSetupError(
                    f"{option} cannot be used: the engine cannot render on GPU {gpu}. Set "
                    "--dmlab.gpus to existing GPUs (EGL devices, the first is 0), or use "
                    f"--dmlab.renderer software. The engine's message: {said}"
                ) from None


def _shown(gpus: tuple[int, ...]) -> str:
    return " ".join(map(str, gpus))


def unreproducible(name: str) -> str:
    """Return the reason why equal seeds give different steps in a level. Empty if equal seeds give equal steps."""
    there = name == ALL or name.rpartition("/")[2].startswith(BOTS)
    return "the engine's bots in lasertag_* and lt_* act differently each time" if there else ""


def recipe(name: str) -> dict[str, object]:
    """Return the default options of a run: dotted name of a config field -> value.

    Network and returns are IMPALA's, and the loss is PPO's clipped loss.
    """
    return {
        "model.encoder": "impala",
        "model.hidden": (256,),
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
        "hypers.gae_lambda": 1.0,  # as in IMPALA's V-trace
        # A Lab needs a core and 190 to 420 MB, so there are few rows. Each actor has a single vector env, because a
        # second vector env would wait for a slow level of the first.
        "vector_envs_per_actor": 1,
        "envs_per_vector_env": 2,
        "actor_timeout_seconds": STEP_SECONDS,
        "train_for_frames": 10_000_000_000 if name == ALL else 1_000_000_000,
        # With tasks, these two options count rounds. A round is one episode of each task.
        "pbt.objective_episodes": 10 if name == ALL else 100,
        "pbt.min_episodes": 1 if name == ALL else 5,
    }


class TaskScheduler:
    """Scheduler that chooses the task with the lowest total cost (in steps or episodes).

    order: indices of all tasks. Of tasks with equal cost, the first in this order is chosen.

    First, each task is chosen once. Afterwards, if costs are steps, tasks with short episodes are chosen more often.
    The total costs of two tasks never differ by more than the cost of one episode.
    """

    def __init__(self, order: Sequence[int]) -> None:
        assert len(set(order)) == len(order) > 0
        self._spent = dict.fromkeys(order, 0)

    def spend(self, task: int, cost: int) -> None:
        """Add the cost of an episode of a task."""
        self._spent[task] += cost

    def next(self) -> int:
        """Return the task of the next episode."""
        return min(self._spent, key=self._spent.__getitem__)


class LabVectorEnv:
    """Vector env of R rows, each with an instance of DeepMind Lab.

    Equal seeds give equal episodes, except in levels with the engine's bots. Equal seeds give equal steps only without
    background resets.

    name: NAME in `dmlab/NAME`.
    settings: the user's settings of the engine or of the level (--env-option).
    first_row: index of the first row among all rows of the run.
    `reset` and `step` raise EnvSetupError if an engine rejects the settings of the first episode. They raise
    RuntimeError if an engine rejects a later request, crashes, hangs, or returns a reward that is not finite.
    """

    def __init__(
        self,
        name: str,
        rows: int,
        seed: int,
        options: DmlabOptions,
        settings: Mapping[str, Any],
        shaping: ShapingSource,
        first_row: int = 0,
    ) -> None:
        assert rows > 0
        self.spec = describe(name, options)
        self.rows = rows
        self._name, self._options = name, options
        self._book = EpisodeBook(rows, shaping)
        self._scripts = level_scripts(name, options)
        shared, *separate = np.random.SeedSequence(seed).spawn(1 + rows)
        self._rngs = [np.random.default_rng(each) for each in separate]
        order = np.random.default_rng(shared).permutation(len(self._scripts)).tolist()
        spread = 0 if options.one_level_per_vector_env else len(order)
        starts = [row * spread // rows for row in range(rows)]
        self._schedulers = [TaskScheduler(order[start:] + order[:start]) for start in starts]

        self._playing_R = np.zeros(rows, np.bool_)
        self._over_R = np.ones(rows, np.bool_)  # the next step begins an episode
        self._began = False
        self._level_R = np.zeros(rows, np.int64)
        self._scale_R2 = np.zeros((rows, 2))
        self._labs = Labs([row_setup(options, settings, first_row + row) for row in range(rows)])
        self._seen = [row_arrays(self._labs.memory, row) for row in range(rows)]

    def reset(self, out: StepArrays) -> None:
        """Start all rows. Called once. A row delivers a black picture until its episode begins."""
        assert self._over_R.all(), "a vector env is reset once"
        nothing_R = np.zeros(self.rows)
        self._deliver(nothing_R.astype(np.int32), nothing_R, np.zeros((2, self.rows), np.bool_), out)

    def step(self, action: NDArray[Any], out: StepArrays) -> None:
        """Advance every row by one step. action: [R, 1] int32."""
        reward_R, ends_2R = np.zeros(self.rows), np.zeros((2, self.rows), np.bool_)
        playing = np.flatnonzero(self._playing_R).tolist()
        for row in playing:
            self._labs.rows[row].ask("step", int(action[row, 0]))
        for row in playing:
            reward_R[row], over, limit = self._answer(row)
            if not abs(reward_R[row]) < LARGEST_REWARD:
                raise RuntimeError(
                    f"{self._where(row)} returned the reward {reward_R[row]}, which is not finite"
                )
            ends_2R[:, row] = over and not limit, over and limit
        self._deliver(action[:, 0], reward_R, ends_2R, out)

    def close(self) -> None:
        """End all processes. Safe to call twice."""
        self._labs.close()

    def cpu_ns(self) -> int:
        """Return the total CPU time of this process and the rows' processes in nanoseconds."""
        return time.process_time_ns() + self._labs.cpu_ns()

    def _deliver(
        self,
        action_R: NDArray[np.int32],
        reward_R: NDArray[np.float64],
        ends_2R: NDArray[np.bool_],
        out: StepArrays,
    ) -> None:
        """Write the step of rows within an episode, set `first` in all other rows, and request new episodes.

        reward_R: the engine's rewards.
        ends_2R: [2, R] bool, rows whose episode was terminated, and rows whose episode was truncated.
        """
        played_R = self._playing_R.copy()
        clip, unit = self._options.clip_reward, self._options.reward_unit
        learned_R = np.tanh(reward_R / unit) if clip else reward_R
        gain_loss_R2 = np.stack((np.maximum(learned_R, 0), np.minimum(learned_R, 0)), 1)
        out.reward[:] = (self._scale_R2 * gain_loss_R2).sum(1) * played_R
        if self._options.last_action_reward:
            out.obs[LAST][:] = 0
            out.obs[LAST][played_R, action_R[played_R]] = 1
            out.obs[LAST][:, -1] = np.clip(reward_R, -1, 1)
        self._book.add(reward_R, out.reward, played_R)
        for row in np.flatnonzero(self._over_R).tolist():
            self._begin_episode(row)
        self._book.write(out)
        if out.task is not None:
            out.task[:] = self._level_R
            for row, level in enumerate(self._level_R.tolist()):
                out.objective[row] = LEVELS[level].percent(float(self._book.raw_R[row]))
        self._take_begun()
        # Ends are recorded last because the next step, not this step, resets a finished episode.
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
            cost = 1 if self._options.test else int(self._book.length_R[row])
            self._schedulers[row].spend(int(self._level_R[row]), cost)

    def _begin_episode(self, row: int) -> None:
        """Request a row's next episode from its Lab."""
        level, rng = self._schedulers[row].next(), self._rngs[row]
        path = self._scripts[level]
        pool = self._options.level_seeds
        seed = pool_seed(path, int(rng.integers(pool))) if pool else int(rng.integers(MAX_SEED))
        values = self._book.open_episode(row)
        self._scale_R2[row] = values[GAIN], values[LOSS]
        self._level_R[row] = level
        self._labs.rows[row].ask("begin", path, seed)

    def _take_begun(self) -> None:
        """Record the rows whose episode has begun.

        If all rows are resetting, wait for one of them. Without background resets, wait for all rows.
        """
        waiting = np.flatnonzero(~self._playing_R).tolist()
        if waiting and not self._playing_R.any():
            self._labs.wait(waiting)
        for row in waiting:
            lab = self._labs.rows[row]
            if not self._options.background_resets or lab.answered or lab.late:
                self._answer(row)
                self._playing_R[row] = self._began = True

    def _answer(self, row: int) -> Any:
        try:
            return self._labs.rows[row].answer()
        except LabError as error:
            if error.refused and not self._began:  # before the first episode: a wrong setting of the user
                raise _cannot(self._name, error) from None
            raise RuntimeError(f"{self._where(row)}: {error}") from None

    def _where(self, row: int) -> str:
        return f"DeepMind Lab, level {self._scripts[self._level_R[row]]}"


def _cannot(name: str, error: LabError) -> EnvSetupError:
    hint = (
        ". Use a level of the engine (`pbt-rl envs`, or a path below its game_scripts/levels), and "
        "only --env-option settings that it supports"
    )
    return EnvSetupError(f"dmlab/{name} cannot be used: {error}{hint if error.refused else ''}")


def for_tests(options: DmlabOptions) -> DmlabOptions:
    """Return the options of an evaluation: test levels and maps, and reproducible steps."""
    return replace(options, test=True, background_resets=False, level_seeds=0, one_level_per_vector_env=False)


def _make_vector_env(
    name: str, rows: int, seed: int, options: EnvOptions, shaping: ShapingSource
) -> LabVectorEnv:
    return LabVectorEnv(
        name, rows, seed, options.of(DmlabOptions), options.keywords, shaping, options.first_row
    )


BACKEND = Backend(
    names=names,
    probe=lambda name, options: probe(name, options.of(DmlabOptions), options.keywords),
    make_vector_env=_make_vector_env,
    recipe=lambda name, _options: recipe(name),
    for_evaluation=lambda options: options.with_family(for_tests(options.of(DmlabOptions))),
    shown=lambda name, options: (  # with the `_train` or `_test` suffix that is in use
        name if name == ALL else level_scripts(name, options.of(DmlabOptions))[0].removeprefix(FOLDER)
    ),
    unreproducible=unreproducible,
    step_seconds=STEP_SECONDS,
    begins="creating environments; compiling maps takes a minute or more the first time",
    film=lambda *of: (_make_vector_env(*of), FRAMES_PER_SECOND),
)
