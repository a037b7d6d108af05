"""Tables of docs/lab/results.md and README.md, generated from the rows in docs/lab/results.

python scripts/lab/tables.py            # rewrite the tables in the pages
python scripts/lab/tables.py --check    # exit with 1 if a page differs from the rows
"""

from __future__ import annotations

import json
import math
import re
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import NormalDist, fmean, median
from typing import Any

from evidence import read_rows
from scipy.stats import ttest_1samp

from pbt_rl.config import Config
from pbt_rl.experiments.prove.arms import BASELINE
from pbt_rl.experiments.prove.outcome import interval_by_t
from pbt_rl.options.values import number

ROOT = Path(__file__).resolve().parents[2]
ROWS = ROOT / "docs" / "lab" / "results"
PAGE = ROOT / "docs" / "lab" / "results.md"
README = ROOT / "README.md"
PARTNERS = 6
"""Number of compared members in `figure5.csv`: all members of PBT, and the first members of random search."""
NOT_RL = ("figure5 digits", "figure5 ring", "characters text")
"""Keys of TITLES for tasks without reinforcement learning."""

Members = Sequence[tuple[float, float]]
"""(validation score, test score) of each member of a run."""
Scores = Mapping[str, Mapping[int, Members]]
"""Arm -> seed -> members."""
TITLES = {
    "cartpole": "CartPole, at most 500",
    "pendulum": "Pendulum, return",
    "courier_weights": "courier: reward weights",
    "courier": "courier: reward weights, learning rate, entropy",
    "tensors_pendulum": "`tensors/pendulum`: reward weights, learning rate, entropy, gamma",
    "atari": "Breakout, 100,000 frames per member",
    "minatar_breakout": "MinAtar's Breakout, 1,000,000 frames per member",
    "minatar_breakout_narrow": "MinAtar's Breakout, narrow priors",
    "unroll": "memory task, at most 1",
    "figure5 digits": "digits, accuracy",
    "figure5 ring": "GAN of eight Gaussians, coverage",
    "characters text": "small transformer, negative bits per character",
}
"""Name of a file of rows (followed by a task if the file has several tasks) -> title of the task."""


def main() -> int:
    """Rewrite the tables. With --check, compare the tables with the rows. Return the exit code."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    differs = False
    for page, made in ((PAGE, results_page), (README, readme)):
        text = page.read_text(encoding="utf-8")
        new = made(text)
        differs |= new != text
        if not check:
            page.write_text(new, encoding="utf-8")
    return int(check and differs)


def results_page(text: str) -> str:
    """Return docs/lab/results.md with new tables."""
    tables = {
        "speed": speed,
        "as typed": as_typed,
        "ten minutes": ten_minutes,
        "does PBT help": does_pbt_help,
    }
    for title, lines in ((title, made()) for title, made in tables.items()):
        text = with_table(text, title, lines)
    return text


def with_table(text: str, title: str, lines: Sequence[str]) -> str:
    """Return a page with one new table. Raises ValueError if the page has no table with this title."""
    made = "\n".join(["", *lines, "", ""])
    block = re.compile(rf"(?<=<!-- table: {title} -->\n).*?(?=<!-- end -->)", re.DOTALL)
    text, times = block.subn(lambda _: made, text)
    if times != 1:
        raise ValueError(f"{times} tables of the title {title!r}")
    return text


def grid(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a table as lines of Markdown."""
    return [f"| {' | '.join(row)} |" for row in (heads, ["---"] * len(heads), *rows)]


def short(number: float, sign: str = "") -> str:
    """Format a number with three significant digits, from 1,000 on without decimals. sign: "+" to mark positives."""
    return f"{number:{sign},.0f}" if abs(number) >= 1000 else f"{number:{sign}.3g}"


def half_by_t(gains: Sequence[float]) -> float:
    """Return half the width of the 95 % interval of the mean by Student's t."""
    return fmean(gains) - interval_by_t(gains).low


