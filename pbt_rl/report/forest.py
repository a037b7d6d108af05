"""The phylogenetic forest of a population: which weights descend from which."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize, to_hex

from pbt_rl.report.lanes import Layout, ancestors
from pbt_rl.report.read import History
from pbt_rl.report.style import BEST, CONTROL, INK, UNKNOWN, Drawn, colour_scale, frames_axis, new_figure


def forest(history: History) -> Drawn:
    """Draw the phylogenetic forest: a lane is one set of weights, a branch is a copy; coloured by objective."""
    lineage = history.lineage
    if not lineage.nodes:
        return "No member has started."
    layout = Layout.of(history)
    norm, colours = colour_scale([o for n in lineage.nodes if (o := history.objective(n)) is not None])
    figure = new_figure(layout.height + 0.7)
    axes = figure.subplots()
    axes.add_collection(_branches(history, layout, norm, colours))
    _label_members(axes, history, layout)
    axes.set_ylim(layout.bottom, 0)
    longest = max(lineage.end_trained(n.key) for n in lineage.nodes)
    frames_axis(axes, "frames of training of the weights")
    axes.set_xlim(0, max(longest, 1) * 1.04)
    axes.grid(visible=False, axis="y")
    axes.yaxis.set_visible(False)
    axes.spines["left"].set_visible(False)
    if lineage.objectives:
        shrink = min(0.9, 3.5 / layout.height)
        bar = figure.colorbar(colours, ax=axes, pad=0.01, aspect=22, shrink=shrink, anchor=(0, 1))
        bar.set_label("last known objective")
        bar.outline.set_visible(False)
    return figure


def _branches(history: History, layout: Layout, norm: Normalize, colours: ScalarMappable) -> LineCollection:
    """Return a thick line per node up to where it is an ancestor of a last member, thinner beyond, and the copies."""
    lineage, ancestor_until = history.lineage, ancestors(history)
    thick = min(4.0, max(0.8, 0.35 * layout.points_per_lane))
    lines, shades, widths = [], [], []
    for node in lineage.nodes:
        objective = history.objective(node)
        shade = UNKNOWN if objective is None else to_hex(colours.cmap(norm(objective)))
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
    for member, node in history.last.items():
        best = history.ranking[:1] == [member]
        axes.annotate(
            f"{member}",
            (history.lineage.end_trained(node.key), layout.y[node.key]),
            xytext=(3, 0),
            textcoords="offset points",
            va="center",
            fontsize=min(8.0, max(4.0, 0.75 * layout.points_per_lane)),
            fontweight="bold" if best else "normal",
            color=BEST if best else CONTROL if member in history.controls else INK,
        )
