"""Reproduce the results of the founding papers: each figure beside the expected one.

    python scripts/lab/reproduce.py                    # T1 to T12: about two minutes
    python scripts/lab/reproduce.py --only T1,T5
    python scripts/lab/reproduce.py --rl               # on top: reinforcement learning, about 15 minutes on two cores
    python scripts/lab/reproduce.py --rl --only RL1 --keep docs/lab/results    # goes on from the runs in rl1.csv
    python scripts/lab/reproduce.py --json FILE

The numbers T1 to T12 are those of the project's list of acceptance problems that need no GPU; it has no T2, T6, T7
and T11. What is expected comes from a paper, from a formula or from another part of the same table; a figure without
such a source is a measurement. The exit code is 1 if any figure is not as expected. docs/lab/papers.md shows and
explains the output.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import mean, stdev

from papers import triangle
from reproduce_table import Row, Section, holds, measured, near, show
from reproduce_toys import t1, t3, t4

from pbt_rl.controllers import (
    Controller,
    Gap,
    HyperSpec,
    HyperTrick,
    Lineage,
    MemberReport,
    MultiplyOrDivide,
    PbtController,
    PerturbFactors,
    RandomSearch,
    Resample,
    ResampleAll,
    SuccessiveHalving,
    Synchronous,
    Truncation,
    sample_prior,
)
from pbt_rl.controllers.explore import move_choice
from pbt_rl.controllers.hypers import choice_spec
from pbt_rl.controllers.search.draws import draw_grid
from pbt_rl.controllers.search.hypertrick import expected_completion, matching_eviction_rate
from pbt_rl.record.events import Initial, Round
from pbt_rl.record.reading import each_event
from pbt_rl.tune import run
from pbt_rl.tune.simulation import Simulation, simulate

SEEDS = 30
PER_SEARCH = 300
"""Simulated runs of a search."""


# -- T5: HyperTrick ---------------------------------------------------------------------------------------------

ONE = {"x": HyperSpec("x", 0.5, 0.0, 1.0, "linear", tuned=True)}
LAW = (
    # W0, phases, eviction rate, nodes
    (100, 10, 0.25, 100),
    (100, 5, 0.25, 100),
    (12, 4, 0.25, 6),
    (46, 27, 0.1085, 46),
)


def durations(member: int, _frames: int, _values: object, _rng: Random, seed: int) -> float:
    """Return frames per unit of virtual time: slow and fast members, the same ones for every method."""
    return math.exp(Random(f"{seed}.{member}").gauss(0, 0.4))


def luck(_member: int, _frames: int, _values: object, rng: Random) -> float:
    """Return a score without information."""
    return rng.random()


def hypertrick(seed: int, members: int, phases: int, eviction_rate: float, nodes: int) -> Simulation:
    """Simulate one run on scores that are drawn independently."""
    search = HyperTrick(ONE, seed, phase_frames=1, phases=phases, eviction_rate=eviction_rate)
    return simulate(search, members, nodes, speed=partial(durations, seed=seed), score=luck, seed=seed)


def t5() -> list[Row]:
    """Compare the completion rate with equation 9, and the order of the four methods' total times (figure 3)."""
    rows = []
    for members, phases, rate, nodes in LAW:
        alphas = [hypertrick(s, members, phases, rate, nodes).completion(phases) for s in range(PER_SEARCH)]
        law, found = expected_completion(rate, phases), mean(alphas)
        what = f"W0 {members}, {phases} phases, r {rate}, {nodes} nodes: mean alpha"
        error = 3 * stdev(alphas) / math.sqrt(PER_SEARCH)
        rows.append(
            holds(
                what,
                f"{law:.4f} (eq. 9)",
                f"{found:.4f} +- {error:.4f}, sd {stdev(alphas):.3f}",
                passed=abs(found - law) < 0.01 + error,
            )
        )
    return [
        *rows,
        near(
            "r that matches Hyperband's 32.61 % in 27 phases",
            0.1085,
            matching_eviction_rate(0.3261, 27),
            0.0001,
        ),
        total_times(),
    ]


def total_times() -> Row:
    """The toy of figure 3: 12 configurations, 6 nodes, 4 phases, r = 0.25."""
    build: dict[str, Callable[[int], Controller]] = {
        "HyperTrick": lambda s: HyperTrick(ONE, s, phase_frames=1, phases=4, eviction_rate=0.25),
        "dynamic SH": lambda s: SuccessiveHalving(ONE, s, phase_frames=1, phases=4, eviction_rate=0.25),
        "static SH": lambda s: SuccessiveHalving(
            ONE, s, phase_frames=1, phases=4, eviction_rate=0.25, slots=6
        ),
        "grid": lambda s: RandomSearch(ONE, s, phase_frames=4, sampling=draw_grid),
    }
    times = {
        name: mean(
            simulate(make(s), 12, 6, speed=partial(durations, seed=s), score=luck, seed=s).total_time
            for s in range(PER_SEARCH)
        )
        for name, make in build.items()
    }
    return holds(
        "mean total time of HyperTrick, dynamic and static SH, grid",
        "10 < 12.1 < 15.3 < 15.6 (order)",
        " < ".join(f"{time:.1f}" for time in times.values()),
        passed=list(times.values()) == sorted(times.values()),
    )


