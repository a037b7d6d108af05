"""A deceptive toy, on which a greedy PBT loses to random search.

    python scripts/lab/papers/deceptive.py

After section 5.2 of Chebykin et al., "To Be Greedy, or Not to Be". The objective is Q = 1.2 - theta^2, and theta
shrinks by a step of size max(2 - h - p, 0). A small h is best now; but the penalty p grows with every step's
distance between h and a target that falls slowly from 1 to 0. If the leader is copied often, all
members have h near 0 at once and soon stand still. Comparisons that are rarer, or of several frequencies, repair it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median

from pbt_rl.controllers import (
    Controller,
    Gap,
    HyperSpec,
    PbtController,
    PerturbFactors,
    RandomSearch,
    StaticController,
    Synchronous,
    Truncation,
)
from pbt_rl.controllers.mf_pbt import MfPbt
from pbt_rl.tune import run

STEPS, MEMBERS = 200, 16
RATE, PENALTY, STEPS_PER_TERM = 0.002, 0.2, 10
TABLE = {"h": HyperSpec("h", 1.0, 0.0, 1.0, "linear", tuned=True)}


class Deceptive:
    """theta, its age, and the distance between h and the target, summed so far."""

    def __init__(self, index: int) -> None:  # noqa: ARG002 - all members are alike
        self.theta, self.age, self.distance = 0.9, 0, 0.0

    @property
    def target(self) -> float:
        """Falls linearly from 1 to 0."""
        return 1 - self.age / STEPS

    def step(self, hypers: Mapping[str, float]) -> None:
        """Take a step towards 0. The penalty is 0.2 for a distance of 1 during ten steps."""
        h = hypers["h"]
        self.distance += abs(h - self.target) / STEPS_PER_TERM
        self.theta *= 1 - 2 * RATE * max(2 - h - PENALTY * self.distance, 0)
        self.age += 1

    def evaluate(self) -> float:
        """Returns Q."""
        return 1.2 - self.theta**2

    def state(self) -> tuple[float, int, float]:
        """Returns all of it: the past goes with the weights."""
        return self.theta, self.age, self.distance

    def load(self, state: tuple[float, int, float]) -> None:
        """Take it over."""
        self.theta, self.age, self.distance = state


class Ideal(Deceptive):
    """Follows the target, whatever its hypers are."""

    def step(self, hypers: Mapping[str, float]) -> None:
        """Take the step with h at the target."""
        super().step({**hypers, "h": self.target})


def pbt(seed: int, period: int) -> Controller:
    """Returns PBT with truncation of a quarter and factors 1.2 or 0.8, every `period` steps."""
    return PbtController(
        TABLE,
        seed,
        ready=Synchronous(period, period, 1),
        exploit=Truncation(0.25, Gap(0, 0), others_mutate=False),
        explore=PerturbFactors(TABLE, (1.2, 0.8)),
    )


def mf_pbt(seed: int) -> Controller:
    """Returns MF-PBT with four groups of four, compared every 5, 10, 25 and 50 steps."""
    return MfPbt(
        TABLE,
        seed,
        ready=Synchronous(5, 5, 1),
        exploit=Truncation(0.25, Gap(0, 0), others_mutate=False),
        explore=PerturbFactors(TABLE, (1.2, 0.8)),
        frequencies=(1, 2, 5, 10),
    )


METHODS: dict[str, Callable[[int], Controller]] = {
    "random search": lambda seed: RandomSearch(TABLE, seed, phase_frames=STEPS),
    "greedy PBT, every 5 steps": lambda seed: pbt(seed, 5),
    "patient PBT, every 50 steps": lambda seed: pbt(seed, 50),
    "MF-PBT, every 5 to 50 steps": mf_pbt,
}


def best_score(controller: Controller, kind: type[Deceptive] = Deceptive) -> float:
    """Returns Q of the best member at the end."""
    result = run(kind, controller, steps=STEPS, num_members=MEMBERS, evaluate_every=5)
    return max(q for q in result.objectives if q is not None)


def main(seeds: int = 30) -> None:
    """Print medians over seeds."""
    for name, controller in METHODS.items():
        print(f"{name:28} Q = {median(best_score(controller(seed)) for seed in range(seeds)):.3f}")
    print(f"{'h at the target all the time':28} Q = {best_score(StaticController(TABLE), Ideal):.3f}")


if __name__ == "__main__":
    main()
