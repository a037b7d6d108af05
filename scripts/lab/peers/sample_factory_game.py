"""One run of Sample Factory 2.1.1 for `scripts/lab/games.py`: one of its own examples, in one process on one core.

Runs in the peers' virtual environment. What follows `--` goes to Sample Factory as it is. Its serial mode is its
synchronous training in one process. Exit code 0: the run is whole or the time is over; the same command goes on.

Changed in it: its schedule of the learning rate, which begins again when a run goes on, goes on here as well; the
games of Atari are registered (its gymnasium is older than ale-py's); episodes are counted by an observer.
"""

# ruff: noqa: PLC0415 - an example is imported when it is trained: VizDoom may be missing
from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from curve import WINDOW, Curve, Window
from sample_factory.algo.learning.learner import Learner, LinearDecayScheduler
from sample_factory.algo.runners.runner import AlgoObserver, Runner
from sample_factory.algo.utils.misc import EPISODIC
from sample_factory.train import make_runner


def make_atari(env_name: str, cfg: Any, env_config: Any, render_mode: str | None = None) -> Any:
    """Make its Atari example's environment, whatever process asks for it."""
    from ale_py.registration import register_v0_v4_envs
    from sf_examples.atari.atari_utils import make_atari_env

    register_v0_v4_envs()
    return make_atari_env(env_name, cfg, env_config, render_mode)


def parse_atari(argv: list[str]) -> Any:
    """Its Atari example: sf_examples/atari/atari_params.py."""
    from sample_factory.envs.env_utils import register_env
    from sf_examples.atari.train_atari import parse_atari_args

    cfg = parse_atari_args(argv)
    register_env(cfg.env, make_atari)
    return cfg


def make_mujoco(env_name: str, cfg: Any, env_config: Any, render_mode: str | None = None) -> Any:
    """Make its EnvPool environment; the base class of its gymnasium asks for `closed`, which EnvPool never set."""
    from sf_examples.envpool.mujoco.envpool_mujoco_utils import make_mujoco_env

    env = make_mujoco_env(env_name, cfg, env_config, render_mode)
    env.unwrapped.closed = True
    return env


def parse_mujoco(argv: list[str]) -> Any:
    """Parameters of its MuJoCo example (sf_examples/mujoco/mujoco_params.py) over its EnvPool integration."""
    from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
    from sample_factory.envs.env_utils import register_env
    from sf_examples.envpool.mujoco.envpool_mujoco_params import add_mujoco_envpool_env_args
    from sf_examples.mujoco.mujoco_params import mujoco_override_defaults

    parser, partial = parse_sf_args(argv=argv)
    register_env(partial.env, make_mujoco)
    add_mujoco_envpool_env_args(partial.env, parser)
    mujoco_override_defaults(partial.env, parser)
    parser.set_defaults(batched_sampling=True, num_workers=1, num_envs_per_worker=1, worker_num_splits=1)
    return parse_full_cfg(parser, argv)


def parse_vizdoom(argv: list[str]) -> Any:
    """Its VizDoom example: sf_examples/vizdoom/doom/doom_params.py."""
    from sf_examples.vizdoom import train_vizdoom

    train_vizdoom.register_vizdoom_components()
    return train_vizdoom.parse_vizdoom_cfg(argv)


PARSERS: Mapping[str, Callable[[list[str]], Any]] = {
    "atari": parse_atari,
    "mujoco": parse_mujoco,
    "vizdoom": parse_vizdoom,
}


class Recorder(AlgoObserver):
    """Writes the curve, and ends the run when its frames or its seconds are over."""

    def __init__(self, curve: Curve, window: Window, given: argparse.Namespace) -> None:
        self.curve, self.window, self.given = curve, window, given
        self.until = time.monotonic() + given.seconds
        self.resumed = False

    def on_connect_components(self, runner: Runner) -> None:
        """Hear of every episode."""
        runner.register_episodic_stats_handler(self._episodes)

    def _episodes(self, runner: Runner, message: dict[str, Any], policy_id: int) -> None:  # noqa: ARG002
        for score in np.atleast_1d(message[EPISODIC].get(self.given.score, ())):
            self.window.add(float(score) * self.given.scale)

    def on_training_step(self, runner: Runner, training_iteration_since_resume: int) -> None:  # noqa: ARG002
        """Note a point; end at the right time."""
        frames = int(runner.env_steps.get(0, 0))
        if not frames:
            return
        if not self.resumed:
            self.curve.resume(frames)
            self.resumed = True
        over = frames >= self.given.frames or time.monotonic() > self.until
        self.curve.note(frames, self.window.mean, min(len(self.window), WINDOW), last=over)
        if over:
            self.window.save()
            runner.cfg.train_for_env_steps = 0  # its way to end in order; it ignores train_for_seconds


def keep_schedule() -> None:
    """Let the linear schedule of a run that goes on begin where it was."""
    init = Learner.init

    def init_and_go_on(self: Any) -> Any:
        made = init(self)
        if isinstance(self.lr_scheduler, LinearDecayScheduler):
            self.lr_scheduler.step = self.train_step
        return made

    Learner.init = init_and_go_on


def main() -> int:
    """Train until the frames or the seconds are over."""
    split = sys.argv.index("--")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--family", choices=PARSERS, required=True)
    parser.add_argument("--score", required=True, help="its name of an episode's score")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies that score")
    parser.add_argument("--frames", type=int, required=True)
    parser.add_argument("--every", type=int, required=True, help="frames between two points of the curve")
    parser.add_argument("--seconds", type=float, required=True, help="stop after this long")
    parser.add_argument(
        "--folder", type=Path, required=True, help="of this run; curve.jsonl is written there"
    )
    given = parser.parse_args(sys.argv[1:split])
    given.folder.mkdir(parents=True, exist_ok=True)
    keep_schedule()
    argv = [*sys.argv[split + 1 :], f"--train_dir={given.folder}", "--experiment=run", "--device=cpu"]
    argv += ["--heartbeat_reporting_interval=1000000"]  # a process that was stopped for minutes may go on
    argv += ["--serial_mode=True", "--async_rl=False", f"--train_for_env_steps={given.frames}"]
    _, runner = make_runner(PARSERS[given.family](argv))
    curve = Curve(given.folder / "curve.jsonl", given.every)
    runner.register_observer(Recorder(curve, Window(given.folder / "window.json"), given))
    status = runner.init()
    return int(runner.run() if status == 0 else status)


if __name__ == "__main__":
    sys.exit(main())
