"""The triangle learning rate (Ray Tune's benchmark of adaptive rates): the best rate changes during training.

    python scripts/lab/papers/triangle.py

Accuracy grows fastest at the optimal learning rate, which depends on the accuracy itself: it rises from 0.001 to
0.01 at accuracy 100 and falls to 0.001 again at 200, the goal. A rate more than three times too low gains
nothing, one more than three times too high loses. No constant rate serves both ends; PBT follows the triangle.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from random import Random

from pbt_rl.controllers import (
    Gap,
    HyperSpec,
    PbtController,
    PerturbFactors,
    RandomSearch,
    Synchronous,
    Truncation,
)
from pbt_rl.tune import Result, run

PEAK, GOAL = 100.0, 200.0
HIGHEST, LOWEST = 0.01, 0.001
TOLERANCE = 3.0
NOISE = 0.5
STEPS, PERIOD, MEMBERS = 1000, 20, 8

TABLE = {"learning_rate": HyperSpec("learning_rate", 0.001, 0.0001, 0.02, "linear", tuned=True)}


def optimal_rate(accuracy: float) -> float:
    """Returns the best rate at an accuracy: the triangle."""
    height = 1 - abs(accuracy - PEAK) / PEAK
    return min(HIGHEST, max(LOWEST, HIGHEST * height))


class Triangle:
    """A number, called accuracy."""

    def __init__(self, seed: int, index: int) -> None:
        self.rng = Random(f"{seed}.{index}")
        self.accuracy = 0.0

    def step(self, hypers: Mapping[str, float]) -> None:
        """Gain or lose, by how far the rate is from the optimal one; and a little noise."""
        rate, best = hypers["learning_rate"], optimal_rate(self.accuracy)
        error = max(rate, best) / min(rate, best)
        if error < TOLERANCE:
            self.accuracy += self.rng.random() / error
        elif rate > best:
            self.accuracy -= (error - TOLERANCE) * self.rng.random()
        self.accuracy = min(GOAL, max(0.0, self.accuracy + NOISE * self.rng.gauss(0, 1)))

    def evaluate(self) -> float:
        """Returns the accuracy."""
        return self.accuracy

    def state(self) -> float:
        """Returns the accuracy; the noise stays the member's own."""
        return self.accuracy

    def load(self, state: float) -> None:
        """Take over an accuracy."""
        self.accuracy = state


def train(method: str, seed: int, *, steps: int = STEPS, members: int = MEMBERS) -> Result:
    """Train by `pbt` (Ray's defaults) or by `random` search: rates from the same prior, held constant."""
    controller = (
        RandomSearch(TABLE, seed, phase_frames=steps)
        if method == "random"
        else PbtController(
            TABLE,
            seed,
            ready=Synchronous(PERIOD, PERIOD, 1),
            exploit=Truncation(0.25, Gap(0, 0), others_mutate=False),
            explore=PerturbFactors(TABLE, (1.2, 0.8)),
        )
    )
    return run(partial(Triangle, seed), controller, steps=steps, num_members=members)


def best(result: Result) -> float:
    """Returns the accuracy of the best member."""
    return max(accuracy for accuracy in result.objectives if accuracy is not None)


def schedule(result: Result) -> list[tuple[float, float]]:
    """Returns (accuracy at the end, rate) of each stretch of constant rate behind the best member, below the goal."""
    assert result.best is not None
    line = [(result.lineage.objectives[n.key], n) for n in result.lineage.ancestry(result.best)]
    return [(accuracy, node.values["learning_rate"]) for accuracy, node in line if accuracy < GOAL]


def main() -> None:
    """Print ten seeds of each method, and one schedule that PBT found."""
    for method in ("random", "pbt"):
        accuracies = sorted(best(train(method, seed)) for seed in range(10))
        reached = sum(accuracy >= GOAL for accuracy in accuracies)
        print(
            f"{method:6}  best accuracy {accuracies[0]:.0f} to {accuracies[-1]:.0f}; "
            f"{reached} of 10 reach {GOAL:.0f}"
        )
    print("accuracy  rate    optimal")
    for accuracy, rate in schedule(train("pbt", 0)):
        print(f"{accuracy:8.0f}  {rate:.4f}  {optimal_rate(accuracy):.4f}")


if __name__ == "__main__":
    main()
