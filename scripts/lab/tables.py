"""The tables of docs/lab/results.md and docs/lab: made from the rows in docs/lab/results.

    python scripts/lab/tables.py            # writes them anew into the pages
    python scripts/lab/tables.py --check    # names the pages that differ; exit code 1

A table stands in a page between `<!-- table: NAME -->` and `<!-- end -->`; NAME is a key of TABLES.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, stdev

import games
import reproduce_characters
import reproduce_figure5
from evidence import PROTOCOLS
from games_list import GAMES, SAMPLE_FACTORY
from judged_arms import Measure, Protocol, pairs
from judged_populations import mean_of_members
from judged_populations import picked as picked_of_arm
from reproduce_agents import read_curves
from reproduce_searches import METHODS, NUMBERS
from reproduce_searches import read_runs as read_searches
from results_rows import read_rows
from statistics_of_seeds import bootstrap, half_by_t, iqm, paired

from pbt_rl.experiments.prove.arms import BASELINE

ROOT = Path(__file__).resolve().parents[2]
ROWS = ROOT / "docs" / "lab" / "results"
LAB = ("agents", "environments", "evidence", "games", "papers")
PAGES = ("docs/lab/results.md", *(f"docs/lab/{name}.md" for name in LAB))
BLOCK = re.compile(r"(?<=<!-- table: )([\w ]+) -->\n.*?(?=<!-- end -->)", re.DOTALL)


def main() -> int:
    """Write the pages, or name those that differ from their rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    made: dict[str, str] = {}
    differing = []
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        new = with_tables(text, made)
        if new != text:
            differing.append(page)
            if not check:
                (ROOT / page).write_text(new, encoding="utf-8")
    print("\n".join(f"{page} {'differs from its rows' if check else 'is written'}" for page in differing))
    return int(check and bool(differing))


def with_tables(text: str, made: dict[str, str]) -> str:
    """Return a page with its tables made anew. made: name -> table, of those that another page has had made."""

    def table(block: re.Match[str]) -> str:
        name = block[1]
        if name not in made:
            made[name] = "\n".join(TABLES[name]())
        return f"{name} -->\n\n{made[name]}\n\n"

    return BLOCK.sub(table, text)


