"""How often 95 % intervals of a paired difference hold the true one, for few seeds: the table of docs/proving.md.

python scripts/lab/interval_coverage.py        # 1,000 simulated experiments per cell, a few seconds
"""

from __future__ import annotations

from pbt_rl.prove.statistics import SHAPES, coverage

SEEDS = (4, 6, 8, 10, 12)
EXPERIMENTS = 1000


def main() -> None:
    """Print the table as Markdown."""
    print(f"| differences | interval | {' | '.join(f'{n} seeds' for n in SEEDS)} |")
    print(f"| --- | --- |{' --- |' * len(SEEDS)}")
    for name, draw in SHAPES.items():
        found = [coverage(draw, seeds, EXPERIMENTS) for seeds in SEEDS]
        for which, interval in enumerate(("t", "bootstrap")):
            print(f"| {name} | {interval} | {' | '.join(f'{100 * one[which]:.1f} %' for one in found)} |")


if __name__ == "__main__":
    main()
