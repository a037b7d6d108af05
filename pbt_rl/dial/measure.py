"""Measures what a time holds: how long episodes are by playing some, and the speed by a short run of the same options.

Both in other processes, so that nothing of an environment stays in this one.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from pbt_rl.config import Config
from pbt_rl.envs import registry
from pbt_rl.envs.base import (
    EnvSpec,
    default_shaping_source,
    private_step_arrays,
    random_actions,
    untrained_within,
)
from pbt_rl.envs.first_trial import tried
from pbt_rl.errors import ConfigError
from pbt_rl.files.config import written
from pbt_rl.record.folder import RunFolder, to_json

ROWS = 2
EPISODES = 8
PLAY_SECONDS = 10.0
"""At most, of the time to train a fiftieth, but two seconds in any case."""
LEAST_TRIAL_SECONDS, MOST_TRIAL_SECONDS = 3.0, 20.0
"""From the first update on."""
LONGEST_TRIAL_SECONDS = 60.0
"""From the first frames on, also if nothing is learned by then."""
START_SECONDS = 600.0
"""Of processes and simulators, until the trial trains."""


@dataclasses.dataclass(frozen=True)
class Episodes:
    """Lengths in steps of those that ended, and how far the others came."""

    ended: tuple[int, ...]
    steps: int
    limit: int | None


def played(config: Config, spec: EnvSpec, seconds: float) -> Episodes:
    """Play with random actions until enough episodes have ended, or for so long."""

    def play() -> Episodes:
        options, rows = config.env_options, ROWS * spec.seats
        ended: list[int] = []
        steps, rng = 0, np.random.default_rng(0)
        out = private_step_arrays(spec, rows)
        unit = registry.make_unit(config.env, rows, config.seed, options, default_shaping_source(spec))
        with closing(unit):
            unit.reset(out)
            end = time.perf_counter() + seconds
            while len(ended) < EPISODES and time.perf_counter() < end:
                unit.step(random_actions(spec, out, rng, untrained_within), out)
                steps += 1
                ended += out.length[out.episode_done].tolist()
        return Episodes(tuple(ended), steps, _limit(config))

    return tried(config.env, play, None, when="when it was played")


def _limit(config: Config) -> int | None:
    """Return the steps that Gymnasium cuts an episode off at, if it does."""
    raw = registry.make_raw(config.env, config.env_options)
    if raw is None:
        return None
    with closing(raw):
        steps = getattr(getattr(raw, "spec", None), "max_episode_steps", None)
    return steps if isinstance(steps, int) and steps > 0 else None


@dataclasses.dataclass(frozen=True)
class Trial:
    """A short run: the config that it had, its summary, and its frames/s once it learned."""

    config: Config
    summary: Mapping[str, Any]
    frames_per_second: float


def tried_run(config: Config, seconds: float) -> Trial:
    """Train until the speed of so many seconds is known, and leave nothing behind. Raises ConfigError if that fails."""
    with tempfile.TemporaryDirectory(prefix="pbt-rl-trial-", ignore_cleanup_errors=True) as name:
        trial = dataclasses.replace(
            config,
            out=Path(name),
            name="trial",
            train_for_seconds=LONGEST_TRIAL_SECONDS,
            save_every_seconds=0.0,
            figures=False,
        )
        file = Path(name) / "trial.json"
        file.write_text(written(to_json(trial), "json"))
        _run([str(file), str(seconds)], START_SECONDS + 2 * LONGEST_TRIAL_SECONDS)
        summary = json.loads(RunFolder(trial.out / "trial").summary.read_text())
        return Trial(trial, summary, float(file.with_suffix(".speed").read_text()))


def _run(words: list[str], limit_seconds: float) -> None:
    command = [sys.executable, "-m", "pbt_rl.dial.trial", *words]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=limit_seconds,
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(
            f"--hours cannot be used: the trial run took more than {limit_seconds:.0f} s"
        ) from None
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()[-1]
        raise ConfigError(f"--hours cannot be used: the trial run failed: {last}")
