"""Score against processor time: what members and runs cost, and those that no cheaper one equals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from pbt_rl.report.figures import MOST_NAMED, drawn_curves, name_ends, top_mean
from pbt_rl.report.read import History
from pbt_rl.report.style import CONTROL, INK, TOP, Drawn, new_figure

NO_COST = "No processor time is recorded yet."
KINDS = ("CPU", "GPU")
Points = list[tuple[float, float]]
"""(cost, score) each."""


@dataclass(frozen=True)
class Line:
    """The way of a member or of a run."""

    points: Points
    colour: str
    marker: str = "o"
    name: int | None = None
    """Of a member."""


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
    each = spent(history, kind) / max(1, history.all_frames)
    known = {
        m: [(p.frames * each, p.drawn) for p in points if p.drawn is not None]
        for m, points in history.curves.items()
    }
    return {m: points for m, points in known.items() if points and each}


def run_costs(history: History, kind: str) -> Points:
    """Return (processor seconds of the whole run until then, objective of the best member then) along a run."""
    whole, known = spent(history, kind), drawn_curves(history)
    if not whole or not known:
        return []
    x, y = top_mean(list(known.values()), 1)
    most = max(points[-1].frames for points in history.curves.values() if points)
    return [(float(frames) / most * whole, float(score)) for frames, score in zip(x, y, strict=True)]


def figure(history: History) -> Drawn:
    """Draw each member's last objective against its cost, and the front over all moments of all members."""
    lines = {
        kind: [
            Line(points, CONTROL, "s", m) if m in history.controls else Line(points, TOP, name=m)
            for m, points in costs(history, kind).items()
        ]
        for kind in KINDS
    }
    return _drawn(lines, "member") or NO_COST


def of_runs(groups: Sequence[tuple[str, Sequence[History]]]) -> Figure | None:
    """Draw the best member's objective of each run over the run's cost, and the front over all of them.

    groups: (colour, runs) each. None if no run has any cost.
    """
    lines = {
        kind: [
            Line(points, colour)
            for colour, runs in groups
            for run in runs
            if (points := run_costs(run, kind))
        ]
        for kind in KINDS
    }
    return _drawn(lines, "run")


def _drawn(lines: Mapping[str, Sequence[Line]], of: str) -> Figure | None:
    """Draw lines by kind of processor, each with axes of its own, and their Pareto fronts."""
    kinds = [kind for kind in KINDS if lines[kind]]
    if not kinds:
        return None
    figure = new_figure(3.2)
    for axes, kind in zip(figure.subplots(1, len(kinds), squeeze=False)[0], kinds, strict=True):
        for line in lines[kind]:
            axes.plot(*zip(*line.points, strict=True), color=line.colour, linewidth=0.7, alpha=0.5)
            axes.scatter(*line.points[-1], s=24, color=line.colour, marker=line.marker, zorder=3)
        points = [point for line in lines[kind] for point in line.points]
        front = pareto(points)
        x, y = zip(*[*front, (max(cost for cost, _ in points), front[-1][1])], strict=True)
        axes.step(x, y, where="post", color=INK, linewidth=1.6, linestyle="--", label="Pareto front")
        axes.set_xlim(left=0)
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0)
        axes.set_xlabel(f"{kind} seconds of the {of}")
        axes.set_ylabel("objective" if of == "member" else "objective of the best member")
        named = {line.name: line.points[-1] for line in lines[kind] if line.name is not None}
        if len(named) <= MOST_NAMED:
            name_ends(axes, named)
    return figure