def gained(gains: Sequence[float]) -> str:
    """Format the mean of paired differences, and half the width of its 95 % interval by Student's t."""
    return f"{short(fmean(gains), '+')} +- {short(half_by_t(gains))}" if len(gains) > 1 else "-"


def better(gains: Sequence[float]) -> str:
    """Return the number of seeds with a positive difference, as text."""
    return f"{sum(gain > 0 for gain in gains)} of {len(gains)}"


def picked(members: Members) -> float:
    """Return the test score of the member with the best validation score. Ties go to the first member."""
    return max(members, key=lambda scores: scores[0])[1]


def mean_test(members: Members) -> float:
    """Return the mean test score of all members."""
    return fmean(test for _, test in members)


# -- speed --------------------------------------------------------------------------------------------------

PEERS = {
    "sample_factory": "Sample Factory 2.1.1, its own Atari environments",
    "envpool": "Sample Factory over EnvPool",
}


def rounds_of(policies: str) -> list[dict[str, float]]:
    """Return the frames/s of each program in each round of `python scripts/bench.py --peer`."""
    measured: dict[str, Any] = json.loads((ROWS / "speed.json").read_text(encoding="utf-8"))
    rounds: list[dict[str, float]] = measured["peers"][policies]
    return rounds


def rate(policies: str, program: str = "pbt_rl") -> str:
    """Return a program's frames/s, as the median over the rounds, as text."""
    return f"{median(one[program] for one in rounds_of(policies)):,.0f}"


def times(policies: str, peer: str) -> str:
    """Return (frames/s of pbt_rl) / (frames/s of the peer), as the median over the rounds, as text."""
    return f"{median(one['pbt_rl'] / one[peer] for one in rounds_of(policies)):.1f}"


def speed() -> list[str]:
    """Return the table with the frames/s of pbt_rl and of the peers on one job."""
    rows = [("pbt_rl", *(f"**{rate(policies)}**" for policies in "14"))]
    rows.append(
        ("pbt_rl with default options (16 optimiser steps per batch)", *(rate(n, "as_typed") for n in "14"))
    )
    for peer, title in PEERS.items():
        rows.append((title, *(f"{rate(n, peer)} (ours: {times(n, peer)} times as fast)" for n in "14")))
    return grid(("frames/s", "1 policy", "4 policies, PBT on"), rows)


def readme(text: str) -> str:
    """Return README.md with new figures."""
    seconds = 4 * Config.train_for_frames / median(one["as_typed"] for one in rounds_of("4"))
    lines = {
        r"takes about \d+ hours": f"takes about {seconds / 3600:.0f} hours",
        r"comes after \d+ minutes": f"comes after {seconds / 20 / 60:.0f} minutes",
        r"(sixteen optimiser steps per batch\) make )[\d,]+": rf"\g<1>{rate('4', 'as_typed')}",
        r"(\| Pong, 1 policy, frames/s \|).*": rf"\1 {_beside('1')}",
        r"(\| Pong, 4 policies with PBT, frames/s in all \|).*": rf"\1 {_beside('4')}",
        r"(\| Breakout and Pong, 1 policy with default options, after 10 minutes \|).*": (
            rf"\1 {_after_ten_minutes('breakout', 'pong')}"
        ),
    }
    counts = set[int]()
    for game in ("HalfCheetah", "Hopper", "Walker2d"):
        one = [
            float(row["drawn"])
            for row in read_rows(ROWS / "single.csv")
            if (row["stage"], row["task"], row["cell"]) == ("confirm", f"{game}-v5", "abc")
        ]
        lines[rf"(\| {game}-v5 \|) [\d,]+"] = rf"\1 {fmean(one):,.0f}"
        counts.add(len(one))
    (seeds,) = counts
    lines[r"means of \d+ seeds"] = f"means of {seeds} seeds"
    for old, new in lines.items():
        text, times = re.subn(old, new, text)
        if times != 1:
            raise ValueError(f"README.md has {times} texts like {old!r}")
    return text


