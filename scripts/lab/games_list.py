"""The games of `games.py`: what is played, for how many frames, and how each system is told to learn it.

Ours is what `pbt-rl train --env NAME --num-policies 1` does, in serial mode. Sample Factory learns by its own examples
(sf_examples of its package, 2.1.1); the options below adapt them to one core or name the job. Health gathering's are
those of the Hugging Face course on it (8 workers of 4 games, batches of 1024). What the examples say:

| its example | learns with |
| --- | --- |
| sf_examples/atari/atari_params.py | 8 games, rollouts of 128, 4 minibatches of 256 in order, 4 epochs, rate 2.5e-4 falling linearly, clip 0.1, entropy 0.01, GAE 0.95, gradient 0.5, normalised inputs and returns, Adam's epsilon 1e-5, Nature network with ReLU |
| sf_examples/mujoco/mujoco_params.py | 64 rows, rollouts of 64, 4 minibatches of 1024 in order, 2 epochs, rate 2.95e-3 falling linearly, clip 0.2, KL loss 0.1, value loss 1.3, no entropy, gradient 3.5, normalised inputs and returns, two tanh layers of 64, bootstrap at the time limit |
| sf_examples/vizdoom/doom/doom_params.py | rollouts of 32, one minibatch of 1024, one epoch, rate 1e-4, clip 0.1, symmetric KL exploration 0.001, gradient 4, normalised inputs and returns, GRU of 512, 128 x 72 colours |

Its linear schedule counts frames where learning counts steps: on Atari, with four frames a step, the rate ends at three
quarters of its start. That is its recipe.
"""  # noqa: E501 - a row of a table is a line

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SAMPLE_FACTORY = "sample-factory"


@dataclass(frozen=True)
class Peer:
    """How Sample Factory learns a game."""

    family: str
    """Its example: atari, mujoco or vizdoom."""
    score: str
    """Its name of the unclipped score of a whole game."""
    options: tuple[str, ...]
    scale: float = 1.0
    """Its score times this is ours."""


@dataclass(frozen=True)
class Game:
    """One game, at equal frames for all systems."""

    title: str
    frames: int
    ours: Mapping[str, tuple[str, ...]]
    """System -> its options; the first one is our default."""
    peer: Peer
    score: str = "objective"
    """What a point of our curve is, see peers/our_game.py."""

    @property
    def systems(self) -> tuple[str, ...]:
        """Ours, then the peer."""
        return (*self.ours, SAMPLE_FACTORY)

    @property
    def every(self) -> int:
        """Frames between two points of a curve."""
        return self.frames // 50


def atari(title: str, name: str, peer: str, frames: int, others: tuple[str, ...] = ()) -> Game:
    """Return a game of Atari, 4 frames a step. others: our algorithms beside the default one."""
    env = ("--env", f"atari/{name}")
    return Game(
        title,
        frames,
        {
            "ours": env,
            **{f"ours, {algo}": (*env, "--algo", algo) for algo in others},
        },
        Peer(
            "atari",
            "RecordEpisodeStatistics_reward",
            (f"--env=atari_{peer}", "--num_workers=1", "--num_envs_per_worker=8"),
        ),
        score="raw_return",
    )


CHEETAH_OF_THE_PEER = (
    *(
        "--env",
        "envpool/HalfCheetah-v4",
        "--option",
        "learner.batch",
        "4096",
        "--option",
        "learner.minibatches",
        "4",
    ),
    *("--option", "learner.epochs", "2", "--option", "learner.lr_schedule", '"linear"'),
    *("--option", "hypers.learning_rate", "2.95e-3", "--option", "hypers.max_grad_norm", "3.5"),
    *("--option", "hypers.entropy_coef", "0", "--option", "hypers.kl_coef", "0.1"),
    *("--option", "hypers.value_coef", "2.6"),
)
"""Ours with the values of Sample Factory's parameters for MuJoCo: what the same frames cost here. Its weight of the
value loss is 1.3; ours is twice that, as our loss has a factor of 1/2 and its has none."""

GAMES: Mapping[str, Game] = {
    "halfcheetah": Game(
        "HalfCheetah-v4 (EnvPool)",
        1_000_000,
        {"ours": ("--env", "envpool/HalfCheetah-v4"), "ours, its recipe": CHEETAH_OF_THE_PEER},
        Peer("mujoco", "reward", ("--env=mujoco_halfcheetah", "--env_agents=64", "--envpool_num_threads=1")),
    ),
    "boxing": atari("Boxing", "boxing", "boxing", 1_000_000),
    "breakout": atari("Breakout", "breakout", "breakout", 1_000_000),
    "freeway": atari("Freeway", "freeway", "freeway", 1_000_000),
    "ms_pacman": atari("Ms. Pacman", "ms_pacman", "mspacman", 1_000_000, ("a3c", "fun")),
    "health_gathering": Game(
        "VizDoom health gathering",
        500_000,
        {"ours": ("--env", "vizdoom/health_gathering")},
        Peer(
            "vizdoom",
            "true_objective",
            (
                *("--env=doom_health_gathering", "--num_workers=1", "--num_envs_per_worker=32"),
                "--worker_num_splits=1",
            ),
            scale=100.0,  # its 0.01 a tic
        ),
    ),
    "pong": atari("Pong", "pong", "pong", 3_000_000, ("a3c",)),
}
