"""Train CleanRL's PPO over EnvPool with its defaults on an Atari game for a fixed time, and evaluate the policy.

`scripts/lab/as_typed.py` runs this script with an interpreter that has the releases CleanRL was written for: gym 0.23.1
and envpool 0.8.4. No release of CleanRL on PyPI has `ppo_atari_envpool.py`: give the file of a checkout (--script). The
training is equivalent to `python ppo_atari_envpool.py --env-id GAME --seed SEED`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import envpool
import torch
from torch.utils import tensorboard

FRAMES_PER_STEP = 4
"""Frame skip of EnvPool's Atari environments. CleanRL counts steps."""


class TimeLimitError(Exception):
    """End of the training, raised after an iteration."""


class Clock(tensorboard.SummaryWriter):
    """SummaryWriter that ends CleanRL's training after a fixed time.

    The time begins before environments are made.
    """

    limit_seconds = 0.0
    began = seconds = 0.0
    steps = 0

    def add_text(self, *words: Any, **named: Any) -> None:
        """Begin the time. CleanRL writes its options before it makes environments."""
        super().add_text(*words, **named)
        Clock.began = time.monotonic()

    def add_scalar(self, tag: str, value: float, step: int, *words: Any) -> None:
        """Raise TimeLimitError at the end of an iteration after the time limit."""
        super().add_scalar(tag, value, step, *words)
        Clock.seconds = time.monotonic() - Clock.began
        if tag == "charts/SPS" and Clock.seconds >= Clock.limit_seconds:
            Clock.steps = step
            raise TimeLimitError


def evaluate(agent: Any, game: str, games: int, seed: int) -> list[float]:
    """Play complete games at the same time, with sampled actions. Return their scores, without clipped rewards."""
    envs = envpool.make(
        game, env_type="gym", num_envs=games, episodic_life=False, reward_clip=False, seed=seed
    )
    observations, scores, playing = envs.reset(), torch.zeros(games), torch.ones(games, dtype=torch.bool)
    while playing.any():
        with torch.no_grad():
            actions, *_ = agent.get_action_and_value(torch.Tensor(observations))
        observations, rewards, ended, _ = envs.step(actions.numpy())
        scores += torch.tensor(rewards) * playing
        playing &= ~torch.tensor(ended)
    return scores.tolist()


def main() -> int:
    """Train and evaluate. Write frames, seconds and scores."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--script", type=Path, required=True, help="CleanRL's ppo_atari_envpool.py")
    add("--game", required=True, help="such as breakout")
    add("--seed", type=int, required=True)
    add("--seconds", type=float, required=True)
    add("--games", type=int, required=True)
    add("--json", type=Path, required=True, help="result file")
    chosen = parser.parse_args()
    game = "".join(word.capitalize() for word in chosen.game.split("_")) + "-v5"
    tensorboard.SummaryWriter, Clock.limit_seconds = Clock, chosen.seconds
    sys.argv = [str(chosen.script), "--env-id", game, "--seed", str(chosen.seed)]
    training: dict[str, Any] = {"__name__": "__main__", "__file__": str(chosen.script)}
    with contextlib.suppress(TimeLimitError):
        exec(compile(chosen.script.read_text(), chosen.script, "exec"), training)  # noqa: S102 - the user's file
    scores = evaluate(training["agent"], game, chosen.games, chosen.seed)
    figures = {"frames": FRAMES_PER_STEP * Clock.steps, "seconds": Clock.seconds}
    figures |= {"mean": fmean(scores), "sd": stdev(scores), "min": min(scores), "max": max(scores)}
    chosen.json.write_text(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
