"""The experiments of `reproduce_agents.py`: tasks, arms, frames and seeds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Experiment:
    """Runs that differ in one thing, their arm, at equal frames."""

    title: str
    frames: int
    seeds: int
    options: tuple[str, ...]
    """Of every run."""
    arms: Mapping[str, tuple[str, ...]]
    """Name -> options. The table compares the first two."""

    @property
    def step(self) -> int:
        """Frames between two checkpoints."""
        return self.frames // 10


def _treasure(title: str, parameters: str, frames: int) -> Experiment:
    """UNREAL beside its base agent on a reward that is rare, seen as an image."""
    return Experiment(
        f"toy/treasure, {title}: A3C with and without UNREAL's auxiliary tasks",
        frames=frames,
        seeds=3,
        options=(
            *(
                "--env",
                f"toy/treasure?{parameters}",
                "--hypers.learning-rate",
                "7e-3",
                "--envs-per-unit",
                "8",
            ),
            *("--learner.rollout", "20", "--hypers.unroll", "20", "--model.encoder", "a3c"),
            *("--model.hidden", "64", "--model.core", "lstm", "--model.core-size", "64"),
            *("--model.last-action-reward", "--actors", "1"),
        ),
        arms={"unreal": ("--algo", "unreal"), "a3c": ("--algo", "a3c")},
    )


EXPERIMENTS: Mapping[str, Experiment] = {
    "a3c": Experiment(
        "CartPole, one policy, the defaults of each algorithm",
        frames=100_000,
        seeds=5,
        options=("--env", "gym/CartPole-v1", "--actors", "1"),
        arms={
            "a3c": ("--algo", "a3c"),
            "appo": ("--algo", "appo"),
            "a3c, 8 rows, rate 1e-3": ("--algo", "a3c", "--hypers.learning-rate", "1e-3"),
            "a3c, 32 rows, rate 3e-3": ("--algo", "a3c", "--envs-per-unit", "32"),
            # Its defaults before these runs.
            "a3c, 32 rows, rate 1e-3": (
                *("--algo", "a3c", "--envs-per-unit", "32", "--hypers.learning-rate", "1e-3"),
            ),
        },
    ),
    "memory": Experiment(
        "toy/memory: the cue and the question are 64 steps apart",
        frames=300_000,
        seeds=3,
        options=(
            *("--actors", "1"),
            *("--env", "toy/memory?delay=63&size=2", "--units-per-actor", "1", "--envs-per-unit", "32"),
            *("--learner.rollout", "132", "--hypers.unroll", "132", "--learner.batch", "4224"),
            *("--learner.epochs", "4", "--learner.lr-schedule", "linear", "--hypers.learning-rate", "1e-3"),
            *("--hypers.gamma", "0.9"),
        ),
        arms={
            "gru": ("--model.core", "gru"),
            "lstm": ("--model.core", "lstm"),
            # An episode takes 66 steps, its reset among them: rollouts of 132 begin with one, these do not.
            "lstm, rollouts of 100": (
                *("--model.core", "lstm", "--learner.rollout", "100", "--hypers.unroll", "100"),
                *("--learner.batch", "3200"),
            ),
        },
    ),
    "unreal_treasure": _treasure("5 x 5 cells, a random walk finds it in 34 % of games", "size=5", 290_000),
    "minatar": Experiment(
        "MinAtar of gymnax 1.0.1, one policy, the recipe",
        frames=5_000_000,
        seeds=3,
        options=(),
        arms={name: ("--env", f"gymnax/{name}-MinAtar") for name in ("Breakout", "Freeway")},
    ),
    "minatar_package": Experiment(
        "MinAtar 1.0.15, its own package, one policy, the recipe",
        frames=1_000_000,
        seeds=2,
        options=(),
        arms={name: ("--env", f"minatar/{name}-v1") for name in ("Breakout", "Asterix")},
    ),
    "crafter": Experiment(
        "Crafter 1.8.3, one policy, the recipe",
        frames=100_000,
        seeds=2,
        options=("--env", "crafter"),
        arms={
            "recipe": (),
            "values of Atari": (
                *("--learner.epochs", "4", "--learner.minibatches", "4", "--learner.returns", "gae"),
                *("--learner.normalize-images", "--learner.lr-schedule", "linear"),
                *("--hypers.learning-rate", "5e-4"),
            ),
        },
    ),
    "doorkey": Experiment(
        "MiniGrid-DoorKey-5x5-v0 of MiniGrid 3.2.0, one policy, the recipe",
        frames=150_000,
        seeds=2,
        options=(),
        arms={"doorkey": ("--env", "minigrid/MiniGrid-DoorKey-5x5-v0")},
    ),
    # A third as frequent; chosen before any run of it, since both arms reach 1.00 on the other.
    "unreal_sparse": _treasure(
        "11 x 11 cells, a random walk finds it in 10 % of games", "size=11&length=24", 400_000
    ),
}