# -- T8: operators ----------------------------------------------------------------------------------------------

LINEAR = HyperSpec("a", 1.0, 0.0, 100.0, "linear", tuned=True)
PAIR = {"a": LINEAR, "b": dataclasses.replace(LINEAR, name="b")}
WHOLE = {"n": HyperSpec("n", 3.0, 1.0, 9.0, "integer", tuned=True)}
DRAWS = 2000


def t8() -> list[Row]:
    """Check the rules in which systems disagree, each against its own source."""
    rng = Random(0)
    start = {"a": 10.0, "b": 10.0}

    def drawn(rule: PerturbFactors | MultiplyOrDivide, values: dict[str, float], name: str) -> list[float]:
        return sorted({round(rule.mutate(values, rng)[name], 4) for _ in range(DRAWS)})

    factors = drawn(PerturbFactors(PAIR), start, "a")
    divided = drawn(MultiplyOrDivide(PAIR), start, "a")
    whole = drawn(MultiplyOrDivide(WHOLE), {"n": 3.0}, "n") + drawn(PerturbFactors(WHOLE), {"n": 3.0}, "n")
    edge = sorted(
        {move_choice(choice_spec("c", tuple("xyz"), "x"), 0.0, "adjacent", rng) for _ in range(DRAWS)}
    )
    clamped = drawn(PerturbFactors(PAIR), {"a": 99.0, "b": 0.0}, "a")
    keyed = partly_drawn(Resample(PAIR, probability=0.25), rng)
    together = partly_drawn(ResampleAll(PAIR, probability=0.25), rng)
    return [
        holds("x1.2 / x0.8 (PBT, Ray) from 10", "[8, 12]", f"{factors}", passed=factors == [8.0, 12.0]),
        holds("x1.2 or /1.2 (Orion) from 10", "[8.3333, 12]", f"{divided}", passed=divided == [8.3333, 12.0]),
        near("resample by key: share of draws that hit one key only", 0.375, keyed, 0.04, 3),
        near("resample the whole configuration: the same share", 0.0, together, 0.0, 3),
        holds("an integer 3 goes to", "[2, 4]", f"{sorted(set(whole))}", passed=set(whole) == {2.0, 4.0}),
        holds("an adjacent category at the edge goes to", "[0, 1]", f"{edge}", passed=edge == [0.0, 1.0]),
        holds(
            "99 of at most 100, x1.2 or x0.8", "[79.2, 100]", f"{clamped}", passed=clamped == [79.2, 100.0]
        ),
        *selection(),
    ]


def partly_drawn(rule: Resample | ResampleAll, rng: Random) -> float:
    """Return the share of mutations that drew exactly one of two keys anew."""
    start = {"a": 1.0, "b": 1.0}
    partly = [sum(v != start[k] for k, v in rule.mutate(start, rng).items()) == 1 for _ in range(DRAWS)]
    return float(sum(partly) / DRAWS)


def selection() -> list[Row]:
    """Check the laws of truncation on random scores, some of them NaN."""
    rng = Random(1)
    nan_donors = own_copies = copies = idle = 0
    for _ in range(500):
        scores = [math.nan if rng.random() < 0.3 else rng.gauss(0, 1) for _ in range(rng.randint(2, 12))]
        members = [MemberReport(i, 10, (s,), 1, 0, {}) for i, s in enumerate(scores)]
        for selection in Truncation(0.5, Gap(0, 0), others_mutate=False).select(members, rng):
            if selection.donor is not None:
                copies += 1
                nan_donors += math.isnan(scores[selection.donor])
                own_copies += selection.donor == selection.member
        selections = Truncation(0.0, Gap(0, 0), others_mutate=False).select(members, rng)
        idle += all(f.donor is None for f in selections)
    return [
        holds(f"NaN as donor in {copies} copies", "0", f"{nan_donors}", passed=nan_donors == 0 < copies),
        holds("members that copied themselves", "0", f"{own_copies}", passed=own_copies == 0),
        holds("quantile 0: comparisons without a copy", "500 of 500", f"{idle} of 500", passed=idle == 500),
    ]


# -- T9, T10, T12 -----------------------------------------------------------------------------------------------


def t9() -> list[Row]:
    """Check that decided values act: by the record of a real run, and by a witness."""
    import reproduce_proof  # noqa: PLC0415 - only here are processes started

    return reproduce_proof.t9()