def grid(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a table as lines of Markdown."""
    return [f"| {' | '.join(row)} |" for row in (heads, ["---"] * len(heads), *rows)]


def short(number: float, sign: str = "") -> str:
    """Return a number with three digits, or whole from 1,000 on. sign: "+" shows that of positive ones too."""
    return f"{number:{sign},.0f}" if abs(number) >= 1000 else f"{number:{sign}.3g}"


def gained(gains: Sequence[float]) -> str:
    """Return the mean of paired differences with half of its 95 % interval by Student's t."""
    return f"{short(fmean(gains), '+')} +- {short(half_by_t(gains))}" if len(gains) > 1 else "-"


def better(gains: Sequence[float]) -> str:
    """Return in how many seeds the first is ahead."""
    return f"{sum(gain > 0 for gain in gains)} of {len(gains)}"


# -- games beside Sample Factory ------------------------------------------------------------------------------


def games_scores() -> list[str]:
    """Return every run's last score, and the means."""
    return games.table(games.read_runs(games.RESULTS)).splitlines()


def games_differences() -> list[str]:
    """Return what our defaults are ahead by, paired by seed."""
    runs = games.read_runs(games.RESULTS)
    rows = []
    for name, game in GAMES.items():
        ours, theirs = runs[name]["ours"], runs[name][SAMPLE_FACTORY]
        seeds = sorted(ours.keys() & theirs.keys())
        last = [ours[seed][-1].score - theirs[seed][-1].score for seed in seeds]
        over = [games.area(ours[s], game.frames) - games.area(theirs[s], game.frames) for s in seeds]
        means = (fmean(curves[seed][-1].score for seed in seeds) for curves in (ours, theirs))
        scores = (f"{mean:,.4g}" if abs(mean) < 1000 else f"{mean:,.0f}" for mean in means)
        verdict = (
            "better" if fmean(last) > half_by_t(last) else "worse" if fmean(last) < -half_by_t(last) else ""
        )
        rows.append(
            (game.title, f"{game.frames:,}", *scores, gained(last), gained(over), verdict or "not told apart")
        )
    heads = (
        "game",
        "frames",
        "ours",
        "Sample Factory",
        "last score, difference",
        "over the run, difference",
        "at the end",
    )
    return grid(heads, rows)


# -- methods beside random search -----------------------------------------------------------------------------


Members = Sequence[tuple[float, float]]
"""(validation, test) of each member of a run."""
Scores = Mapping[str, Mapping[int, Members]]
"""Arm -> seed -> members."""


def picked(members: Members) -> float:
    """Return the test score of the member with the best validation score; of equals the first, not the better one."""
    return max(members, key=lambda scores: scores[0])[1]


def mean_test(members: Members) -> float:
    """Return the mean test score of all members."""
    return fmean(test for _, test in members)


def read_scores(rows: Sequence[Mapping[str, str]]) -> Scores:
    """Sort the rows of a CSV by arm and seed."""
    scores: dict[str, dict[int, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        scores[row["arm"]][int(row["seed"])].append((float(row["validation"]), float(row["test"])))
    return scores


def paired_gains(ours: Mapping[int, float], theirs: Mapping[int, float]) -> list[float]:
    """Return the differences of the seeds that both have."""
    return [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]


def methods(name: str) -> list[str]:
    """Return the arms of a protocol of `evidence.py` beside random search."""
    scores = read_scores(read_rows(ROWS / f"{name}.csv"))
    measured = {arm: {seed: picked(of) for seed, of in runs.items()} for arm, runs in scores.items()}
    rows = []
    for arm in scores:
        values, gains = list(measured[arm].values()), paired_gains(measured[arm], measured[BASELINE])
        low, high = bootstrap(gains) if arm != BASELINE and len(gains) > 1 else (0.0, 0.0)
        against = (
            (f"{fmean(gains):+.4g} ({low:+.4g} to {high:+.4g})", f"+- {half_by_t(gains):.3g}", better(gains))
            if arm != BASELINE and len(gains) > 1
            else ("-", "-", "-")
        )
        members = iqm([mean_test(of) for of in scores[arm].values()])
        lost = sum(value < PROTOCOLS[name].collapsed for value in values)
        rows.append(
            (
                arm,
                f"{len(values)}",
                f"{iqm(values):.4g}",
                f"{fmean(values):.4g}",
                *against,
                f"{members:.4g}",
                f"{lost}",
            )
        )
    return grid(
        (
            "picked member",
            "seeds",
            "IQM",
            "mean",
            f"less {BASELINE}'s, paired, 95 %",
            "by t",
            "better",
            "IQM of the mean of saved members",
            "collapsed",
        ),
        rows,
    )


def protocol(of: Protocol, task: str, panels: Sequence[str]) -> list[str]:
    """Return the comparisons of a protocol's panels on one task."""
    runs = of.results.runs(task)
    measures: tuple[Measure, ...] = (picked_of_arm, mean_of_members)
    rows = []
    for one in (one for one in of.comparisons if one.panel in panels):
        cells = []
        for measure in measures:
            ours, theirs = pairs(runs, one, measure)
            gain = paired(ours, theirs)
            cells += [
                f"{iqm(ours):.3f} against {iqm(theirs):.3f}",
                f"{gain.mean:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}]",
            ]
            if measure is picked_of_arm:
                gains = [a - b for a, b in zip(ours, theirs, strict=True)]
                cells += [f"+- {half_by_t(gains):.3f}", f"{gain.wins} : {gain.losses}"]
        rows.append((one.panel, one.label, *cells))
    return grid(
        (
            "",
            "",
            "picked member, IQM",
            "difference",
            "by t",
            "better : worse",
            "mean of members, IQM",
            "difference",
        ),
        rows,
    )


def does_pbt_help() -> list[str]:
    """Return one line per task: PBT beside random search, the picked members and the means of all saved ones."""
    rows = []
    for name, title in (
        ("cartpole", "CartPole, at most 500"),
        ("pendulum", "Pendulum, return"),
        ("courier_weights", "a courier whose deliveries are sparse: weights of reward terms alone"),
        ("courier", "the courier: weights of reward terms, rate and entropy"),
        ("tensors_pendulum", "a pendulum of tensors: weights of reward terms, rate, entropy and gamma"),
        ("atari", "Breakout, 100,000 frames a member"),
        ("minatar_breakout", "MinAtar's Breakout in JAX, 1,000,000 frames a member"),
        ("minatar_breakout_narrow", "MinAtar's Breakout from narrow priors"),
        ("unroll", "a memory, at most 1"),
    ):
        scores = read_scores(read_rows(ROWS / f"{name}.csv"))
        seeds = sorted(scores["pbt"].keys() & scores[BASELINE].keys())
        best, all_of_them = (
            [[measure(scores[arm][seed]) for seed in seeds] for arm in ("pbt", BASELINE)]
            for measure in (picked, mean_test)
        )
        rows.append(_line(title, best, all_of_them))
    for of, task, title in (
        (reproduce_figure5.PROTOCOL, "digits", "digits, accuracy"),
        (reproduce_figure5.PROTOCOL, "ring", "a GAN of eight Gaussians, coverage"),
        (reproduce_characters.PROTOCOL, "text", "a small transformer, - bits per character"),
    ):
        one = next(one for one in of.comparisons if one.arm == "pbt" and one.against == "random")
        one = next((c for c in of.comparisons if c.arm == "pbt" and c.label == "6 members"), one)
        runs = of.results.runs(task)
        rows.append(_line(title, pairs(runs, one, picked_of_arm), pairs(runs, one, mean_of_members)))
    heads = (
        "task",
        "PBT",
        "random search",
        "difference, 95 % by t",
        "better",
        "helps?",
        "all members, difference",
    )
    return grid(heads, sorted(rows, key=lambda row: row[5] != HELPS))


HELPS = "**yes**"


def _line(
    title: str, best: Sequence[Sequence[float]], all_of_them: Sequence[Sequence[float]]
) -> tuple[str, ...]:
    """best, all_of_them: scores of PBT and of random search, by seed."""
    gains, others = ([a - b for a, b in zip(*both, strict=True)] for both in (best, all_of_them))
    surely = min(fmean(gains) - half_by_t(gains), bootstrap(gains)[0]) > 0
    means = (f"{fmean(scores):.4g}" for scores in best)
    return title, *means, gained(gains), better(gains), HELPS if surely else "not shown", gained(others)


# -- papers ---------------------------------------------------------------------------------------------------


def search(name: str) -> list[str]:
    """Return HyperTrick beside Hyperband."""
    runs = read_searches(ROWS / f"searches_{name}.csv")
    both = sorted(runs["hypertrick"].keys() & runs["hyperband"].keys())
    rows = []
    for number in NUMBERS:
        ours, theirs = ([runs[method][seed][number] for seed in both] for method in METHODS)
        gains = [a - b for a, b in zip(ours, theirs, strict=True)]
        difference = gained(gains) if number != "phases" else "-"
        rows.append((number, short(fmean(ours)), short(fmean(theirs)), difference))
    return grid((f"mean of {len(both)} seeds", *METHODS, "difference, 95 % by t"), rows)


def populations(name: str, arms: tuple[str, str]) -> list[str]:
    """Return two ways to train populations beside each other, by fresh games of their saved members."""
    scores: dict[str, dict[int, dict[str, list[float]]]] = {arm: {} for arm in arms}
    for row in read_rows(ROWS / f"{name}.csv"):
        run = scores[row["arm"]].setdefault(int(row["seed"]), {"all": [], "saved": []})
        for key in ("all", "saved") if row["saved_as_best"] == "1" else ("all",):
            run[key].append(float(row["fresh_score"]))
    seeds = sorted(scores[arms[0]].keys() & scores[arms[1]].keys())
    numbers: Mapping[str, Callable[[dict[str, list[float]]], float]] = {
        "mean of all members": lambda run: fmean(run["all"]),
        "member that is saved as the best": lambda run: run["saved"][0],
        "best member": lambda run: max(run["all"]),
        "regret: the best member less the saved one": lambda run: max(run["all"]) - run["saved"][0],
    }
    rows = []
    for what, number in numbers.items():
        ours, theirs = ([number(scores[arm][seed]) for seed in seeds] for arm in arms)
        gains = [a - b for a, b in zip(ours, theirs, strict=True)]
        each = (
            f"{fmean(of):.1f}" + (f" +- {half_by_t(of):.1f}" if stdev(of) else "") for of in (ours, theirs)
        )
        rows.append((what, *each, gained(gains), better(gains)))
    return grid((f"{len(seeds)} seeds, 95 % by t", *arms, "difference", "higher in"), rows)


# -- agents ---------------------------------------------------------------------------------------------------


def curves(name: str) -> list[str]:
    """Return the last scores of single policies, the means of their checkpoints, and the seeds' means on the way."""
    found = read_curves(ROWS / f"{name}.csv")
    frames = max(of[-1][0] for runs in found.values() for of in runs.values())
    step = frames // 10
    rows = []
    for arm, runs in found.items():
        tenths = [[y for x, y in of if x % step == 0] for _, of in sorted(runs.items())]
        each = (", ".join(map(short, scores)) for scores in ([of[-1] for of in tenths], map(fmean, tenths)))
        way = [fmean(scores) for scores in zip(*(of[1::2] for of in tenths), strict=True)]
        rows.append((arm, f"{len(runs)}", ", ".join(map(short, way)), *each))
    heads = (
        "seeds",
        f"mean at each fifth of {frames:,} frames",
        "last score, each seed",
        "mean of a run, each seed",
    )
    return grid(("", *heads), rows)


def beside_a_compiled_ppo() -> list[str]:
    """Return the last scores on MinAtar's games beside those of scripts/lab/peers/jit_minatar.py."""
    sides = [read_curves(ROWS / f"{name}.csv") for name in ("minatar", "minatar_jit")]
    return grid(
        ("last score, each seed", "this product", "compiled PPO"),
        [
            (game, *(", ".join(short(of[game][seed][-1][1]) for seed in sorted(of[game])) for of in sides))
            for game in sides[0]
        ],
    )


PUBLISHED: Mapping[str, Mapping[str, Sequence[float]]] = {
    "Pong": {"Baselines PPO2": (-16, -13, -9, 3, 13.7), "CleanRL": (-17, -17, -13, -5, 15.0)},
    "Breakout": {"Baselines PPO2": (11, 13, 16, 26, 62), "CleanRL": (9, 9.5, 12, 21, 63)},
    "Freeway": {"Baselines PPO2": (20.1, 21.3, 22.4, 26.0, 30.1), "CleanRL": (18.4, 18.9, 20.2, 24.6, 30.6)},
}
"""Scores after AT frames, means of three seeds, read off a figure of CleanRL (docs/rl-algorithms/ppo/
ppo_atari_envpool_xla_jax/hms_each_game.svg), whose axis is minutes: 10 % of the frames more or less."""
AT = (1_000_000, 2_000_000, 3_000_000, 5_000_000, 10_000_000)


def at_the_rate_of_40_million() -> list[str]:
    """Return the curves of runs whose rate falls to 0 at 40,000,000 frames, as far as they went, and published ones."""
    rows = []
    for game, curves_of in read_curves(ROWS / "games_40m.csv").items():
        for seed, curve in sorted(curves_of.items()):
            scores = dict(curve)
            reached = (short(scores[at]) if at in scores else "-" for at in AT)
            rows.append((game, f"this product, seed {seed}", *reached))
        rows += [(game, whose, *map(short, scores)) for whose, scores in PUBLISHED[game].items()]
    return grid(("game", "", *(f"{at:,} frames" for at in AT)), rows)


def treasure_of_fun() -> list[str]:
    """Return FuN beside A3C."""
    scores: dict[tuple[str, str, str], dict[int, float]] = {}
    for row in read_rows(ROWS / "fun_treasure.csv"):
        key = row["frames"], row["learning_rate"], row["arm"]
        scores.setdefault(key, {})[int(row["seed"])] = float(row["fresh"])
    rows = []
    for (frames, rate, arm), of in sorted(
        scores.items(), key=lambda item: (int(item[0][0]), float(item[0][1]), item[0][2])
    ):
        gains = paired_gains(of, scores.get((frames, rate, "a3c"), {}))
        each = ", ".join(f"{score:.2f}" for _, score in sorted(of.items()))
        rows.append((f"{int(frames):,}", rate, arm, each, gained(gains) if arm != "a3c" else "-"))
    return grid(("frames", "learning rate", "", "found, each seed", "less a3c's"), rows)


FIGURE5 = reproduce_figure5.PROTOCOL
TABLES: Mapping[str, Callable[[], list[str]]] = {
    "games": games_scores,
    "games differences": games_differences,
    "does PBT help": does_pbt_help,
    **{name: partial(methods, name) for name in PROTOCOLS if (ROWS / f"{name}.csv").exists()},
    **{
        task: partial(protocol, FIGURE5, task, sorted({one.panel for one in FIGURE5.comparisons}))
        for task in ("digits", "ring")
    },
    "characters": partial(protocol, reproduce_characters.PROTOCOL, "text", ("PBT -", "random -")),
    "PBT against random": partial(populations, "rl1", ("pbt", "random")),
    "evaluated": partial(populations, "evaluation", ("evaluated", "training")),
    "searches cartpole": partial(search, "cartpole"),
    "searches breakout": partial(search, "breakout"),
    **{
        name: partial(curves, name)
        for name in (
            *("memory", "a3c", "unreal_sparse", "unreal_treasure"),
            *("minatar", "minatar_package", "crafter", "doorkey"),
        )
        if (ROWS / f"{name}.csv").exists()
    },
    "minatar beside a compiled PPO": beside_a_compiled_ppo,
    "rate of 40M": at_the_rate_of_40_million,
    "FuN": treasure_of_fun,
}

if __name__ == "__main__":
    sys.exit(main())
