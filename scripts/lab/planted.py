"""Experiments with a known answer: what `prove` says where PBT cannot help, and where it must.

    python scripts/lab/planted.py        # 20 experiments of 5 seeds each, both tasks

- *nothing*: all members make the same progress whatever their value is; objectives differ by noise alone.
- *moving*: the best value moves through two decades during training. A constant value is right for a part of it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from random import Random

from pbt_rl.controllers import Gap, HyperSpec, PbtController, PerturbFactors, Synchronous, Truncation
from pbt_rl.experiments.prove.members import prove_members
from pbt_rl.experiments.prove.statistics import Verdict

STEPS, PERIOD, MEMBERS, SEEDS, EXPERIMENTS = 120, 6, 8, 5, 20
TABLE = {"rate": HyperSpec("rate", 0.1, 0.001, 1.0, "log", tuned=True)}


class Planted:
    """progress: what counts. matters: whether the value has a part in it. The state is (steps, progress)."""

    def __init__(self, name: str, *, matters: bool) -> None:
        self._matters = matters
        self._rng, self._test = Random(f"{name}.evaluate"), Random(f"{name}.test")
        self._steps, self._progress = 0, 0.0

    def step(self, hypers: Mapping[str, float]) -> None:
        """Progress by 1, or by less the farther the value is from the best one of this step."""
        best = 0.01 * 100 ** (self._steps / STEPS)
        far = abs(math.log(hypers["rate"] / best))
        self._progress += math.exp(-far) if self._matters else 1
        self._steps += 1

    def evaluate(self) -> float:
        """Return the progress with noise."""
        return self._progress + self._rng.gauss(0, 1)

    def test(self) -> float:
        """Return it with noise of its own."""
        return self._progress + self._test.gauss(0, 1)

    def state(self) -> tuple[int, float]:
        """Return the state."""
        return self._steps, self._progress

    def load(self, state: tuple[int, float]) -> None:
        """Take over a state."""
        self._steps, self._progress = state


def pbt(seed: int) -> PbtController:
    """Return PBT as Jaderberg et al. (2017) have it."""
    return PbtController(
        TABLE,
        seed,
        ready=Synchronous(PERIOD, PERIOD, 1),
        exploit=Truncation(0.25, Gap(0, 0), others_mutate=False),
        explore=PerturbFactors(TABLE, (2, 0.5)),
    )


def verdicts(*, matters: bool, experiments: int = EXPERIMENTS) -> Counter[Verdict]:
    """Return how often each verdict is given."""
    found: Counter[Verdict] = Counter()
    for number in range(experiments):

        def make(seed: int, index: int) -> Planted:
            return Planted(f"{seed}.{index}", matters=matters)

        outcome = prove_members(
            make,
            TABLE,
            {"pbt": pbt},
            score=Planted.test,
            steps=STEPS,
            num_members=MEMBERS,
            seeds=range(SEEDS * number, SEEDS * (number + 1)),
        )
        found[outcome.comparisons["pbt"].verdict] += 1
    return found


def main() -> None:
    """Print the verdicts of both tasks."""
    for name, matters in (("nothing", False), ("moving", True)):
        counts = ", ".join(f"{verdict} {n}" for verdict, n in verdicts(matters=matters).items())
        print(f"{name}: {counts} of {EXPERIMENTS}")


if __name__ == "__main__":
    main()