def t10() -> list[Row]:
    """Count the roots of the living members at each comparison."""
    grew, last, first = 0, [], []
    for seed in range(SEEDS):
        controller = PbtController(
            triangle.TABLE,
            seed,
            ready=Synchronous(5, 5, 1),
            exploit=Truncation(0.25, Gap(0, 0), others_mutate=False),
            explore=PerturbFactors(triangle.TABLE),
        )
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "journal.jsonl"
            run(partial(triangle.Triangle, seed), controller, steps=500, num_members=12, journal=path)
            lineage, counts = Lineage(), []
            for event in each_event(path):
                lineage.take(event)
                if isinstance(event, Initial | Round):
                    counts.append(len(lineage.surviving_roots()))
        grew += any(b > a for a, b in pairwise(counts))
        first.append(counts[0])
        last.append(counts[-1])
    return [
        measured(f"runs of {SEEDS} in which the number of roots grew", f"{grew}", "0, by its definition"),
        measured("roots at the start", f"{max(first)}", "12, by its definition"),
        holds("roots at the end (most of any run)", "1", f"{max(last)}", passed=max(last) == 1),
    ]


def t12() -> list[Row]:
    """Compute importances on artificial scores: mostly the learning rate, a little gamma, nothing of the unroll."""
    from pbt_rl.report.importance import importance  # noqa: PLC0415 - needs scikit-learn

    table = {
        "learning_rate": HyperSpec("learning_rate", 1e-3, 1e-5, 1e-2, "log", tuned=True),
        "gamma": HyperSpec("gamma", 0.99, 0.9, 0.9999, "one_minus", tuned=True),
        "unroll": HyperSpec("unroll", 20, 2, 100, "integer", tuned=True),
    }
    rng = Random(0)
    rows = [{name: sample_prior(spec, rng) for name, spec in table.items()} for _ in range(100)]
    scores = [
        -((math.log10(r["learning_rate"]) + 3.5) ** 2) - 3 * (1 - r["gamma"]) + rng.gauss(0, 0.1)
        for r in rows
    ]
    found = importance(rows, scores).shares
    total = math.fsum(found.values())
    text = ", ".join(f"{name} {100 * share:.0f} %" for name, share in found.items())
    return [
        holds(
            "what is first",
            "learning_rate",
            text,
            passed=max(found, key=found.__getitem__) == "learning_rate",
        ),
        measured("sum", f"{total:.4f}", "1, by its definition"),
    ]


# -- all --------------------------------------------------------------------------------------------------------

SECTIONS: dict[str, Section] = {
    "T1": (f"Fig. 2 of Jaderberg et al. (2017): median best Q of {SEEDS} seeds", t1),
    "T3": (f"The triangle learning rate, {SEEDS} seeds", t3),
    "T4": (f"The deceptive toy: median best Q of {SEEDS} seeds", t4),
    "T5": (f"HyperTrick's law, {PER_SEARCH} simulated runs each", t5),
    "T8": ("Operators", t8),
    "T9": ("Proof of application: decisions of a real run against what its learner read back", t9),
    "T10": (f"Phylogeny: surviving roots under greedy PBT, {SEEDS} seeds", t10),
    "T12": ("Importance of hyperparameters by random forests", t12),
}
MISSING = ("T2", "T6", "T7", "T11")


def main() -> int:
    """Run the selected sections; the exit code is 1 if a figure is not as expected."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", help="names separated by commas: " + ", ".join(SECTIONS))
    parser.add_argument(
        "--rl", action="store_true", help="also what trains by reinforcement learning: RL1 to RL3"
    )
    parser.add_argument(
        "--keep", type=Path, help="folder: RL1 to RL3 keep the rows of whole runs there, and go on from them"
    )
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    arguments = parser.parse_args()
    sections = dict(SECTIONS)
    if arguments.rl:
        import reproduce_rl  # noqa: PLC0415
        import reproduce_searches  # noqa: PLC0415

        sections |= reproduce_rl.sections(arguments.keep)
        sections["RL2"] = reproduce_searches.section(arguments.keep)
    asked = [name.strip() for name in arguments.only.split(",")] if arguments.only else list(sections)
    unknown = sorted(set(asked) - sections.keys() - set(MISSING))
    if unknown:
        parser.error(f"--only {', '.join(unknown)}: choose from {', '.join(sections)}")
    results: dict[str, list[Row]] = {}
    for name in asked:
        if name in MISSING:
            print(f"\n{name}  is not in the list of acceptance problems")
            continue
        title, find = sections[name]
        began = time.monotonic()
        results[name] = find()
        show(name, title, results[name], time.monotonic() - began)
    if arguments.json:
        table = {name: [dataclasses.asdict(row) for row in rows] for name, rows in results.items()}
        arguments.json.write_text(json.dumps(table, indent=2) + "\n")
    rows = [row for those in results.values() for row in those]
    failed, passed = (sum(row.passed is verdict for row in rows) for verdict in (False, True))
    print(f"\n{passed} figures as expected, {failed} not; {len(rows) - passed - failed} are measurements")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
