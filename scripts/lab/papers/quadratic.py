"""Figure 2 of Jaderberg et al. (2017): two members, a quadratic, and a surrogate that misleads all but PBT.

    python scripts/lab/papers/quadratic.py

The objective is Q = 1.2 - (theta_0^2 + theta_1^2), but only Q^ = 1.2 - (h_0 theta_0^2 + h_1 theta_1^2) may be
differentiated. With h = (1, 0) and (0, 1), constant, each member improves one half and ends below 0.4. With PBT the
worse member copies the other's weights every four steps, keeps its own h and explores around it: nearly the optimum,
1.2. Exploration is a normal step of deviation 0.1, and h stays at 0 or above; the paper leaves both open.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from statistics import median

from pbt_rl.controllers import HyperSpec, MemberReport, PbtController, Selection, Synchronous, Values
from pbt_rl.controllers.decisions import CopyWhat
from pbt_rl.controllers.exploit import rank, score
from pbt_rl.tune import Result, run

STEPS, EXCHANGE_STEPS, SIGMA = 200, 4, 0.1
TABLE = {
    "h0": HyperSpec("h0", 1.0, 0.0, 1e9, "linear", tuned=True),
    "h1": HyperSpec("h1", 0.0, 0.0, 1e9, "linear", tuned=True),
}


class Quadratic:
    """theta, moved by gradient ascent on the surrogate."""

    def __init__(self, learning_rate: float) -> None:
        self.theta = (0.9, 0.9)
        self.learning_rate = learning_rate

    def step(self, hypers: Mapping[str, float]) -> None:
        """Take one step of gradient ascent."""
        a, b = self.theta
        rate = 2 * self.learning_rate
        self.theta = (a - rate * hypers["h0"] * a, b - rate * hypers["h1"] * b)

    def evaluate(self) -> float:
        """Returns Q."""
        a, b = self.theta
        return 1.2 - (a * a + b * b)

    def state(self) -> tuple[float, float]:
        """Returns theta."""
        return self.theta

    def load(self, state: tuple[float, float]) -> None:
        """Take over theta."""
        self.theta = state


@dataclass(frozen=True)
class Better:
    """Let the worse of two copy the better one; of equals one is drawn, for else nothing would ever begin.

    copy: the part of the better one that is copied; None exchanges nothing, and both explore.
    """

    copy: CopyWhat | None
    explore: bool

    def select(
        self,
        members: Sequence[MemberReport],
        rng: Random,
        deciding: Collection[int] | None = None,  # noqa: ARG002 - all are compared at once
    ) -> list[Selection]:
        """Returns one selection per member: see `pbt_rl.controllers.Exploit`."""
        if self.copy is None:
            return [Selection(m.member, None, self.explore, "explores") for m in members]
        best, worst = rank({m.member: score(m) for m in members}, rng)
        return [
            Selection(m.member, best, self.explore, "is worse", copy=self.copy)
            if m.member == worst
            else Selection(m.member, None, mutate=False, reason="is better")
            for m in members
        ]


class NormalStep:
    """Explore by a normal step, at least to 0. The second member starts with (0, 1)."""

    def initial(self, values: Values, rng: Random) -> Values:  # noqa: ARG002 - nothing is drawn
        """Returns the values of the second member."""
        return {"h0": values["h1"], "h1": values["h0"]}

    def mutate(self, values: Values, rng: Random) -> Values:
        """Returns both values, moved."""
        return {name: max(0.0, value + rng.gauss(0, SIGMA)) for name, value in values.items()}


VARIANTS = {
    "grid search": Better(None, explore=False),
    "explore only": Better(None, explore=True),
    "exploit only": Better("weights", explore=False),
    "PBT": Better("weights", explore=True),
    "exploit that copies h too": Better("both", explore=False),
}


def train(variant: str, learning_rate: float, seed: int) -> Result:
    """Train two members."""
    controller = PbtController(
        TABLE,
        seed,
        ready=Synchronous(EXCHANGE_STEPS, 0, 1),
        exploit=VARIANTS[variant],
        explore=NormalStep(),
    )
    members = [Quadratic(learning_rate) for _ in range(2)]
    return run(members, controller, steps=STEPS, evaluate_every=EXCHANGE_STEPS)


def best_score(variant: str, learning_rate: float, seed: int) -> float:
    """Returns Q of the better member at the end."""
    return max(q for q in train(variant, learning_rate, seed).objectives if q is not None)


def main(seeds: int = 30) -> None:
    """Print medians over seeds."""
    for variant in VARIANTS:
        scores = [median(best_score(variant, rate, s) for s in range(seeds)) for rate in (0.01, 0.02)]
        print(f"{variant:26} Q = {scores[0]:.4f} (rate 0.01)  {scores[1]:.4f} (rate 0.02)")


if __name__ == "__main__":
    main()
