"""Figures of the whole population. Each is drawn from a record, or says in a sentence why there is nothing to draw."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from pbt_rl.pbt.decisions import StateKey
from pbt_rl.pbt.lineage import Node
from pbt_rl.report.read import Point, Record
from pbt_rl.report.style import (
    BEST,
    FAINT,
    INK,
    TOP,
    UNKNOWN,
    ValueAxis,
    colour_scale,
    frames_axis,
    new_figure,
    panels,
    short,
    time_axis,
)

Drawn = Figure | str
GRID_POINTS = 400


def forest(record: Record) -> Drawn:
    """Phylogenetic forest: a row is one set of weights, a branch is a copy; coloured by objective."""
    lineage = record.lineage
    rows = _rows(record)
    if not rows:
        return "No member has begun."
    last = {node.key for node in record.last.values()}
    weights = [1.0 if row[-1].key in last else 0.3 for row in rows]
    height = min(11.0, max(2.4, 0.2 * sum(weights)))
    points_per_row = height * 72 / (sum(weights) + 3)
    row_of: dict[StateKey, float] = {}
    at = 0.0
    for row, weight in zip(rows, weights, strict=True):
        row_of.update({node.key: at + weight / 2 for node in row})
        at += weight
    surviving = _lines(record)
    thick = min(4.0, max(0.8, 0.35 * points_per_row))
    norm, colours = colour_scale([o for n in lineage.nodes if (o := record.objective(n)) is not None])
    lines, shades, widths = [], [], []

    def add(begin: tuple[float, float], end: tuple[float, float], width: float, shade: str) -> None:
        lines.append([begin, end])
        shades.append(shade)
        widths.append(width)

    for node in lineage.nodes:
        reached = record.objective(node)
        shade = UNKNOWN if reached is None else to_hex(colours.cmap(norm(reached)))
        y, begin, end = row_of[node.key], node.trained, lineage.end_trained(node.key)
        until = surviving.get(node.key, begin)
        add((begin, y), (until, y), thick, shade)
        add((until, y), (end, y), 0.55 * thick, shade)
        if node.parent is not None and row_of[node.parent] != y:
            add((begin, row_of[node.parent]), (begin, y), 0.8, shade)
    figure = new_figure(height + 0.7)
    axes = figure.subplots()
    axes.add_collection(LineCollection(lines, colors=shades, linewidths=widths, capstyle="butt"))
    for member, node in record.last.items():
        x, y = lineage.end_trained(node.key), row_of[node.key]
        axes.annotate(
            f"{member}",
            (x, y),
            xytext=(3, 0),
            textcoords="offset points",
            va="center",
            fontsize=min(8.0, max(4.0, 0.75 * points_per_row)),
            fontweight="bold" if record.ranking[:1] == [member] else "normal",
            color=BEST if record.ranking[:1] == [member] else INK,
        )
    axes.set_ylim(at, 0)
    longest = max(lineage.end_trained(n.key) for n in lineage.nodes)
    frames_axis(axes, "frames that the weights were trained on")
    axes.set_xlim(0, max(longest, 1) * 1.04)
    axes.grid(visible=False, axis="y")
    axes.yaxis.set_visible(False)
    axes.spines["left"].set_visible(False)
    if lineage.objectives:
        bar = figure.colorbar(
            colours, ax=axes, pad=0.01, aspect=22, shrink=min(0.9, 3.5 / height), anchor=(0, 1)
        )
        bar.set_label("objective when last seen")
        bar.outline.set_visible(False)
    return figure


def _lines(record: Record) -> dict[StateKey, int]:
    """Nodes that the last weights of some member descend from, and how far those were trained in each."""
    found: dict[StateKey, int] = {}
    for node in record.last.values():
        key: StateKey | None = node.key
        until = record.lineage.end_trained(node.key)
        while key is not None and found.get(key, -1) < until:
            found[key] = until
            until, key = record.lineage[key].trained, record.lineage[key].parent
    return found


def _rows(record: Record) -> list[list[Node]]:
    """Nodes that follow each other in place, tree by tree; a copy's row lies below its donor's, later copies nearer,
    so that no branch crosses a row.
    """
    lineage = record.lineage
    rows = []
    stack = [n.key for n in reversed(lineage.nodes) if n.parent is None]
    while stack:
        row = [lineage[stack.pop()]]
        branches = []
        while True:
            going_on = None
            for key in lineage.children(row[-1].key):
                if lineage[key].base is None:
                    going_on = lineage[key]
                else:
                    branches.append(key)
            if going_on is None:
                break
            row.append(going_on)
        rows.append(row)
        stack += sorted(branches, key=lambda key: lineage[key].trained)
    return rows


def objective(record: Record) -> Drawn:
    """Every member's objective, faint, and the mean of the best fifth at each number of frames, thick."""
    curves = {m: c for m, points in record.curves.items() if len(c := _known(points)) > 0}
    if not curves:
        return "No episode has counted yet."
    figure = new_figure(3.6)
    axes = figure.subplots()
    for points in curves.values():
        marker = "o" if len(points) == 1 else None
        axes.plot(
            [p.frames for p in points],
            np.array([p.objective for p in points], dtype=float),
            color=FAINT,
            alpha=0.75 if len(curves) <= 12 else 0.45,
            linewidth=0.9,
            marker=marker,
            markersize=3,
        )
    count = max(1, math.ceil(len(record.last) / 5))
    grid, top = _top_mean(list(curves.values()), count)
    name = "the best member" if count == 1 else f"mean of the best {count} of {len(record.last)}"
    axes.plot(grid, top, color=TOP, linewidth=2.4, label=f"{name} at each point")
    axes.plot([], [], color=FAINT, linewidth=0.9, label="members")
    axes.set_ylabel("objective")
    frames_axis(axes)
    axes.legend(loc="upper left", bbox_to_anchor=(0, 1.1), ncols=2, borderaxespad=0)
    return figure


