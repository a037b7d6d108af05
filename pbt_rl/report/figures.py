"""Figures of a run. Functions with the result type `Drawn` return a figure, or the reason why it cannot be drawn."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize, to_hex
from matplotlib.ticker import MaxNLocator

from pbt_rl.display.tensorboard import read_scalars
from pbt_rl.display.view import EXTRA
from pbt_rl.record.history import History, Point
from pbt_rl.report import style
from pbt_rl.report.lanes import Layout, ancestors

GRID_POINTS = 400
NO_PHASES = "This run is not a search: its members are not trained phase by phase."
NO_EVALUATIONS = "There were no evaluations during training (--evaluate-every-frames)."
NO_STATISTICS = "The environment has no episode_extra_stats."
SPEED, LOSSES = "throughput/frames_per_second", ("_loss", "/entropy", "/kl", "/grad_norm")
"""TensorBoard tag of the speed, and suffixes of the learning tags that are drawn."""
MOST_PANELS = 24
NAME_WIDTH, NAME_HEIGHT = 0.06, 0.045
"""Curves share a label if their ends are closer than these fractions of the axes' width and height."""
MOST_NAMED = 12
"""Maximum number of labelled curves. With more curves, no curve is labelled, because labels would overlap."""


def objective(history: History) -> style.Drawn:
    """Draw each member's objective (faint) and the mean of the best fifth at each number of frames (thick).

    Until a member's objective first covers all its environments, a dotted line shows the mean over the ended episodes.
    Controls are drawn as a band.
    """
    known = drawn_curves(history, controls=True)
    controls = {m: points for m, points in known.items() if m in history.controls}
    curves = {m: points for m, points in known.items() if m not in controls} or known
    ends: dict[int, list[tuple[float, float]]] = {
        m: [(p.frames, p.objective or 0.0) for p in points] for m, points in curves.items()
    }
    early = {m: line for m, points in history.curves.items() if (line := _early(points))}
    if not (known or early):
        return "No episode has ended yet."
    figure = style.new_figure(3.6)
    axes = figure.subplots()
    _control_band(axes, list(controls.values()))
    for lines, dots in ((ends, "-"), (early, ":")):
        for line in lines.values():
            axes.plot(
                *zip(*line, strict=True),
                color=style.FAINT if known else style.TOP,
                alpha=0.75 if len(curves) <= 12 else 0.45,
                linewidth=0.9 if dots == "-" else 1.3,
                linestyle=dots,
                marker="o" if len(line) == 1 else None,
                markersize=3,
            )
    if known:
        population = history.population
        count = max(1, math.ceil(population / 5))
        grid, top = top_mean(list(curves.values()), count)
        name = "the best member" if count == 1 else f"mean of the best {count} of {population}"
        axes.plot(grid, top, color=style.TOP, linewidth=2.4, label=f"{name} at each point")
        axes.plot([], [], color=style.FAINT, linewidth=0.9, label="members")
    if early:
        colour, label = style.FAINT if known else style.TOP, "before every environment has ended an episode"
        axes.plot([], [], color=colour, linewidth=1.3, linestyle=":", label=label)
    axes.set_ylabel("objective")
    style.frames_axis(axes)
    if len(ends | early) <= MOST_NAMED:
        name_ends(axes, {m: line[-1] for m, line in (early | ends).items()})
    axes.legend(loc="upper left", bbox_to_anchor=(0, 1.1), ncols=3, borderaxespad=0)
    return figure


def _early(points: Sequence[Point]) -> list[tuple[float, float]]:
    """Return (frames, mean over the ended episodes) points of a member, for the dotted line at the start of its curve.

    The points end with the first objective that is not provisional. Empty if no provisional objective precedes it.
    """
    line: list[tuple[float, float]] = []
    for point in points:
        mean = point.early if point.objective is None else point.objective
        if mean is not None and (point.drawn is None or line):
            line.append((point.frames, mean))
        if point.drawn is not None:
            break
    return line


def statistics(history: History) -> style.Drawn:
    """Draw the environment's `episode_extra_stats` (such as reward terms), and the metrics of callbacks."""
    return _scalars(history, lambda tag: tag.startswith(EXTRA), NO_STATISTICS)


def learning(history: History) -> style.Drawn:
    """Draw the speed of the run, and the losses, entropy, KL divergence and gradient norm of all members."""
    return _scalars(
        history,
        lambda tag: tag == SPEED or (tag.startswith("learning/") and tag.endswith(LOSSES)),
        "No TensorBoard file of the run has losses.",
    )


