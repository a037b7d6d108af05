"""`pbt-rl report A B C`: one page that compares runs, its figures as PNG files, and its tables as CSV files.

Runs that differ only in their seed (or in other options of NO_DIFFERENCE) form a group. The page shows the spread over
the seeds of each group.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pbt_rl.display.ranking import clock
from pbt_rl.errors import ConfigError
from pbt_rl.record.history import History, read_run
from pbt_rl.report.exports import table_text
from pbt_rl.report.figures import drawn_curves, top_mean
from pbt_rl.report.page import document, image, make_folder, none, section, table, write_files
from pbt_rl.report.style import INK, STYLE, frames_axis, new_figure, plain, png, short

NO_DIFFERENCE = frozenset(
    {
        "seed", "name", "out", "overwrite", "resume", "figures", "track", "devices", "actors", "vector_envs_per_actor",
        "envs_per_vector_env", "actor_timeout_seconds", "learner_timeout_seconds", "max_actor_restarts",
        "save_every_seconds", "save_every_frames", "keep_checkpoints", "evaluate_every_frames",
        "evaluate_video", "learner.threads", "learner.packing", "nodes",
    }
)  # fmt: skip
"""Options that may differ between runs of one group."""
DRAWS = "pbt.start_values"
"""Option in which `pbt-rl prove` stores the initial values that it sampled with the seed."""
NOT_TIMED = {"train_for_frames", "pbt.period_frames", "pbt.start_frames"}
"""Options to ignore in runs with comparisons by time (--pbt.ready timed)."""
MOST_OPTIONS = 4
"""Maximum number of options in `Group.options`. Further options are left out."""


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed or in other options of NO_DIFFERENCE. label: name of the group.

    options: text of at most MOST_OPTIONS options that differ between groups.
    """

    label: str
    options: str
    runs: tuple[History, ...]


def mean_objective(run: History) -> float | None:
    """Return the mean of the known last objectives, without controls. None if no objective is known."""
    known = [o for member in run.ranking if (o := run.objective(run.last[member])) is not None]
    return fmean(known) if known else None


def mean_and_std(numbers: Sequence[float]) -> str:
    """Format numbers as `mean ± sample std`. A single number has no std. Return "-" if `numbers` is empty."""
    if not numbers:
        return "-"
    return f"{fmean(numbers):.4g}" + (f" ± {stdev(numbers):.2g}" if len(numbers) > 1 else "")


def groups(runs: Sequence[History]) -> list[Group]:
    """Group runs that differ only in options of NO_DIFFERENCE. Groups are in the order of their first runs.

    Runs of a group may also differ in the option DRAWS, because its values are sampled with the seed. But if two runs
    with the same seed differ only in DRAWS and NO_DIFFERENCE, the user has set DRAWS. Then DRAWS separates groups.
    """
    options = [dict(_flat(run.config)) for run in runs]
    keys = _keys(options, NO_DIFFERENCE | {DRAWS})
    by_seed = {(key, one.get("seed")): one.get(DRAWS) for key, one in zip(keys, options, strict=True)}
    if any(by_seed[key, o.get("seed")] != o.get(DRAWS) for key, o in zip(keys, options, strict=True)):
        keys = _keys(options, NO_DIFFERENCE)  # values were set by the user, not sampled with the seed
    found: dict[str, list[int]] = {}
    for number, key in enumerate(keys):
        found.setdefault(key, []).append(number)
    first = [options[numbers[0]] for numbers in found.values()]
    names = sorted({name for one in first for name in one} - NO_DIFFERENCE)
    differing = [n for n in names if len({json.dumps(one.get(n)) for one in first}) > 1]
    made: list[Group] = []
    for numbers, one in zip(found.values(), first, strict=True):
        label = _named([runs[i].name for i in numbers])
        more = f" ({len(made) + 1})" * any(group.label == label for group in made)
        given = [n for n in differing if one.get(n) is not None]
        text = ", ".join(f"{n} {_shown(one[n])}" for n in given[:MOST_OPTIONS])
        made.append(Group(label + more, text or "-", tuple(runs[i] for i in numbers)))
    return made


def _named(names: Sequence[str]) -> str:
    """Return a name for a group: the common name without seed numbers, or the first name and "...".

    The number of runs is appended. A single run keeps its name.
    """
    if len(names) == 1:
        return names[0]
    stems = {re.sub(r"[._-]*(seed)?[0-9]*$", "", name) for name in names}
    return f"{stems.pop() if len(stems) == 1 else names[0] + ' ...'} ({len(names)} runs)"


