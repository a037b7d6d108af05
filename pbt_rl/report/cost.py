"""Score against processor time: what members and runs cost, and those that no cheaper one equals."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pbt_rl.report.figures import MOST_NAMED, drawn_curves, name_ends, top_mean
from pbt_rl.report.read import History
from pbt_rl.report.style import CONTROL, FAINT, INK, TOP, Drawn, new_figure, plain

NO_COST = "No processor time is recorded yet."
KINDS = ("CPU", "GPU")
Points = list[tuple[float, float]]
"""(cost, score) each."""


def pareto(points: Sequence[tuple[float, float]]) -> Points:
    """Return the points (cost, score) that none of the same or a lower cost equals, by cost."""
    front: Points = []
    for cost, score in sorted(points, key=lambda p: (p[0], -p[1])):
        if not front or score > front[-1][1]:
            front.append((cost, score))
    return front


def spent(history: History, kind: str) -> float:
    """Return the seconds of a run on a kind of processor; 0 if none are recorded."""
    return history.cpu_seconds if kind == "CPU" else history.gpu_seconds


def costs(history: History, kind: str = "CPU") -> dict[int, Points]:
    """Return for each member (processor seconds until then, objective) at each point of its curve.

    The run's processor time, by the frames that the member has trained on: all members of a run share its processes.
    """
    each = _of_frame(history, kind)
    if each == 0:
        return {}
    return {
        m: known
        for m, points in history.curves.items()
        if (known := [(p.frames * each, p.drawn) for p in points if p.drawn is not None])
    }


def _of_frame(history: History, kind: str) -> float:
    trained = sum(points[-1].frames for points in history.curves.values() if points)
    return spent(history, kind) / trained if trained else 0.0


def run_costs(history: History, kind: str) -> Points:
    """Return (processor seconds of the whole run until then, objective of the best member then) along a run."""
    each, known = _of_frame(history, kind), drawn_curves(history)
    if each == 0 or not known:
        return []
    x, y = top_mean(list(known.values()), 1)
    whole = sum(points[-1].frames for points in history.curves.values() if points)
    most = max(points[-1].frames for points in history.curves.values() if points)
    return [(float(frames) / most * whole * each, float(score)) for frames, score in zip(x, y, strict=True)]


def figure(history: History) -> Drawn:
    """Draw each member's last objective against its cost, and the front over all moments of all members."""
    kinds = [kind for kind in KINDS if costs(history, kind)]
    if not kinds:
        return NO_COST
    drawn = new_figure(3.0)
    for axes, kind in zip(_panels(drawn, kinds), kinds, strict=True):
        found = costs(history, kind)
        for member, points in found.items():
            control = member in history.controls
            axes.plot(*zip(*points, strict=True), color=FAINT, linewidth=0.6, alpha=0.6)
            colour, marker = (CONTROL, "s") if control else (TOP, "o")
            axes.scatter(*points[-1], s=22, color=colour, marker=marker, zorder=3)
        draw_front(axes, [point for points in found.values() for point in points])
        axes.set_xlabel(f"{kind} seconds of the member")
        axes.set_ylabel("objective")
        if len(found) <= MOST_NAMED:
            name_ends(axes, {m: points[-1] for m, points in found.items()})
    return drawn


def of_runs(groups: Sequence[tuple[str, Sequence[History]]]) -> Figure | None:
    """Draw the best member's objective of each run over the run's cost, and the front over all of them.

    groups: (colour, runs) each. None if no run has any cost.
    """
    paths = [
        (colour, kind, points)
        for colour, runs in groups
        for run in runs
        for kind in KINDS
        if (points := run_costs(run, kind))
    ]
    kinds = [kind for kind in KINDS if any(path[1] == kind for path in paths)]
    if not kinds:
        return None
    drawn = new_figure(3.6)
    for axes, kind in zip(_panels(drawn, kinds), kinds, strict=True):
        for colour, of, points in paths:
            if of == kind:
                axes.plot(*zip(*points, strict=True), color=colour, linewidth=0.9, alpha=0.6)
                axes.scatter(*points[-1], s=26, color=colour, zorder=3)
        draw_front(axes, [point for _, of, points in paths if of == kind for point in points])
        axes.set_xlabel(f"{kind} seconds of the run")
        axes.set_ylabel("objective of the best member")
    return drawn


def of_scores(groups: Sequence[tuple[str, str, dict[str, Points]]]) -> Figure | None:
    """Draw the score of each run against its cost, each group's mean, and the front over the means.

    groups: (label, colour, kind of processor -> a point of each run) each. None if no run has any cost.
    """
    kinds = [kind for kind in KINDS if any(points.get(kind) for *_, points in groups)]
    if not kinds:
        return None
    drawn = new_figure(3.2)
    for axes, kind in zip(_panels(drawn, kinds), kinds, strict=True):
        means = []
        for label, colour, of in groups:
            points = of.get(kind)
            if not points:
                continue
            x, y = zip(*points, strict=True)
            means.append((sum(x) / len(x), sum(y) / len(y)))
            axes.scatter(x, y, s=16, color=colour, alpha=0.45)
            axes.scatter(*means[-1], s=60, color=colour, zorder=3, label=plain(label))
        draw_front(axes, means, "Pareto front of the means")
        axes.set_xlabel(f"{kind} seconds of the run")
        axes.set_ylabel("score in fresh games")
    return drawn


def _panels(drawn: Figure, kinds: Sequence[str]) -> list[Axes]:
    return list(drawn.subplots(1, len(kinds), squeeze=False)[0])


def draw_front(axes: Axes, points: Sequence[tuple[float, float]], label: str = "Pareto front") -> None:
    """Draw the Pareto front as steps, with a legend, on axes that begin at no cost."""
    front = pareto(points)
    if front:
        x, y = zip(*[*front, (max(cost for cost, _ in points), front[-1][1])], strict=True)
        axes.step(x, y, where="post", color=INK, linewidth=1.6, linestyle="--", label=label)
    axes.set_xlim(left=0)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=6, borderaxespad=0)