def _scalars(history: History, shows: Callable[[str], bool], nothing: str) -> style.Drawn:
    """Draw a run's TensorBoard scalars, one panel per tag. Lines of the best member and of the population are thick.

    Only the first MOST_PANELS tags are drawn, in alphabetical order.
    shows: returns True for a tag to draw. nothing: text that is returned instead of a figure if there is no such tag.
    """
    folder, lines = history.folder, dict[str, dict[int | None, list[tuple[int, float]]]]()
    if folder is not None:
        folders: dict[int | None, Path] = {m: folder.member_events(m) for m in history.last}
        folders[None] = folder.population_events
        for member, events in folders.items():
            for tag, line in read_scalars(events).items():
                if shows(tag):
                    lines.setdefault(tag, {})[member] = line
    if not lines:
        return nothing
    tags = sorted(lines)[:MOST_PANELS]
    figure, all_axes = style.panels(len(tags))
    for tag, axes in zip(tags, all_axes, strict=True):
        for member in sorted(lines[tag], key=lambda m: m == history.best):  # the best member last, on top
            best = member == history.best or member is None
            colour, width = (
                (style.BEST if member is not None else style.TOP, 1.8) if best else ("#5b7083", 0.8)
            )
            axes.plot(*zip(*lines[tag][member], strict=True), color=colour, linewidth=width)
        axes.set_title(style.plain(tag.partition("/")[2].replace("_", " ")))
        style.frames_axis(axes, "frames of all members" if None in lines[tag] else "")
    left_out = f"; {len(lines) - MOST_PANELS} more are in TensorBoard" if len(lines) > MOST_PANELS else ""
    figure.supxlabel(f"frames of the member{left_out}", fontsize=8.5)
    return figure


def _control_band(axes: Axes, curves: Sequence[Sequence[Point]]) -> None:
    """Draw mean and range of the objectives of the control group, over the frames for which all controls have data.

    curves: points of each control.
    """
    if not curves:
        return
    until = min(points[-1].frames for points in curves)
    grid = np.linspace(min(max(points[0].frames for points in curves), until), until, GRID_POINTS)
    table = np.array(
        [np.interp(grid, [p.frames for p in c], [p.objective or 0.0 for p in c]) for c in curves]
    )
    axes.fill_between(grid, table.min(0), table.max(0), color=style.CONTROL, alpha=0.15, linewidth=0)
    axes.plot(
        grid, table.mean(0), color=style.CONTROL, linewidth=1.8, label="mean of the controls, and their range"
    )


def name_ends(axes: Axes, ends: Mapping[int, tuple[float, float]]) -> None:
    """Label each curve with the member's id. Curves whose ends are close share a label. ends: member -> (x, y)."""
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    groups: list[list[tuple[float, float, int]]] = []
    for member, (frames, objective) in sorted(ends.items(), key=lambda end: (-end[1][1], end[1][0])):
        x, y = (frames - left) / (right - left), (objective - low) / (high - low)
        near = (g for g in groups if abs(g[0][0] - x) < NAME_WIDTH and abs(g[0][1] - y) < NAME_HEIGHT)
        group = next(near, None)
        if group is None:
            groups.append(group := [])
        group.append((x, y, member))
    for group in groups:
        text, at = ", ".join(f"{member}" for *_, member in group), (max(x for x, *_ in group), group[0][1])
        _write(axes, text, at, (3, 0), xycoords="axes fraction", va="center", fontsize=7)


def _write(axes: Axes, text: str, at: tuple[float, float], by: tuple[int, int], **how: Any) -> None:
    """Write a text at an offset from a position. by: offset in points."""
    axes.annotate(text, at, xytext=by, textcoords="offset points", **how)


def evaluations(history: History) -> style.Drawn:
    """Draw the scores of evaluations during training: mean ± two standard errors."""
    results = history.evaluations
    if not results:
        return NO_EVALUATIONS
    figure = style.new_figure(2.6)
    axes = figure.subplots()
    frames, means = [e.at_frames for e in results], np.array([e.mean for e in results])
    errors = np.array([2 * history.standard_error(e) for e in results])
    axes.fill_between(frames, means - errors, means + errors, color=style.TOP, alpha=0.15, linewidth=0)
    axes.plot(frames, means, color=style.TOP, linewidth=2, marker="o", markersize=3)
    for event, before in zip(results, [None, *results], strict=False):
        if before is None or event.member != before.member:
            at = (event.at_frames, event.mean)
            _write(axes, f"{event.member}", at, (0, 5), ha="center", fontsize=7)
    axes.set_ylabel("objective in evaluation episodes")
    style.frames_axis(axes, "frames of each member")
    return figure


