"""HTML page of an experiment with curves and paired differences, and CSV and JSON files with the data of the page."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from pbt_rl.experiments.prove.outcome import Comparison, Outcome, needed, signed
from pbt_rl.record.history import read_run
from pbt_rl.report.compare import COLOURS, mean_and_range
from pbt_rl.report.exports import table_text
from pbt_rl.report.figures import drawn_curves, top_mean
from pbt_rl.report.page import document, image, none, section, table, write_files
from pbt_rl.report.style import FAINT, INK, STYLE, frames_axis, new_figure, plain, png, short

VERDICT_COLOURS = {"helped": "#15803d", "not told apart": INK, "hurt": "#c2410c"}


def write_outcome(folder: Path, found: Outcome, options: str, notes: Sequence[str] = ()) -> list[Path]:
    """Write page, figures and tables into the folder of an experiment. Return the paths.

    options: description of the runs for the page. notes: warnings about the comparison.
    Raises ConfigError if a file cannot be written.
    """
    with mpl.rc_context(STYLE):
        images = {"curves": png(curves(folder, found)), "differences": png(differences(found))}
    contents = {
        "proof.html": page(found, images, folder.name, options, notes).encode(),
        "proof.json": (json.dumps(as_json(found), indent=2) + "\n").encode(),
        "scores.csv": table_text(rows(found)).encode(),
    } | {f"{name}.png": image for name, image in images.items()}
    return write_files(folder, contents)


def rows(found: Outcome) -> list[dict[str, Any]]:
    """Return one row per member of each run, with arm, seed, mean scores, and 1 in `picked` for the picked member."""
    return [
        {
            "arm": arm,
            "seed": seed,
            "member": member,
            "validation": one.validation[i],
            "test": one.test[i],
            "picked": int(i == one.picked),
            "frames": one.frames,
        }
        for arm, runs in found.scores.items()
        for seed, one in sorted(runs.items())
        for i, member in enumerate(one.members)
    ]


def as_json(found: Outcome) -> dict[str, Any]:
    """Return scores and comparisons as JSON types."""
    return {
        "baseline": found.baseline,
        "arms": {
            arm: {
                "mean": found.mean(arm),
                "interquartile_mean": found.middle(arm),
                "frames": found.frames(arm),
                "scores": {str(seed): one.score for seed, one in sorted(runs.items())},
            }
            for arm, runs in found.scores.items()
        },
        "comparisons": {
            arm: {"verdict": one.verdict, **dataclasses.asdict(one)} for arm, one in found.comparisons.items()
        },
    }


def curves(folder: Path, found: Outcome) -> Figure:
    """Plot each arm's best objective in training over the frames of all members: mean and range over the seeds."""
    figure = new_figure(3.8)
    axes = figure.subplots()
    for number, (arm, runs) in enumerate(found.scores.items()):
        histories = [read_run(folder / f"{arm}.seed{seed}") for seed in runs]
        known = [(len(one.last), list(drawn.values())) for one in histories if (drawn := drawn_curves(one))]
        lines = [(x * members, y) for members, drawn in known for x, y in [top_mean(drawn, 1)]]
        mean_and_range(axes, lines, COLOURS[number % len(COLOURS)], arm)
    axes.set_ylabel("objective of the best member")
    frames_axis(axes, "frames of all members together")
    axes.legend(loc="upper left", bbox_to_anchor=(0, 1.12), ncols=6, borderaxespad=0)
    return figure


def differences(found: Outcome) -> Figure:
    """Plot the differences of each arm to the baseline: a dot for each seed, their mean and its 95 % interval."""
    arms, dots = list(found.comparisons), [0.0]
    figure = new_figure(0.9 + 0.55 * len(arms))
    axes = figure.subplots()
    theirs = found.scores[found.baseline]
    for row, arm in enumerate(arms):
        one = found.comparisons[arm]
        gains = [run.score - theirs[seed].score for seed, run in found.scores[arm].items() if seed in theirs]
        colour = VERDICT_COLOURS[one.verdict]
        dots += gains
        axes.scatter(gains, [row + 0.18] * len(gains), s=18, color=FAINT)
        axes.plot([one.by_t.low, one.by_t.high], [row, row], color=colour, linewidth=2.4)
        axes.scatter([one.mean], [row], s=42, color=colour, zorder=3)
    axes.axvline(0, color=INK, linewidth=1)
    axes.set_yticks(range(len(arms)), [plain(arm) for arm in arms])
    axes.set_ylim(len(arms) - 0.4, -0.6)
    room = max(dots) - min(dots) or 1.0
    left, right = axes.get_xlim()
    axes.set_xlim(max(left, min(dots) - room), min(right, max(dots) + room))
    axes.set_xlabel(
        f"score minus score of {plain(found.baseline)} with the same seed; wide intervals are cut off"
    )
    return figure


