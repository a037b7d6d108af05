"""EnvPool: what its engines have (Atari, MuJoCo, MiniGrid, classic control ...), as native vectors.

A unit is one EnvPool of R rows on one engine thread, stepped in lockstep; nothing loops over rows. EnvPool
resets a row in the step after its episode's end, ignoring that step's action, as a unit does: every final
observation is delivered. A time limit is a truncation.

A bad option ends the engine's process, without an exception. So a task with its options is first tried out in a
copy of this process (`first_trial.tried`), whose output becomes the error.

Atari is played as by the family atari/: options are --atari.*, the engine gives the newest frame and the raw
score, and `AtariScoring` handles clipping and lives. The objective is the raw score.

Axes: R rows.
"""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from tempfile import TemporaryDirectory
from typing import Any

import envpool
import numpy as np
from numpy.typing import NDArray

from .. import atari
from ..atari import AtariOptions, AtariScoring, raw_scores
from ..base import LARGEST_REWARD, EnvSetupError, EnvSpec, ShapingSource, StepArrays
from ..episodes import EpisodeBook, all_at_once, pulse_of, write_reset
from ..family import Backend
from ..first_trial import tried
from ..gym import recipe as gym_recipe
from ..spaces import read_rows
from ..time_limits import GRACE_SECONDS, PROBE_SECONDS
from .tasks import describe, names


def probe(name: str, options: AtariOptions, keywords: Mapping[str, Any]) -> EnvSpec:
    """Describe a task, after a trial in a process of its own. Raises EnvSetupError if it cannot be used."""
    task = describe(name, options, keywords)
    given = ", ".join(f"{key}={value}" for key, value in keywords.items())
    _try_out(name, json.dumps({"num_threads": 1, **task.keywords}), f" with {given}" if given else "")
    return task.spec


@lru_cache(maxsize=32)
def _try_out(name: str, request: str, given: str) -> None:
    """Make and step a task once. request: JSON of its keywords. given: those of the user, for the message."""

    def play() -> None:
        with TemporaryDirectory() as folder, contextlib.chdir(folder):  # MuJoCo writes a log where it runs
            env = envpool.make(name, "gymnasium", num_envs=2, seed=0, **json.loads(request))
            env.reset()
            action = list(env.spec.action_array_spec.values())[-1]
            of_one = [size for size in action.shape if size != -1]
            for _ in range(3):
                env.step(np.zeros((2, *of_one), action.dtype))

    tried(f"envpool/{name}{given}", play, PROBE_SECONDS + GRACE_SECONDS, when="when it was tried")


def recipe(name: str, options: AtariOptions, keywords: Mapping[str, Any]) -> dict[str, object]:
    """Return defaults of a run: Atari's, or by actions and observations."""
    task = describe(name, options, keywords)
    if task.is_atari:
        return atari.recipe()
    found = gym_recipe(task.spec)
    if found["model.encoder"] == "mlp":  # the scales of EnvPool's observations differ by orders of magnitude
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
        self._task = describe(name, options, keywords)
        self.spec, self.rows = self._task.spec, rows
        self._book = EpisodeBook(rows, shaping)
        self._scoring = None
        if self._task.is_atari:
            self._scoring = AtariScoring(rows, options, may_fire=self._task.fire is not None)
        self._leaves = [(leaf, replace(leaf, path=())) for leaf in self._task.leaves]
        seeds = np.random.SeedSequence(seed).generate_state(rows) % 2**31
        self._pulse = pulse_of(shaping)
        settings = {"num_threads": 1, **self._task.keywords}
        with all_at_once(self._pulse, rows):
            self._engine: Any = envpool.make(
                name, "gymnasium", num_envs=rows, seed=seeds.tolist(), **settings
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it makes its spaces at first access; see `describe`
            assert self._engine.observation_space is not None
        self._ended_R = np.zeros(rows, np.bool_)
        self._none_R = np.zeros(rows, np.bool_)

    def reset(self, out: StepArrays) -> None:
        with all_at_once(self._pulse, self.rows):
            obs, info = self._engine.reset()
        self._ended_R[:] = False
        self._begin_episodes(range(self.rows))
        if self._scoring is not None:
            self._scoring.reset(info["lives"])
        self._write_obs(obs, info, out)
        write_reset(out)
        self._book.write(out)

    def step(self, action: NDArray[Any], out: StepArrays) -> None:
        """action: [R, A] of `spec.action.dtype`."""
        starts_R = self._ended_R
        fire_R = self._none_R if self._scoring is None else self._scoring.fire_R & ~starts_R
        if fire_R.any():
            action = action.copy()
            action[fire_R] = self._task.fire
        obs, score, over, cut, info = self._engine.step(self._task.decode(action))
        if starts_R.any():
            self._begin_episodes(np.flatnonzero(starts_R).tolist())
        goes_R = played_R = ~starts_R
        if self._scoring is not None:
            played_R = self._scoring.played(goes_R, fire_R)
        over_R, cut_R = over.astype(np.bool_, copy=False), cut.astype(np.bool_, copy=False)
        score_R = np.where(goes_R, score.astype(np.float64), 0.0)
        if not (np.abs(score_R) < LARGEST_REWARD).all():
            raise EnvSetupError(f"{self.spec.env_id} gave a reward that is not finite: leave this task out")
        ends_R = over_R
        reward_R = score_R
        if self._scoring is not None:
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
        """Release the engine: its thread is joined when the last reference goes."""
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
    make_unit=lambda name, rows, seed, options, shaping: EnvPoolUnit(
        name, rows, seed, options.of(AtariOptions), shaping, options.keywords
    ),
    recipe=lambda name, options: recipe(name, options.of(AtariOptions), options.keywords),
    for_evaluation=lambda options: options.with_family(raw_scores(options.of(AtariOptions))),
)