def drawn_curves(history: History, *, controls: bool = False) -> dict[int, list[Point]]:
    """Return member -> points whose objective is not provisional, for each member with such points.

    controls: True to include the control group.
    """
    left_out: frozenset[int] = frozenset() if controls else history.controls
    curves = {m: points for m, points in history.curves.items() if m not in left_out}
    return {m: known for m, points in curves.items() if (known := [p for p in points if p.drawn is not None])}


def top_mean(curves: Sequence[Sequence[Point]], count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a grid of frames, and the mean of the highest `count` curves at each point of the grid.

    At points where fewer than `count` curves have data, the mean of the curves with data is returned.
    Points without data are left out.
    The grid begins where half of the curves have begun. Because members have different numbers of frames at one time,
    each curve is extended at both ends by 4 % of the grid's last frame. A curve that reaches 90 % of this frame is
    extended to the end of the grid.
    """
    first, last = float(np.median([c[0].frames for c in curves])), max(c[-1].frames for c in curves)
    grid = np.linspace(first, last, GRID_POINTS)
    margin = 0.04 * last
    table = np.full((len(curves), GRID_POINTS), -np.inf)
    for line, points in zip(table, curves, strict=True):
        frames = [p.frames for p in points]
        inside = (grid >= frames[0] - margin) & ((grid <= frames[-1] + margin) | (frames[-1] >= 0.9 * last))
        line[inside] = np.interp(grid[inside], frames, [p.objective or 0.0 for p in points])
    best = -np.sort(-table, axis=0)[:count]
    known = np.isfinite(best)
    reached = known.any(axis=0)
    return grid[reached], np.where(known, best, 0.0).sum(axis=0)[reached] / known.sum(axis=0)[reached]


def schedules(history: History) -> style.Drawn:
    """Draw the values in `History.varied` over the training frames of the weights. The best member's line is thick."""
    if all(len({tuple(n.values.items()) for n in history.lineage.path(m)}) == 1 for m in history.last):
        return "No member's values changed during the run."
    lineage = history.lineage
    figure, all_axes = style.panels(len(history.varied))
    best = history.ranking[:1]
    for name, axes in zip(history.varied, all_axes, strict=True):
        scale = style.ValueAxis.of(
            name, [n.values[name] for n in lineage.nodes], history.options.choices.get(name, ())
        )
        ends = ((n, scale.drawn(n.values[name])) for n in lineage.nodes)
        tried = [[(n.trained, y), (lineage.end_trained(n.key), y)] for n, y in ends]
        axes.add_collection(LineCollection(tried, colors="#c3cad6", linewidths=0.8, capstyle="projecting"))
        for member in sorted(history.last, key=lambda m: m in best):  # the best member last, on top
            line = lineage.line(history.last[member].key)
            x = [n.trained for n in line] + [lineage.end_trained(line[-1].key)]
            y = [scale.drawn(n.values[name]) for n in [*line, line[-1]]]
            colour, width = (style.BEST, 2.2) if member in best else ("#5b7083", 0.9)
            axes.step(x, y, where="post", color=colour, lw=width)
        for node in (lineage[key] for key, typed in lineage.typed.items() if name in typed):
            axes.axvline(node.trained, color="#8a5a00", lw=0.8, ls=":")
        axes.autoscale_view()
        scale.dress(axes)
        axes.set_title(scale.label)
        style.frames_axis(axes, "")
    dotted = "; dotted: you gave values at a resume" if lineage.typed else ""
    figure.supxlabel(f"training frames of the weights{dotted}", fontsize=8.5)
    return figure


def forest(history: History) -> style.Drawn:
    """Draw the lineages: a horizontal line per set of weights, coloured by objective, and a vertical line per copy."""
    lineage = history.lineage
    if not any(history.objective(node) is not None for node in lineage.nodes):
        return "No member has a score yet."
    if not history.is_search and all(node.parent is None for node in lineage.nodes):
        return "No member was changed: no weights were copied."
    layout = Layout.of(history)
    norm, colours = style.colour_scale([o for n in lineage.nodes if (o := history.objective(n)) is not None])
    figure = style.new_figure(layout.height + 0.7)
    axes = figure.subplots()
    axes.add_collection(_branches(history, layout, norm, colours))
    _label_members(axes, history, layout)
    axes.set_ylim(layout.bottom, 0)
    longest = max(lineage.end_trained(n.key) for n in lineage.nodes)
    style.frames_axis(axes, "training frames of the weights")
    axes.set_xlim(0, max(longest, 1) * 1.04)
    axes.grid(visible=False, axis="y")
    axes.yaxis.set_visible(False)
    axes.spines["left"].set_visible(False)
    shrink = min(0.9, 3.5 / layout.height)
    bar = figure.colorbar(colours, ax=axes, pad=0.01, aspect=22, shrink=shrink, anchor=(0, 1))
    bar.set_label("last known objective")
    bar.outline.set_visible(False)
    return figure


def _branches(history: History, layout: Layout, norm: Normalize, colours: ScalarMappable) -> LineCollection:
    """Return the lines of all nodes of the lineages and of all copies.

    The line of a node is thick up to its training frames in `ancestors`, and thin after them. The lines of nodes that
    `ancestors` does not contain are thin.
    """
    lineage, ancestor_until = history.lineage, ancestors(history)
    thick = min(4.0, max(0.8, 0.35 * layout.points_per_lane))
    lines, shades, widths = [], [], []
    for node in lineage.nodes:
        objective = history.objective(node)
        shade = style.UNKNOWN if objective is None else to_hex(colours.cmap(norm(objective)))
        y, begin, end = layout.y[node.key], node.trained, lineage.end_trained(node.key)
        until = ancestor_until.get(node.key, begin)
        parts = [([(begin, y), (until, y)], thick), ([(until, y), (end, y)], 0.55 * thick)]
        if node.parent is not None and layout.y[node.parent] != y:
            parts.append(([(begin, layout.y[node.parent]), (begin, y)], 0.8))
        for line, width in parts:
            lines.append(line)
            shades.append(shade)
            widths.append(width)
    return LineCollection(lines, colors=shades, linewidths=widths, capstyle="butt")


def _label_members(axes: Axes, history: History, layout: Layout) -> None:
    size = min(8.0, max(4.0, 0.75 * layout.points_per_lane))
    for member, node in history.last.items():
        at = history.lineage.end_trained(node.key), layout.y[node.key]
        colour, weight = style.CONTROL if member in history.controls else style.INK, "normal"
        if member == history.best:
            colour, weight = style.BEST, "bold"
        _write(axes, f"{member}", at, (3, 0), va="center", fontsize=size, fontweight=weight, color=colour)


def phases(history: History) -> style.Drawn:
    """Draw the scores at the end of each phase of a search, and the number of members that began the phase."""
    if not history.is_search:
        return NO_PHASES
    figure = style.new_figure(4.6)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[1.6, 1])
    numbers = list(range(1 + max(p.number for p in history.phases)))
    _draw_scores(upper, history, numbers)
    _draw_counts(lower, history, numbers)
    return figure


