"""The sections of `reproduce.py` that train toys: the quadratic, the triangle learning rate, the deceptive toy."""

from __future__ import annotations

from statistics import median

from papers import deceptive, quadratic, triangle
from reproduce_table import Row, holds, measured, near

from pbt_rl.controllers import StaticController

SEEDS = 30


def alone(rate: float) -> float:
    """Return the best Q of a member whose h = (1, 0) never changes: theta_0 shrinks at every step, theta_1 stays."""
    return 1.2 - 0.9**2 * ((1 - 2 * rate) ** (2 * quadratic.STEPS) + 1)


def in_turns(rate: float) -> float:
    """Return the best Q if weights alone are exchanged: the members shrink theta_0 and theta_1 in turns."""
    return 1.2 - 2 * 0.9**2 * (1 - 2 * rate) ** quadratic.STEPS


def t1() -> list[Row]:
    """Median of the better member's Q beside the closed forms, which the variants without chance must meet."""
    rows = []
    for rate in (0.01, 0.02):
        found = {
            variant: median(quadratic.best_score(variant, rate, seed) for seed in range(SEEDS))
            for variant in quadratic.VARIANTS
        }
        formulas = {
            "grid search": alone(rate),
            "exploit that copies h too": alone(rate),
            "exploit only": in_turns(rate),
        }
        rows += [
            near(f"{variant}, learning rate {rate}", q, found[variant], 0.00006)
            for variant, q in formulas.items()
        ]
        rows += [
            holds(
                f"explore only, learning rate {rate}",
                f"above {alone(rate):.4f} (alone)",
                f"{found['explore only']:.4f}",
                passed=found["explore only"] > alone(rate),
            ),
            holds(
                f"PBT, learning rate {rate}",
                f"above {in_turns(rate):.4f} (exploit only)",
                f"{found['PBT']:.4f}",
                passed=found["PBT"] > in_turns(rate),
            ),
        ]
    return rows


def t3() -> list[Row]:
    """Show that PBT reaches 200 along the triangle and no constant rate does."""
    constant = [triangle.best(triangle.train("random", seed)) for seed in range(SEEDS)]
    results = [triangle.train("pbt", seed) for seed in range(SEEDS)]
    reached = sum(triangle.best(result) >= triangle.GOAL for result in results)
    lines = [triangle.schedule(result) for result in results]
    peaks = [max(line, key=lambda point: point[1]) for line in lines]
    first, top, last = (
        median(rates)
        for rates in ([x[0][1] for x in lines], [peak[1] for peak in peaks], [x[-1][1] for x in lines])
    )
    errors = [
        max(rate, best) / min(rate, best)
        for line in lines
        for accuracy, rate in line
        for best in [triangle.optimal_rate(accuracy)]
    ]
    followed = sum(error < triangle.TOLERANCE for error in errors) / len(errors)
    return [
        holds(
            "constant rates: best accuracy", "below 200", f"{max(constant):.0f}", passed=max(constant) < 200
        ),
        holds("PBT: runs that reach 200", f"most of {SEEDS}", f"{reached}", passed=reached > SEEDS / 2),
        holds(
            "PBT: first, highest, last rate of the best member's line (medians)",
            "0.001, 0.01, 0.001 (optimal): rises and falls",
            f"{first:.4f}, {top:.4f}, {last:.4f}",
            passed=top > 1.5 * max(first, last),
        ),
        measured(
            "PBT: accuracy at the highest rate (median)",
            f"{median(peak[0] for peak in peaks):.0f}",
            "100 is optimal",
        ),
        holds(
            "PBT: stretches of these lines within a factor of 3 of the optimal rate",
            "most",
            f"{100 * followed:.0f} %",
            passed=followed > 0.5,
        ),
    ]


def t4() -> list[Row]:
    """Show that a greedy PBT loses."""
    scores = {
        name: median(deceptive.best_score(controller(seed)) for seed in range(SEEDS))
        for name, controller in deceptive.METHODS.items()
    }
    random, greedy, patient, several = scores.values()
    ideal = deceptive.best_score(StaticController(deceptive.TABLE), deceptive.Ideal)
    return [
        measured("random search", f"{random:.3f}"),
        holds("greedy PBT, every 5 steps", "below random", f"{greedy:.3f}", passed=greedy < random),
        holds("patient PBT, every 50 steps", "above greedy", f"{patient:.3f}", passed=patient > greedy),
        holds("MF-PBT, every 5 to 50 steps", "above greedy", f"{several:.3f}", passed=several > greedy),
        measured("MF-PBT above random search by", f"{several - random:.3f}", "above 0 in its paper's tasks"),
        holds("h at the target all the time", "best", f"{ideal:.3f}", passed=ideal > max(scores.values())),
    ]
