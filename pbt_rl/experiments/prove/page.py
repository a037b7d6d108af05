"""The page of an experiment with its curves and paired differences, and the same as CSV and JSON."""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from pbt_rl.experiments.prove.outcome import Outcome, needed, signed
from pbt_rl.report.cost import KINDS, Points, of_scores, spent
from pbt_rl.report.exports import table_text
from pbt_rl.report.figures import drawn_curves, top_mean
from pbt_rl.report.page import CSS
from pbt_rl.report.read import read_run
from pbt_rl.report.style import FAINT, INK, STYLE, frames_axis, new_figure, plain, png, short
from pbt_rl.report.write import write_files

COLOURS = ("#1d4ed8", "#475569", "#c2410c", "#15803d", "#7e22ce", "#0e7490", "#a16207", "#be185d")
VERDICT_COLOURS = {"helped": "#15803d", "not told apart": INK, "hurt": "#c2410c"}
GRID_POINTS = 300


def write_outcome(folder: Path, found: Outcome, options: str, notes: Sequence[str] = ()) -> list[Path]:
    """Write page, picture and tables into the folder of the experiment; return the files. Raises ConfigError."""
    with mpl.rc_context(STYLE):
        images = {"curves": png(curves(folder, found)), "differences": png(differences(found))}
        cost = costs(folder, found)
        if cost is not None:
            images["cost"] = png(cost)
    contents = {
        "proof.html": page(found, images, folder.name, options, notes).encode(),
        "proof.json": (json.dumps(as_json(found), indent=2) + "\n").encode(),
        "scores.csv": table_text(rows(found)).encode(),
    } | {f"{name}.png": image for name, image in images.items()}
    return write_files(folder, contents)


def rows(found: Outcome) -> list[dict[str, Any]]:
    """Return a row per member of every run."""
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
    """Return the verdicts with their figures."""
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
    """Draw the best member's objective in training over frames of all members: mean and range of the seeds."""
    figure = new_figure(3.8)
    axes = figure.subplots()
    for number, (arm, runs) in enumerate(found.scores.items()):
        lines = []
        for seed in runs:
            history = read_run(folder / f"{arm}.seed{seed}")
            known = drawn_curves(history)
            if known:
                x, y = top_mean(list(known.values()), 1)
                lines.append((x * len(history.last), y))
        colour = COLOURS[number % len(COLOURS)]
        begin = max((x[0] for x, _ in lines), default=0.0)
        end = min((x[-1] for x, _ in lines), default=0.0)
        if begin >= end:
            axes.plot([], [], color=colour, linewidth=2, label=plain(f"{arm} (too few records)"))
            continue
        grid = np.linspace(begin, end, GRID_POINTS)
        table = np.array([np.interp(grid, x, y) for x, y in lines])
        axes.plot(grid, table.mean(0), color=colour, linewidth=2, label=plain(arm))
        axes.fill_between(grid, table.min(0), table.max(0), color=colour, alpha=0.12, linewidth=0)
    axes.set_ylabel("objective of the best member")
    frames_axis(axes, "frames of all members together")
    axes.legend(loc="upper left", bbox_to_anchor=(0, 1.12), ncols=6, borderaxespad=0)
    return figure


def costs(folder: Path, found: Outcome) -> Figure | None:
    """Draw each run's score in fresh games against its processor time, and the front over the arms' means."""
    arms = []
    for number, (arm, runs) in enumerate(found.scores.items()):
        points: dict[str, Points] = {}
        for seed, one in runs.items():
            history = read_run(folder / f"{arm}.seed{seed}")
            for kind in KINDS:
                if spent(history, kind):
                    points.setdefault(kind, []).append((spent(history, kind), one.score))
        arms.append((arm, COLOURS[number % len(COLOURS)], points))
    return of_scores(arms)


def differences(found: Outcome) -> Figure:
    """Draw the difference of every seed to the baseline, their mean and its interval."""
    arms = list(found.comparisons)
    figure = new_figure(0.9 + 0.55 * len(arms))
    axes = figure.subplots()
    theirs = found.scores[found.baseline]
    for row, arm in enumerate(arms):
        one = found.comparisons[arm]
        gains = [run.score - theirs[seed].score for seed, run in found.scores[arm].items() if seed in theirs]
        colour = VERDICT_COLOURS[one.verdict]
        axes.scatter(gains, [row + 0.18] * len(gains), s=18, color=FAINT)
        axes.plot([one.by_t.low, one.by_t.high], [row, row], color=colour, linewidth=2.4)
        axes.scatter([one.mean], [row], s=42, color=colour, zorder=3)
    axes.axvline(0, color=INK, linewidth=1)
    axes.set_yticks(range(len(arms)), [plain(arm) for arm in arms])
    axes.set_ylim(len(arms) - 0.4, -0.6)
    axes.set_xlabel(f"score less that of {plain(found.baseline)}, same seed")
    return figure