def _known(points: Sequence[Point]) -> list[Point]:
    return [p for p in points if p.objective is not None]


def _top_mean(curves: Sequence[Sequence[Point]], count: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean of the highest `count` curves at each number of frames; fewer where fewer came that far.

    It begins where half of the curves have begun, and members that were seen together do not have the same frames: a
    curve counts a little beyond its ends, and to the last frame if it ends close to it.
    """
    first, last = float(np.median([c[0].frames for c in curves])), max(c[-1].frames for c in curves)
    grid = np.linspace(first, last, GRID_POINTS)
    margin = 0.04 * last
    table = np.full((len(curves), GRID_POINTS), -np.inf)
    for row, points in zip(table, curves, strict=True):
        frames = [p.frames for p in points]
        inside = (grid >= frames[0] - margin) & ((grid <= frames[-1] + margin) | (frames[-1] >= 0.9 * last))
        row[inside] = np.interp(grid[inside], frames, [p.objective or 0.0 for p in points])
    best = -np.sort(-table, axis=0)[:count]
    known = np.isfinite(best)
    reached = known.any(axis=0)
    return grid[reached], np.where(known, best, 0.0).sum(axis=0)[reached] / known.sum(axis=0)[reached]


def schedules(record: Record) -> Drawn:
    """Every tuned value along the lineages: all that was tried faint, what made the last members, the best's thick."""
    if all(len({tuple(n.values.items()) for n in record.lineage.path(m)}) == 1 for m in record.last):
        return "No member's values changed during the run."
    lineage = record.lineage
    figure, all_axes = panels(len(record.varied))
    best = record.ranking[:1]
    for name, axes in zip(record.varied, all_axes, strict=True):
        scale = ValueAxis.of(name, [n.values[name] for n in lineage.nodes])
        tried = [
            [
                (n.trained, scale.drawn(n.values[name])),
                (lineage.end_trained(n.key), scale.drawn(n.values[name])),
            ]
            for n in lineage.nodes
        ]
        axes.add_collection(LineCollection(tried, colors="#c3cad6", linewidths=0.8, capstyle="projecting"))
        for member in sorted(record.last, key=lambda m: m in best):  # the best last: on top
            line = lineage.line(record.last[member].key)
            x = [n.trained for n in line] + [lineage.end_trained(line[-1].key)]
            y = [scale.drawn(n.values[name]) for n in [*line, line[-1]]]
            axes.step(
                x,
                y,
                where="post",
                color=BEST if member in best else "#5b7083",
                lw=2.2 if member in best else 0.9,
            )
        axes.autoscale_view()
        scale.dress(axes, "y")
        axes.set_title(scale.label)
        frames_axis(axes, "")
    figure.supxlabel("frames that the weights were trained on", fontsize=8.5)
    return figure


def spread(record: Record) -> Drawn:
    """How wide the population is: its objectives, its values, and how many founders have descendants."""
    seen = [
        (m, [p.objective for p in m.points if p.member in m.present and p.objective is not None])
        for m in record.moments
    ]
    seen = [(m, objectives) for m, objectives in seen if objectives]
    if len(seen) < 2:
        return "The population was not seen often enough."
    rows = 3 if record.varied else 2
    figure = new_figure(1.9 * rows + 0.3)
    all_axes = list(figure.subplots(rows, 1, sharex=True, squeeze=False).flat)
    unit = 1.0
    if record.is_search:
        unit = time_axis(all_axes[-1], record.seconds)
    x = np.array([m.seconds / unit if record.is_search else m.frames for m, _ in seen])
    low, first, middle, third, high = np.array([np.quantile(o, [0, 0.25, 0.5, 0.75, 1]) for _, o in seen]).T
    axes = all_axes[0]
    axes.fill_between(x, low, high, color=TOP, alpha=0.12, linewidth=0, label="worst to best")
    axes.fill_between(x, first, third, color=TOP, alpha=0.25, linewidth=0, label="middle half")
    axes.plot(x, middle, color=TOP, linewidth=1.8, label="median")
    axes.set_title("objectives of the members")
    axes.legend(loc="upper left", bbox_to_anchor=(0.45, 1.2), ncols=3, borderaxespad=0)
    if record.varied:
        _draw_diversity(record, all_axes[1], unit)
    axes = all_axes[-1]
    began = [0.0] + [m.seconds / unit if record.is_search else m.frames for m in record.moments]
    left = [len(record.last)] + [len(m.left) if record.is_search else m.roots for m in record.moments]
    axes.step(began, left, where="post", color=INK, linewidth=1.6)
    axes.set_ylim(0, len(record.last) + 0.5)
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.set_title("members that are not stopped" if record.is_search else "founders that have descendants")
    if not record.is_search:
        frames_axis(axes, "frames of each member (the least of any)")
    return figure


def _draw_diversity(record: Record, axes: Axes, unit: float) -> None:
    moments = [m for m in record.moments if m.nodes]
    x = [m.seconds / unit if record.is_search else m.frames for m in moments]
    for name in record.varied:
        scale = ValueAxis.of(name, [n.values[name] for n in record.lineage.nodes])
        spreads = [_deviation([scale.drawn(n.values[name]) for n in m.nodes], log=scale.log) for m in moments]
        axes.plot(x, np.array(spreads) / (max(spreads) or 1), drawstyle="steps-pre", lw=1.1, label=name)
    axes.set_ylim(0, 1.05)
    axes.set_title("deviation of each value over the members, relative to its widest")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=7)


