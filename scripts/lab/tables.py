"""The table of PBT beside random search in docs/lab/results.md: made from the rows in docs/lab/results.

python scripts/lab/tables.py            # writes it anew into the page
python scripts/lab/tables.py --check    # exit code 1 if the page says something else
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from evidence import read_rows

from pbt_rl.experiments.prove.arms import BASELINE
from pbt_rl.experiments.prove.outcome import interval_by_bootstrap, interval_by_t

ROOT = Path(__file__).resolve().parents[2]
ROWS = ROOT / "docs" / "lab" / "results"
PAGE = ROOT / "docs" / "lab" / "results.md"
BLOCK = re.compile(r"(?<=<!-- table: does PBT help -->\n).*?(?=<!-- end -->)", re.DOTALL)
HELPS = "**yes**"
PARTNERS = 6
"""Members of random search in `figure5.csv` that stand beside PBT's: the first ones."""

Members = Sequence[tuple[float, float]]
"""(validation, test) of each member of a run."""
Scores = Mapping[str, Mapping[int, Members]]
"""Arm -> seed -> members."""
TITLES = {
    "cartpole": "CartPole, at most 500",
    "pendulum": "Pendulum, return",
    "courier_weights": "a courier whose deliveries are sparse: weights of reward terms alone",
    "courier": "the courier: weights of reward terms, rate and entropy",
    "tensors_pendulum": "a pendulum of tensors: weights of reward terms, rate, entropy and gamma",
    "atari": "Breakout, 100,000 frames a member",
    "minatar_breakout": "MinAtar's Breakout in JAX, 1,000,000 frames a member",
    "minatar_breakout_narrow": "MinAtar's Breakout from narrow priors",
    "unroll": "a memory, at most 1",
    "figure5 digits": "digits, accuracy",
    "figure5 ring": "a GAN of eight Gaussians, coverage",
    "characters text": "a small transformer, - bits per character",
}
"""File of rows, with one of its tasks if it has several -> a task's name."""


def main() -> int:
    """Write the page, or say whether it differs from the rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    text = PAGE.read_text(encoding="utf-8")
    new = with_table(text, does_pbt_help())
    if not check:
        PAGE.write_text(new, encoding="utf-8")
    return int(check and new != text)


def with_table(text: str, lines: Sequence[str]) -> str:
    """Return a page with its table made anew."""
    made = "\n".join(["", *lines, "", ""])
    return BLOCK.sub(lambda _: made, text)


def grid(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a table as lines of Markdown."""
    return [f"| {' | '.join(row)} |" for row in (heads, ["---"] * len(heads), *rows)]


def short(number: float, sign: str = "") -> str:
    """Return a number with three digits, or whole from 1,000 on. sign: "+" shows that of positive ones too."""
    return f"{number:{sign},.0f}" if abs(number) >= 1000 else f"{number:{sign}.3g}"


def half_by_t(gains: Sequence[float]) -> float:
    """Return half of the 95 % interval of the mean by Student's t."""
    return fmean(gains) - interval_by_t(gains).low


def gained(gains: Sequence[float]) -> str:
    """Return the mean of paired differences with half of its 95 % interval by Student's t."""
    return f"{short(fmean(gains), '+')} +- {short(half_by_t(gains))}" if len(gains) > 1 else "-"


def better(gains: Sequence[float]) -> str:
    """Return in how many seeds the first is ahead."""
    return f"{sum(gain > 0 for gain in gains)} of {len(gains)}"


def picked(members: Members) -> float:
    """Return the test score of the member with the best validation score; of equals the first, not the better one."""
    return max(members, key=lambda scores: scores[0])[1]


def mean_test(members: Members) -> float:
    """Return the mean test score of all members."""
    return fmean(test for _, test in members)


def read_scores(name: str) -> Scores:
    """Read the rows of a key of TITLES. A member that stands twice, as two processes made it, counts once."""
    file, _, task = name.partition(" ")
    found: dict[str, dict[int, dict[int, tuple[float, float]]]] = defaultdict(lambda: defaultdict(dict))
    for row in read_rows(ROWS / f"{file}.csv"):
        if not task or row["task"] == task:
            scores = float(row["validation"]), float(row["test"])
            found[row["arm"]][int(row["seed"])][int(row["member"])] = scores
    return {arm: {seed: list(of.values()) for seed, of in runs.items()} for arm, runs in found.items()}


def does_pbt_help() -> list[str]:
    """Return one line per task: PBT beside random search, the picked members and the means of all saved ones."""
    rows = []
    for name, title in TITLES.items():
        scores = read_scores(name)
        arms = [scores["pbt"], scores[BASELINE]]
        if name.startswith("figure5"):
            arms[1] = {seed: members[:PARTNERS] for seed, members in arms[1].items()}
        seeds = sorted(arms[0].keys() & arms[1].keys())
        best, means = (
            [[score(arm[seed]) for seed in seeds] for arm in arms] for score in (picked, mean_test)
        )
        gains, others = ([a - b for a, b in zip(*both, strict=True)] for both in (best, means))
        surely = min(fmean(gains) - half_by_t(gains), interval_by_bootstrap(gains).low) > 0
        helps = HELPS if surely else "not shown"
        two = (f"{fmean(of):.4g}" for of in best)
        rows.append((title, *two, gained(gains), better(gains), helps, gained(others)))
    heads = ("task", "PBT", "random search", "difference, 95 % by t", "better", "helps?")
    return grid((*heads, "all members, difference"), sorted(rows, key=lambda row: row[5] != HELPS))


if __name__ == "__main__":
    sys.exit(main())
