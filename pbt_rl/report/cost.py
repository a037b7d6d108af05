"""Score against processor time: what each member and each run cost, and those that no cheaper one equals."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes

from pbt_rl.report.figures import MOST_NAMED, name_ends
from pbt_rl.report.read import History
from pbt_rl.report.style import BEST, CONTROL, FAINT, TOP, Drawn, new_figure

NO_COST = "No processor time is recorded yet."


def pareto(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points (cost, score) that none of the same or a lower cost equals, by cost."""
    front: list[tuple[float, float]] = []
    for cost, score in sorted(points, key=lambda p: (p[0], -p[1])):
        if not front or score > front[-1][1]:
            front.append((cost, score))
    return front


def costs(history: History) -> dict[int, list[tuple[float, float]]]:
    """Return for each member (processor seconds until then, objective) at each point of its curve.

    The run's processor time, by the frames that the member has trained on: all members of a run share its processes.
    """
    spent = history.cpu_seconds
    trained = sum(points[-1].frames for points in history.curves.values() if points)
    if spent <= 0 or trained <= 0:
        return {}
    each = spent / trained
    return {
        m: known
        for m, points in history.curves.items()
        if (known := [(p.frames * each, p.drawn) for p in points if p.drawn is not None])
    }


def figure(history: History) -> Drawn:
    """Draw each member's last objective against its cost, and the front over all moments of all members."""
    found = costs(history)
    if not found:
        return NO_COST
    drawn = new_figure(3.0)
    axes = drawn.subplots()
    for member, points in found.items():
        control = member in history.controls
        axes.plot(*zip(*points, strict=True), color=FAINT, linewidth=0.6, alpha=0.6)
        axes.scatter(
            *points[-1], s=22, color=CONTROL if control else TOP, marker="s" if control else "o", zorder=3
        )
    draw_front(axes, [point for points in found.values() for point in points])
    axes.set_xlabel("processor seconds of the member")
    axes.set_ylabel("objective")
    axes.set_xlim(left=0)
    if len(found) <= MOST_NAMED:
        name_ends(axes, {m: points[-1] for m, points in found.items()})
    axes.legend(loc="lower right")
    return drawn


def draw_front(axes: Axes, points: Sequence[tuple[float, float]]) -> None:
    """Draw the Pareto front as steps."""
    front = pareto(points)
    if front:
        x, y = zip(*[*front, (max(cost for cost, _ in points), front[-1][1])], strict=True)
        axes.step(x, y, where="post", color=BEST, linewidth=1.6, label="Pareto front")