def _beside(policies: str) -> str:
    peers = [rate(policies, peer) for peer in PEERS]
    return f"**{rate(policies)}** | {peers[0]}; with EnvPool {peers[1]} |"


def _after_ten_minutes(*games: str) -> str:
    rows = read_rows(ROWS / "ten_minutes.csv")
    cells = []
    for program in ("pbt_rl", "sample_factory"):
        runs = [
            [r["mean"] for r in rows if (r["env"], r["program"]) == (f"atari/{g}", program)] for g in games
        ]
        cells.append(" and ".join(f"{fmean(map(float, means)):.3g}" for means in runs))
    return f"**{cells[0]} points** | {cells[1]} points |"


# -- as typed -----------------------------------------------------------------------------------------------

PUBLISHED = {
    "gym/HalfCheetah-v5": "1,443 +- 46",
    "gym/Hopper-v5": "2,383 +- 272",
    "gym/Walker2d-v5": "2,288 +- 572",
    "gym/InvertedPendulum-v5": "963 +- 22",
    "gym/Humanoid-v5": "716 +- 49",
    "gym/Pusher-v5": "-40 +- 7",
    "gym/Ant-v5": "1,327 (SB3's defaults, normalised)",
    "gym/Swimmer-v5": "282 (SB3's defaults, gamma 0.9999)",
    "gym/LunarLander-v3": "242 (tuned)",
    "gym/Acrobot-v1": "-74 (tuned, 1M frames)",
    "gym/MountainCar-v0": "-110 (tuned, 1M frames)",
    "gym/BipedalWalker-v3": "213 (tuned)",
    "gym/CartPole-v1": "500 (tuned)",
    "gym/Pendulum-v1": "-172 (tuned)",
    "atari/breakout": "11 after 1M (PPO2)",
}
"""Environment -> published score of PPO. The first six scores are from CleanRL
(docs/benchmark/ppo_continuous_action.md), the last is from Baselines, and the others are from benchmark.md of RL
Baselines3 Zoo (one run each, deterministic policy)."""


BEFORE_SMALL_STEPS = "30c62a65"
"""Last commit before the present recipe of continuous actions."""
TRIALS = 10
"""Lowest seed that was used to choose recipes. The tables exclude this seed and all higher seeds."""


def as_typed() -> list[str]:
    """Return one line per environment: scores of one policy with default options, for its longest budget.

    The column `recipe` of as_typed.csv contains `now` for the present recipe, a commit for the recipe up to this
    commit, or `before` for older recipes, which are left out. If the present recipe has no row, the line names the
    commit.
    """
    found: dict[tuple[str, str, str], dict[int, float]] = defaultdict(dict)
    for row in read_rows(ROWS / "as_typed.csv"):
        shown = row["recipe"] != "before" and int(row["seed"]) < TRIALS
        if shown and (row["options"], row["policies"]) == ("as typed", "1"):
            found[row["env"], row["frames"], row["recipe"]][int(row["seed"])] = float(row["mean"])
    rows = []
    for env, published in PUBLISHED.items():
        longest = max((frames for name, frames, _ in found if name == env), key=number, default="")
        recipes = [r for name, frames, r in found if (name, frames) == (env, longest)]
        if recipes:
            recipe = min(recipes, key=lambda name: (name != "now", name != BEFORE_SMALL_STEPS))
            title = f"{env.partition('/')[2]}, {longest}" + ("" if recipe == "now" else f", at {recipe}")
            rows.append((title, _scores(found[env, longest, recipe]), published))
    return grid(("environment, frames", "one policy", "published PPO"), rows)