def page(found: Outcome, images: dict[str, bytes], name: str, options: str, notes: Sequence[str] = ()) -> str:
    """Return the HTML, with everything inside. notes: on what weakens the comparison."""
    seeds = len(found.scores[found.baseline])
    uneven = [f"{arm} ({found.share(arm):.0%})" for arm in found.comparisons if found.uneven(arm)]
    warning = (
        f'<p class="none">Not the frames of {escape(found.baseline)}: {escape(", ".join(uneven))}.</p>'
        if uneven
        else ""
    )
    warning += "".join(f'<p class="none">{escape(note)}</p>' for note in notes)
    many = (
        f" If none of the {len(found.comparisons)} arms made a difference, one of them would still seem to, with a "
        f"chance of about {100 * (1 - 0.95 ** len(found.comparisons)):.0f} %."
        if len(found.comparisons) > 1
        else ""
    )
    return f"""<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(name)}: did it help?</title><style>{CSS}</style></head>
<body>
<h1>{escape(name)}: did it help?</h1>
<p class="sub">{escape(options)}; {seeds} paired seeds</p>
<h2>Verdicts</h2>
<p class="caption">Validation games pick a member of each run; its score is the mean of other, fresh games. Every arm is
compared with {escape(found.baseline)} on the same seeds: difference, its score less the other's.{many}</p>
{_verdicts(found)}
{warning}
<h2>Paired differences</h2>
<p class="caption">A dot per seed, the mean, and its 95 % interval by Student's t. The interval by bootstrap is in
proof.json: of fewer than about 20 seeds it is too narrow.</p>
{_image(images["differences"], "Paired differences")}
<h2>Curves</h2>
<p class="caption">The best member's objective in training games, over the frames of all members together: the mean of
the seeds and their range. Scores in training are of windows and of chosen members; verdicts are by fresh games.</p>
{_image(images["curves"], "Curves")}
{_cost(images)}<h2>Scores</h2>
{_scores(found)}
</body>
</html>
"""


def _cost(images: dict[str, bytes]) -> str:
    if "cost" not in images:
        return ""
    return f"""<h2>Score and cost</h2>
<p class="caption">A small dot per run: its score against the processor time of training. Large: the mean of an arm. No
arm on the front is beaten by one that costs as much or less.</p>
{_image(images["cost"], "Score and cost")}
"""


def _image(image: bytes, alt: str) -> str:
    data = base64.b64encode(image).decode()
    return f'<div class="wide"><img alt="{escape(alt)}" src="data:image/png;base64,{data}"></div>'


def _verdicts(found: Outcome) -> str:
    lines = []
    for arm, one in found.comparisons.items():
        lines.append(
            f"<tr><td>{escape(arm)}</td><td style='color:{VERDICT_COLOURS[one.verdict]};font-weight:600'>"
            f"{one.verdict}</td><td>{signed(one.mean)}</td><td>{signed(one.by_t.low)} to {signed(one.by_t.high)}</td>"
            f"<td>{one.wins} : {one.losses}</td><td class=text>{escape(needed(one))}</td></tr>"
        )
    head = "".join(
        f"<th>{name}</th>"
        for name in ("arm", "verdict", "difference", "95 % interval", "seeds better : worse", "seeds needed")
    )
    return f'<div class="wide"><table><tr>{head}</tr>{"".join(lines)}</table></div>'


def _scores(found: Outcome) -> str:
    seeds = sorted(found.scores[found.baseline])
    head = "".join(
        f"<th>{name}</th>" for name in ("arm", "mean", "IQM", "frames", *(f"seed {s}" for s in seeds))
    )
    lines = []
    for arm, runs in found.scores.items():
        scores = "".join(f"<td>{runs[s].score:.4g}</td>" if s in runs else "<td>-</td>" for s in seeds)
        lines.append(
            f"<tr><td>{escape(arm)}</td><td>{found.mean(arm):.4g}</td><td>{found.middle(arm):.4g}</td>"
            f"<td>{short(found.frames(arm))}</td>{scores}</tr>"
        )
    return f'<div class="wide"><table><tr>{head}</tr>{"".join(lines)}</table></div>'
