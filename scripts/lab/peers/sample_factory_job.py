"""Measure the frames/s of Sample Factory 2.1.1 on Pong, with the environments and the runner of its examples.

`scripts/lab/peer_bench.py` runs this script in the peers' virtual environment. Sample Factory receives the arguments
after `--`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import envpool
from ale_py.registration import register_v0_v4_envs
from sample_factory.algo.runners.runner import AlgoObserver, Runner
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner
from sample_factory.utils.attr_dict import AttrDict
from sf_examples.atari import atari_utils, train_atari
from sf_examples.envpool.atari import envpool_atari_utils, train_envpool_atari

FRAME_SKIP = 4
JOB = {  # the job of scripts/bench.py as options of Sample Factory
    "env": "atari_pong",
    "device": "cpu",
    "encoder_conv_architecture": "convnet_atari",
    "encoder_conv_mlp_layers": "512",
    "env_frameskip": FRAME_SKIP,
    "env_framestack": 4,
    "rollout": 32,
    "num_batches_per_epoch": 1,
    "num_epochs": 1,
    "async_rl": True,
    "lr_schedule": "constant",
    "normalize_input": False,  # a running mean over pixels is not part of the job, and slow on a CPU
    "restart_behavior": "overwrite",
    "save_every_sec": 100_000,
    "save_best_every_sec": 100_000,
}


def make_atari(env_name: str, cfg: Any, env_config: Any, render_mode: str | None = None) -> Any:
    """Make the environment of Sample Factory's Atari example.

    The games are registered here, because ale-py registers games only with gymnasium 1.0 or later, and Sample Factory
    needs an earlier version.
    """
    register_v0_v4_envs()
    return atari_utils.make_atari_env(env_name, cfg, env_config, render_mode)


def make_envpool(env_name: str, cfg: Any, env_config: Any, render_mode: str | None = None) -> Any:
    """Make the environment of Sample Factory's EnvPool example with one thread."""
    make = envpool.make
    envpool.make = lambda *args, **kwargs: make(*args, num_threads=1, **kwargs)
    try:
        env = envpool_atari_utils.make_atari_env(env_name, cfg, env_config, render_mode)
    finally:
        envpool.make = make
    env.unwrapped.closed = True  # read by gymnasium's base class, but not set by EnvPool
    return env


class Meter(AlgoObserver):
    """Observer that measures frames/s, after all policies have trained and the warm-up is over."""

    def __init__(self, policies: int, warmup_seconds: float, seconds: float, path: Path) -> None:
        self.policies, self.warmup_seconds, self.seconds, self.path = policies, warmup_seconds, seconds, path
        self.created = time.monotonic()
        self.trained_at: float | None = None
        self.window: list[tuple[float, list[int]]] = []  # (time, learned frames of each policy)
        self.done = False

    def on_training_step(self, runner: Runner, training_iteration_since_resume: int) -> None:  # noqa: ARG002
        """Record time and frames. At the end of the measurement, write the report and end the run.

        The report is written before the end of the run, because EnvPool's rollout processes may hang when they end.
        """
        if self.done or len(runner.env_steps) < self.policies:
            return
        now = time.monotonic()
        self.trained_at = self.trained_at or now
        if now - self.trained_at < self.warmup_seconds:
            return
        self.window.append((now, [int(runner.env_steps[p]) for p in range(self.policies)]))
        if now - self.window[0][0] >= self.seconds:
            partial = self.path.with_suffix(".part")
            partial.write_text(json.dumps({"frames_per_second": self._frames_per_second()}))
            partial.rename(self.path)
            self.done = True
            runner.cfg.train_for_env_steps = 0  # ends the run in order; train_for_seconds is ignored

    def _frames_per_second(self) -> float:
        (start, first_P), (end, last_P) = self.window[0], self.window[-1]
        return (sum(last_P) - sum(first_P)) / (end - start)


def main() -> int:
    """Run the job, and write the result."""
    split = sys.argv.index("--")
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--backend", choices=("atari", "envpool"), required=True)
    add("--policies", type=int, required=True)
    add("--warmup-seconds", type=float, required=True)
    add("--seconds", type=float, required=True)
    add("--json", type=Path, required=True, help="result file; Sample Factory writes into its folder")
    args, extra = parser.parse_args(sys.argv[1:split]), sys.argv[split + 1 :]
    meter = Meter(args.policies, args.warmup_seconds, args.seconds, args.json)
    job = JOB | {"num_policies": args.policies, "train_dir": args.json.parent, "experiment": "job"}
    argv = [f"--{name}={value}" for name, value in job.items()] + extra
    if args.backend == "atari":
        register_env("atari_pong", make_atari)
        cfg = train_atari.parse_atari_args(argv)
    else:
        register_env("atari_pong", make_envpool)
        cfg = train_envpool_atari.parse_atari_args(argv)
    # An AttrDict instead of the parser's Namespace, because Sample Factory's PBT subscripts it.
    _, runner = make_runner(AttrDict(vars(cfg)))
    runner.register_observer(meter)
    status = runner.init()
    if status == 0:
        status = runner.run()
    if not meter.done:
        print(f"Sample Factory ended with status {status} before the end of the measurement", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
