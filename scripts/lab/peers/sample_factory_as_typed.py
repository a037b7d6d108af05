"""Train Sample Factory 2.1.1 with its defaults on an Atari game for a fixed time, and evaluate the policy.

`scripts/lab/as_typed.py` runs this script in the peers' virtual environment. The training is equivalent to
`python -m sf_examples.atari.train_atari --algo=APPO --env=GAME --device=cpu`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import gymnasium
from sample_factory.algo.runners.runner import AlgoObserver, Runner
from sample_factory.algo.utils.misc import ExperimentStatus
from sample_factory.enjoy import enjoy
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner
from sample_factory_job import make_atari
from sf_examples.atari import train_atari

played: list[gymnasium.wrappers.RecordEpisodeStatistics] = []


def make(env_name: str, cfg: Any, env_config: Any, render_mode: str | None = None) -> Any:
    """Make the environment of Sample Factory's example. Store its wrapper that records complete games."""
    env = made = make_atari(env_name, cfg, env_config, render_mode)
    while not isinstance(made, gymnasium.wrappers.RecordEpisodeStatistics):
        made = made.env
    played.append(made)
    return env


class Clock(AlgoObserver):
    """Observer that ends the run a fixed time after the first training step.

    (The runner of Sample Factory ignores train_for_seconds.)
    """

    def __init__(self, seconds: float) -> None:
        self.limit_seconds = seconds
        self.began = self.frames = self.seconds = 0.0

    def on_training_step(self, runner: Runner, training_iteration_since_resume: int) -> None:  # noqa: ARG002
        """End the run after the time limit."""
        now = time.monotonic()
        self.began = self.began or now
        if now - self.began >= self.limit_seconds and not self.frames:
            self.frames, self.seconds = float(runner.env_steps[0]), now - self.began
            runner.cfg.train_for_env_steps = 0


def main() -> int:
    """Train and evaluate. Write frames, seconds and scores."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--game", required=True)
    add("--seed", type=int, required=True)
    add("--seconds", type=float, required=True)
    add("--games", type=int, required=True)
    add("--json", type=Path, required=True, help="result file; Sample Factory writes into its folder")
    chosen = parser.parse_args()
    name = f"atari_{chosen.game}"
    register_env(name, make)
    typed = ["--algo=APPO", f"--env={name}", "--device=cpu", f"--seed={chosen.seed}"]
    typed += [f"--train_dir={chosen.json.parent}", "--experiment=job"]
    _, runner = make_runner(train_atari.parse_atari_args(typed))
    clock = Clock(chosen.seconds)
    runner.register_observer(clock)
    if runner.init() != ExperimentStatus.SUCCESS or runner.run() != ExperimentStatus.SUCCESS:
        return 1
    played.clear()
    ended = [f"--max_num_episodes={chosen.games}", "--no_render"]
    enjoy(train_atari.parse_atari_args(typed + ended, evaluation=True))
    scores = [float(score) for score in played[-1].return_queue]
    figures = {"frames": int(clock.frames), "seconds": clock.seconds}
    figures |= {"mean": fmean(scores), "sd": stdev(scores), "min": min(scores), "max": max(scores)}
    chosen.json.write_text(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
