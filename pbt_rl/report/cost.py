"""Score against processor time: what runs cost, and those that no cheaper one equals."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from pbt_rl.report.figures import drawn_curves, top_mean
from pbt_rl.report.read import History
from pbt_rl.report.style import INK, new_figure

Points = list[tuple[float, float]]
"""(cost, score) each."""


def pareto(points: Sequence[tuple[float, float]]) -> Points:
    """Return the points (cost, score) that none of the same or a lower cost equals, by cost."""
    front: Points = []
    for cost, score in sorted(points, key=lambda p: (p[0], -p[1])):
        if not front or score > front[-1][1]:
            front.append((cost, score))
    return front


def run_costs(history: History, kind: str) -> Points:
    """Return (processor seconds of the whole run until then, objective of the best member then) along a run.

    kind: of processor, `CPU` or `GPU`. Empty if no time on it is recorded.
    """
    whole = history.cpu_seconds if kind == "CPU" else history.gpu_seconds
    known = drawn_curves(history)
    if not whole or not known:
        return []
    x, y = top_mean(list(known.values()), 1)
    most = max(points[-1].frames for points in history.curves.values() if points)
    return [(float(frames) / most * whole, float(score)) for frames, score in zip(x, y, strict=True)]


def of_runs(groups: Sequence[tuple[str, Sequence[History]]]) -> Figure | None:
    """Draw the best member's objective of each run over the run's cost, and the front over all of them.

    groups: (colour, runs) each. Each kind of processor has axes of its own. None if no run has any cost.
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