def _deviation(values: Sequence[float], *, log: bool) -> float:
    return float(np.std(np.log(values) if log else np.array(values)))


def hypers(record: Record) -> Drawn:
    """Objective of every member when last seen against each of its values then."""
    known = [node for node in record.last.values() if record.objective(node) is not None]
    if not record.varied or len(known) < 2:
        return "There is nothing to compare: fewer than two members with an objective, or all with the same values."
    objectives = record.lineage.objectives
    frames = [record.curves[node.member][-1].frames for node in known]
    uneven = max(frames) > 1.2 * min(frames)
    figure, all_axes = panels(len(record.varied))
    best = record.last[record.ranking[0]]
    earlier = [n for n in record.lineage.nodes if n not in known and record.objective(n) is not None]
    for name, axes in zip(record.varied, all_axes, strict=True):
        scale = ValueAxis.of(name, [n.values[name] for n in [*known, *earlier]])
        axes.scatter(
            [scale.drawn(n.values[name]) for n in earlier],
            [objectives[n.key] for n in earlier],
            s=12,
            color="#c3cad6",
        )
        dots = axes.scatter(
            [scale.drawn(n.values[name]) for n in known],
            [objectives[n.key] for n in known],
            c=frames if uneven else TOP,
            cmap="viridis_r" if uneven else None,
            s=26,
            edgecolors="white",
            linewidths=0.4,
        )
        axes.scatter(
            [scale.drawn(best.values[name])],
            [objectives[best.key]],
            s=80,
            facecolors="none",
            edgecolors=BEST,
            linewidths=1.4,
        )
        scale.dress(axes, "x")
        axes.set_title(scale.label)
    if uneven:
        bar = figure.colorbar(dots, ax=all_axes, aspect=40, pad=0.01)
        bar.set_label("frames of the member")
        bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: short(v)))
    figure.supylabel("objective when last seen", fontsize=8.5)
    if len(known) < len(record.last):
        note = f"{len(known)} of {len(record.last)} members: no episode of the others has counted since they changed"
        figure.supxlabel(note, fontsize=8)
    return figure