def _keys(options: Sequence[Mapping[str, Any]], left_out: AbstractSet[str]) -> list[str]:
    """Return a key for each run. Runs with equal keys form a group. left_out: options that the keys ignore."""
    keys = []
    for one in options:
        absent = left_out | NOT_TIMED if one.get("pbt.ready") == "timed" else left_out
        keys.append(json.dumps({k: v for k, v in one.items() if k not in absent}, sort_keys=True))
    return keys


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _shown(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


GRID_POINTS = 300
COLOURS = ("#1d4ed8", "#c2410c", "#15803d", "#7e22ce", "#0e7490", "#a16207", "#be185d", "#475569")
Curve = tuple[np.ndarray, np.ndarray]
"""Arrays of frames and of objectives."""
Points = list[tuple[float, float]]
"""(cost, score) pairs."""
NO_CURVE = "No run has a complete window of episodes."


def write_comparison(
    folders: Sequence[Path], out: Path, begins: Callable[[], object] = lambda: None
) -> list[Path]:
    """Write page, figures and tables into `out`. Return the paths, the page first.

    Raises ConfigError if a run cannot be read, a run is given twice, or `out` cannot be written.
    begins: function that is called after all checks, before the figures are drawn.
    """
    runs = [read_run(folder) for folder in folders]
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise ConfigError(f"{' '.join(map(str, folders))}: a run is given twice; give each run once")
    make_folder(out)
    begins()
    found = groups(runs)
    coloured = [(COLOURS[i % len(COLOURS)], group.runs) for i, group in enumerate(found)]
    same = len({run.options.env for run in runs}) == 1
    with mpl.rc_context(STYLE):
        figures = curves(found), cost_curves(coloured) if same else None
    images = [None if one is None else png(one) for one in figures]
    contents = {
        "comparison.html": comparison_page(found, *images).encode(),
        "groups.csv": table_text([_group_row(group) for group in found]).encode(),
        "runs.csv": table_text([_run_row(group, run) for group in found for run in group.runs]).encode(),
    }
    names = ("comparison.png", "cost.png")
    return write_files(out, contents | {n: data for n, data in zip(names, images, strict=True) if data})


def curves(found: Sequence[Group]) -> Figure | None:
    """Draw the objective of the best fifth of members: mean and range over the runs of each group.

    Each environment has separate axes, because objectives of different environments are not comparable. None if no run
    has a complete objective (see `Point.complete`).
    """
    drawn = [(i, group, tops) for i, group in enumerate(found) if (tops := _tops(group))]
    if not drawn:
        return None
    environments = list(dict.fromkeys(group.runs[0].options.env for _, group, _ in drawn))
    figure = new_figure(4.2 * len(environments))
    for axes, env in zip(figure.subplots(len(environments), squeeze=False).flat, environments, strict=True):
        for number, group, tops in drawn:
            if group.runs[0].options.env == env:
                mean_and_range(axes, tops, COLOURS[number % len(COLOURS)], group.label)
        axes.set_title(plain(env))
        axes.set_ylabel("objective of the best fifth")
        frames_axis(axes)
        axes.legend(loc="upper left", bbox_to_anchor=(0, -0.14), ncols=2, borderaxespad=0)
    return figure


def mean_and_range(axes: Axes, lines: Sequence[Curve], colour: str, label: str) -> None:
    """Draw mean and range of curves, over the frames for which all curves have data.

    A curve that ends before another curve begins is left out.
    """
    left = sorted(lines, key=lambda line: float(line[0][-1]))
    while left and left[0][0][-1] < max(x[0] for x, _ in left):
        del left[0]
    grid = np.linspace(max(x[0] for x, _ in left), min(x[-1] for x, _ in left), GRID_POINTS)
    table = np.array([np.interp(grid, x, y) for x, y in left])
    axes.plot(grid, table.mean(0), color=colour, linewidth=2, label=plain(label))
    if len(left) > 1:
        axes.fill_between(grid, table.min(0), table.max(0), color=colour, alpha=0.14, linewidth=0)


def _tops(group: Group) -> list[Curve]:
    """Return a curve for each run with data: the mean objective of the best fifth of its members."""
    known = ((run, drawn_curves(run)) for run in group.runs)
    tops = [top_mean(list(one.values()), max(1, math.ceil(run.population / 5))) for run, one in known if one]
    return [(x, y) for x, y in tops if len(x) > 0]


def pareto(points: Sequence[tuple[float, float]]) -> Points:
    """Return the Pareto front of (cost, score) points, sorted by cost."""
    front: Points = []
    for cost, score in sorted(points, key=lambda p: (p[0], -p[1])):
        if not front or score > front[-1][1]:
            front.append((cost, score))
    return front


def run_costs(history: History, kind: str) -> Points:
    """Return (processor seconds so far, best objective) points along a run. Empty if unknown. kind: CPU or GPU.

    The seconds are estimates: the seconds of the whole run, in proportion to the frames.
    """
    whole = history.cpu_seconds if kind == "CPU" else history.gpu_seconds
    known = drawn_curves(history)
    if not whole or not known:
        return []
    x, y = top_mean(list(known.values()), 1)
    most = max(points[-1].frames for points in history.curves.values() if points)
    return [(float(frames) / most * whole, float(score)) for frames, score in zip(x, y, strict=True)]


def cost_curves(groups: Sequence[tuple[str, Sequence[History]]]) -> Figure | None:
    """Draw each run's best objective over its processor time, and the Pareto front.

    groups: (colour, runs) pairs. CPU and GPU have separate axes. None if no run has processor time and an objective.
    """
    lines = {
        kind: [
            (points, colour) for colour, runs in groups for run in runs if (points := run_costs(run, kind))
        ]
        for kind in ("CPU", "GPU")
    }
    kinds = [kind for kind, drawn in lines.items() if drawn]
    if not kinds:
        return None
    figure = new_figure(3.2)
    for axes, kind in zip(figure.subplots(1, len(kinds), squeeze=False)[0], kinds, strict=True):
        for points, colour in lines[kind]:
            axes.plot(*zip(*points, strict=True), color=colour, linewidth=0.7, alpha=0.5)
            axes.scatter(*points[-1], s=24, color=colour, zorder=3)
        every = [point for points, _ in lines[kind] for point in points]
        front = pareto(every)
        x, y = zip(*[*front, (max(cost for cost, _ in every), front[-1][1])], strict=True)
        axes.step(x, y, where="post", color=INK, linewidth=1.6, linestyle="--", label="Pareto front")
        axes.set_xlim(left=0)
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0)
        axes.set_xlabel(f"{kind} seconds of the run")
        axes.set_ylabel("objective of the best member")
    return figure