def page(found: Outcome, images: dict[str, bytes], name: str, options: str, notes: Sequence[str] = ()) -> str:
    """Return a self-contained HTML page.

    images: name of a figure -> PNG file. name: name of the experiment. options, notes: see `write_outcome`.
    """
    base, seeds = found.baseline, len(found.scores[found.baseline])
    uneven = [f"{arm} ({found.share(arm):.0%})" for arm in found.comparisons if found.uneven(arm)]
    warnings = [f"Frames differ from {base}: {', '.join(uneven)}."] * bool(uneven) + list(notes)
    many = (
        f" Even if none of the {len(found.comparisons)} arms differed from {base}, the probability that a verdict is "
        f"`helped` or `hurt` would be about {100 * (1 - 0.95 ** len(found.comparisons)):.0f} %."
        if len(found.comparisons) > 1
        else ""
    )
    parts = [
        f'<p class="lead">{escape(headline(found))}</p>',
        f'<p class="sub">{escape(options)}; {seeds} paired seeds</p>',
        section(
            "Verdicts",
            "Validation episodes select a member of each run. The score of a run is this member's mean over separate "
            f"evaluation episodes. Each arm is compared with {base} on the same seeds. A difference is the arm's score "
            f"minus the score of {base}.{many}",
            table([_verdict(arm, one) for arm, one in found.comparisons.items()])
            if found.comparisons
            else "",
        ),
        *map(none, warnings),
        section(
            "Paired differences",
            "A dot per seed, the mean, and its 95 % interval by Student's t. The bootstrap interval is in proof.json. "
            "It is too narrow with fewer than about 20 seeds.",
            image(images["differences"], "Paired differences"),
        ),
        section(
            "Curves",
            "The best member's objective in training, over the frames of all members together: mean and range over "
            "seeds. A curve ends with the last full window. The best member's objective is biased upwards. Verdicts "
            "use evaluation episodes instead.",
            image(images["curves"], "Curves"),
        ),
        section("Scores", "", table([_scores(found, arm) for arm in found.scores])),
    ]
    return document(f"{name}: did it help?", "\n".join(parts))


def headline(found: Outcome) -> str:
    """Return the verdicts as text, beginning with the arm `pbt` (without this arm: with the first arm)."""
    if not found.comparisons:
        return "No verdict yet: train each arm on two or more seeds."
    arm = "pbt" if "pbt" in found.comparisons else next(iter(found.comparisons))
    one = found.comparisons[arm]
    said = {"helped": "Helped", "hurt": "Hurt", "not told apart": "Not told apart"}[one.verdict]
    interval = f"95 % interval {signed(one.by_t.low)} to {signed(one.by_t.high)}, {one.seeds} seeds"
    rest = "".join(f"; {name}: {other.verdict}" for name, other in found.comparisons.items() if name != arm)
    better = "".join(f" {text[0].upper()}{text[1:]}." for text in found.ahead(arm))
    return f"{said}: {arm} scored {signed(one.mean)} against {found.baseline} ({interval}){rest}.{better}"


def _verdict(arm: str, one: Comparison) -> dict[str, object]:
    return {
        "arm": arm,
        "verdict": one.verdict,
        "difference": signed(one.mean),
        "95 % interval": f"{signed(one.by_t.low)} to {signed(one.by_t.high)}",
        "seeds better : worse": f"{one.wins} : {one.losses}",
        "seeds needed": needed(one),
    }


def _scores(found: Outcome, arm: str) -> dict[str, object]:
    runs, seeds = found.scores[arm], sorted(found.scores[found.baseline])
    return {
        "arm": arm,
        "mean": f"{found.mean(arm):.4g}",
        "IQM": f"{found.middle(arm):.4g}",
        "frames of all members": short(found.frames(arm)),
        **{f"seed {s}": f"{runs[s].score:.4g}" if s in runs else "-" for s in seeds},
    }
