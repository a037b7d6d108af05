"""`pbt-rl report A B C`: one page that compares runs, with the spread over seeds, and the same as CSV."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from pbt_rl.errors import ConfigError
from pbt_rl.report.cost import NO_COST, of_runs
from pbt_rl.report.exports import table_text
from pbt_rl.report.figures import drawn_curves, top_mean
from pbt_rl.report.groups import Group, best_objective, groups, mean_and_deviation, mean_objective
from pbt_rl.report.page import CSS, duration
from pbt_rl.report.read import History, read_run
from pbt_rl.report.style import STYLE, frames_axis, new_figure, plain, png, short
from pbt_rl.report.write import write_files

GRID_POINTS = 300
COLOURS = ("#1d4ed8", "#c2410c", "#15803d", "#7e22ce", "#0e7490", "#a16207", "#be185d", "#475569")
Curve = tuple[np.ndarray, np.ndarray]
"""Frames, and an objective at each."""
NO_CURVE = "No run has a window of episodes that is complete."


def write_comparison(folders: Sequence[Path], out: Path) -> list[Path]:
    """Write the page, its picture and its tables into `out`; return the files, the page first. Raises ConfigError."""
    runs = [read_run(folder) for folder in folders]
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise ConfigError("the same run is given twice: name each run once")
    found = groups(runs)
    with mpl.rc_context(STYLE):
        figure = curves(found)
        cost = of_runs([(COLOURS[i % len(COLOURS)], g.runs) for i, g in enumerate(found)])
    image, cost_image = (None if one is None else png(one) for one in (figure, cost))
    contents = {
        "comparison.html": comparison_page(found, image, cost_image).encode(),
        "groups.csv": table_text([_group_row(group) for group in found]).encode(),
        "runs.csv": table_text([_run_row(group, run) for group in found for run in group.runs]).encode(),
    }
    if image is not None:
        contents["comparison.png"] = image
    if cost_image is not None:
        contents["cost.png"] = cost_image
    return write_files(out, contents)


def curves(found: Sequence[Group]) -> Figure | None:
    """Draw the best fifth's objective of each group: the mean over its runs, and the range of the runs around it."""
    drawn = [(group, _overlapping(_tops(group))) for group in found]
    if not any(tops for _, tops in drawn):
        return None
    figure = new_figure(4.2)
    axes = figure.subplots()
    for number, (group, tops) in enumerate(drawn):
        if not tops:
            continue
        colour = COLOURS[number % len(COLOURS)]
        until = min(x[-1] for x, _ in tops)
        grid = np.linspace(max(x[0] for x, _ in tops), until, GRID_POINTS)
        table = np.array([np.interp(grid, x, y) for x, y in tops])
        seeds = f" ({len(tops)} runs)" if len(tops) > 1 else ""
        axes.plot(grid, table.mean(0), color=colour, linewidth=2.0, label=plain(group.label + seeds))
        if len(tops) > 1:
            axes.fill_between(grid, table.min(0), table.max(0), color=colour, alpha=0.15, linewidth=0)
    axes.set_ylabel("objective of the best fifth")
    frames_axis(axes)
    axes.legend(loc="upper left", bbox_to_anchor=(0, -0.14), ncols=1, borderaxespad=0)
    return figure


def _tops(group: Group) -> list[Curve]:
    """Return frames and the mean objective of the best fifth, of each run that has any."""
    tops = []
    for run in group.runs:
        known = drawn_curves(run)
        if known:
            x, y = top_mean(list(known.values()), max(1, math.ceil(run.population / 5)))
            if len(x) > 0:
                tops.append((x, y))
    return tops


def _overlapping(tops: Sequence[Curve]) -> list[Curve]:
    """Return the curves without those that end before others begin: there is no number of frames at which all stand."""
    left = sorted(tops, key=lambda top: float(top[0][-1]))
    while left and left[0][0][-1] < max(x[0] for x, _ in left):
        del left[0]
    return left


def comparison_page(found: Sequence[Group], image: bytes | None, cost: bytes | None = None) -> str:
    """Return the HTML. image, cost: the PNG files of the curves, over frames and over processor time, if there are."""
    environments = sorted({run.options.env for group in found for run in group.runs})
    title = f"{sum(len(group.runs) for group in found)} runs: {', '.join(environments)}"
    warning = (
        '<p class="none">The runs are of different environments: their objectives do not compare.</p>'
        if len(environments) > 1
        else ""
    )
    shown = _picture(image, "Objective of the best fifth of each group", NO_CURVE)
    paid = _picture(cost, "Objective against processor time", NO_COST)
    rows = [_run_row(group, run) for group in found for run in group.runs]
    return f"""<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title><style>{CSS}</style></head>
<body>
<h1>{escape(title)}</h1>
<p class="sub">Runs that differ only in their seed form a group, named by the options in which it differs.</p>
{warning}
<h2>Objective</h2>
<p class="caption">The best fifth of the members (of up to five the best one) at each number of frames: the mean over
the runs of a group, as far as all of them came, and around it the range of its runs.</p>
{shown}
<h2>Score and cost</h2>
<p class="caption">A line per run, coloured as above: the objective of its best member, over the processor time that the
whole run had taken by then. The front: what no run had reached at that cost.</p>
{paid}
<h2>Groups</h2>
<p class="caption">Means over the runs ± sample deviation. Objectives are means over windows of training episodes.</p>
{_table([_group_row(group) for group in found])}
<h2>Runs</h2>
{_table(rows)}
</body>
</html>
"""


def _picture(image: bytes | None, alt: str, missing: str) -> str:
    if image is None:
        return f'<p class="none">{missing}</p>'
    data = base64.b64encode(image).decode()
    return f'<div class="wide"><img alt="{alt}" src="data:image/png;base64,{data}"></div>'


def _group_row(group: Group) -> dict[str, Any]:
    means = [o for run in group.runs if (o := mean_objective(run)) is not None]
    return {
        "group": group.label,
        "runs": len(group.runs),
        "best objective": mean_and_deviation(group.best),
        "mean of members": mean_and_deviation(means),
        "frames": short(float(np.mean([_frames(run) for run in group.runs]))),
        "time": duration(float(np.mean([run.seconds for run in group.runs]))),
    }


def _run_row(group: Group, run: History) -> dict[str, Any]:
    changed = sum(taken.change.decision == "replace" for taken in run.decisions)
    return {
        "run": run.name,
        "group": group.label,
        "seed": run.seed,
        "members": len(run.last),
        "best objective": _number(best_objective(run)),
        "mean of members": _number(mean_objective(run)),
        "frames": short(_frames(run)),
        "time": duration(run.seconds),
        "CPU seconds": f"{run.cpu_seconds:.4g}" if run.cpu_seconds else "-",
        "replacements": changed,
        "ended": run.ended or "goes on, or was cut off",
    }


def _frames(run: History) -> float:
    return float(sum(points[-1].frames for points in run.curves.values() if points))


def _number(objective: float | None) -> str:
    return "-" if objective is None else f"{objective:.4g}"


def _table(rows: Sequence[dict[str, Any]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in rows[0])
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row.values()) + "</tr>" for row in rows
    )
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'