def _draw_scores(axes: Axes, history: History, numbers: Sequence[int]) -> None:
    rng = np.random.default_rng(0)
    for outcome, colour, marker, label in (
        ("evicted", "#b91c1c", "x", "evicted"),
        ("on", style.TOP, "o", "continued"),
        ("completed", "#15803d", "D", "completed"),
    ):
        scored = [p for p in history.phases if p.outcome == outcome and p.score is not None]
        jitter = rng.uniform(-0.16, 0.16, len(scored))
        axes.scatter(
            [p.number + j for p, j in zip(scored, jitter, strict=True)],
            np.array([p.score for p in scored], dtype=float),
            s=18 if marker == "o" else 22,
            marker=marker,
            c=colour,
            alpha=0.8,
            linewidths=1.0 if marker == "x" else 0,
            label=f"{label} ({len(scored)})",
        )
    for number in numbers:
        scores = [p.score for p in history.phases if p.number == number and p.score is not None]
        if scores:
            axes.plot(
                [number - 0.3, number + 0.3], [float(np.median(scores))] * 2, color=style.INK, linewidth=1.4
            )
    axes.plot([], [], color=style.INK, linewidth=1.4, label="median")
    axes.set_ylabel("score at the phase's end")
    axes.legend(ncols=4, loc="lower left", bbox_to_anchor=(0, 1.0), borderaxespad=0.2)


def _draw_counts(axes: Axes, history: History, numbers: Sequence[int]) -> None:
    began = [sum(p.number == n for p in history.phases) for n in numbers]
    bars = axes.bar(numbers, began, width=0.6, color=style.FAINT)
    axes.bar_label(bars, fontsize=7.5, label_type="center")
    if history.options.controller in ("hypertrick", "successive-halving"):
        rate = history.options.search.eviction_rate  # Heinrich and Frosio 2019, equation 1
        expected = [len(history.last) * (1 - rate) ** n for n in numbers]
        axes.plot(numbers, expected, color=style.TOP, marker=".", linewidth=1, label="expected: W0 (1 - r)^p")
        axes.legend(loc="upper right")
    axes.margins(y=0.15)
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.set_ylabel("members that began the phase")
    axes.set_xlabel("phase")
    axes.xaxis.set_major_locator(MaxNLocator(20, integer=True))
    axes.grid(visible=False, axis="x")