def ten_minutes() -> list[str]:
    """Return the scores of both programs after ten minutes of training with default options."""
    titles = {"pbt_rl": "pbt_rl", "sample_factory": "Sample Factory 2.1.1"}
    rows = [
        (
            row["env"].partition("/")[2],
            titles[row["program"]],
            f"{int(row['frames']):,}",
            f"{int(row['frames']) / float(row['seconds']):,.0f}",
            f"**{row['mean']}** (sd {row['sd']}, {row['min']} to {row['max']})",
        )
        for row in read_rows(ROWS / "ten_minutes.csv")
    ]
    return grid(("game", "program", "frames", "frames/s", "20 evaluation episodes"), rows)


def _scores(of_seeds: Mapping[int, float]) -> str:
    """Format the mean over the seeds, followed by the score of each seed."""
    mean = f"{fmean(of_seeds.values()):,.4g}" if len(of_seeds) > 1 else ""
    each = ", ".join(f"{score:,.4g}" for _, score in sorted(of_seeds.items()))
    return f"**{mean}** ({each})" if mean else each


# -- does PBT help ------------------------------------------------------------------------------------------


def read_scores(name: str) -> Scores:
    """Read the scores for a key of TITLES. If a member has several rows, the last row counts."""
    file, _, task = name.partition(" ")
    found: dict[str, dict[int, dict[int, tuple[float, float]]]] = defaultdict(lambda: defaultdict(dict))
    for row in read_rows(ROWS / f"{file}.csv"):
        if not task or row["task"] == task:
            scores = float(row["validation"]), float(row["test"])
            found[row["arm"]][int(row["seed"])][int(row["member"])] = scores
    return {arm: {seed: list(of.values()) for seed, of in runs.items()} for arm, runs in found.items()}


def does_pbt_help() -> list[str]:
    """Return one line per task: PBT against random search, for the selected members and for the mean of all members."""
    rows = []
    for name, title in TITLES.items():
        scores = read_scores(name)
        arms = [scores["pbt"], scores[BASELINE]]
        if name.startswith("figure5"):
            arms[1] = {seed: members[:PARTNERS] for seed, members in arms[1].items()}
        seeds = sorted(arms[0].keys() & arms[1].keys())
        both = (picked, mean_test)
        best, means = ([[score(arm[seed]) for seed in seeds] for arm in arms] for score in both)
        gains, others = ([a - b for a, b in zip(*of, strict=True)] for of in (best, means))
        two = (f"{fmean(of):.4g}" for of in best)
        p = p_by_t(gains)
        cells = (
            title,
            *two,
            gained(gains),
            better(gains),
            f"{two_sided(p):.2g}",
            gained(others),
        )
        rows.append((p, name, cells))
    rows.sort(key=lambda row: row[0])
    heads = ("task", "PBT", "random search", "difference, 95 % by t", "seeds ahead", "p")
    table = grid((*heads, "all members, difference"), [cells for _, _, cells in rows])
    every = [p for p, _, _ in rows]
    agents = [p for p, name, _ in rows if name not in NOT_RL]
    pooled = (
        f"The combined z (Stouffer) is {stouffer(every):.1f} over all {len(every)} tasks and "
        f"{stouffer(agents):.1f} over the {len(agents)} of reinforcement learning. "
        f"The smallest p after Holm's correction is {holm(every):.2g}."
    )
    return [*table, "", pooled]


def p_by_t(gains: Sequence[float]) -> float:
    """Return the one-sided p-value of a paired t-test for a positive mean."""
    return float(ttest_1samp(gains, 0, alternative="greater").pvalue)


def two_sided(p: float) -> float:
    """Convert a one-sided p to a two-sided p."""
    return 2 * min(p, 1 - p)


def stouffer(one_sided: Sequence[float]) -> float:
    """Pool the one-sided p of independent tests into one z (Stouffer's method)."""
    return -sum(NormalDist().inv_cdf(p) for p in one_sided) / math.sqrt(len(one_sided))


def holm(one_sided: Sequence[float]) -> float:
    """Return the smallest two-sided p after Holm's correction."""
    return min(1.0, min(map(two_sided, one_sided)) * len(one_sided))


if __name__ == "__main__":
    sys.exit(main())