def comparison_page(found: Sequence[Group], picture: bytes | None, cost: bytes | None = None) -> str:
    """Return the page as HTML. picture: PNG file of `curves`. cost: PNG file of `cost_curves`. None: no figure."""
    environments = sorted({run.options.env for group in found for run in group.runs})
    warning = none("The runs use different environments: their scores are not comparable.") * (
        len(environments) > 1
    )
    parts = [
        section(
            "Objective",
            "Objective of the best fifth of the members, or of the best member if there are at most five. Line: mean "
            "over the runs of a group, as long as all runs have data. Band: range of the runs.",
            none(NO_CURVE)
            if picture is None
            else image(picture, "Objective of the best fifth of each group"),
        ),
        section(
            "Groups",
            "Runs that differ only in their seed form a group. Numbers are means over the runs ± sample std. Best "
            "score: the best member's mean in the final evaluation, or its objective in training if there was none.",
            table([_group_row(group) for group in found]),
        ),
        section("Runs", "", table([_run_row(group, run) for group in found for run in group.runs])),
        section(
            "Score and cost",
            "Each line is one run, coloured as above: objective of its best member over the processor time that the "
            "run has used. The Pareto front is the best score that any run reached with that processor time.",
            none("No processor time is recorded yet.")
            if cost is None
            else image(cost, "Objective against processor time"),
        )
        * (not warning),
    ]
    return document(
        f"{sum(len(group.runs) for group in found)} runs: {', '.join(environments)}", warning + "".join(parts)
    )


def _group_row(group: Group) -> dict[str, Any]:
    means = [o for run in group.runs if (o := mean_objective(run)) is not None]
    scores = [score for run in group.runs if (score := run.score(run.best)) is not None]
    return {
        "group": group.label,
        "differs in": group.options,
        "runs": len(group.runs),
        "best score": mean_and_std(scores),
        "mean objective of members": mean_and_std(means),
        "frames of each": short(fmean(run.frames for run in group.runs)),
        "time": clock(fmean(run.training_seconds for run in group.runs)),
    }


def _run_row(group: Group, run: History) -> dict[str, Any]:
    changed = sum(taken.change.decision == "replace" for taken in run.decisions)
    return {
        "run": run.name,
        "group": group.label,
        "seed": run.start.seed,
        "members": len(run.last),
        "best member": run.best,
        "best score": run.score(run.best),
        "mean objective of members": mean_objective(run),
        "frames of each": short(run.frames),
        "time": clock(run.training_seconds),
        "CPU seconds": run.cpu_seconds or None,
        "replacements": changed,
        "ended": run.ended or "still running, or killed",
    }
