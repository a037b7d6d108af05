"""The phylogenetic forest of a population: which weights descend from which."""

from __future__ import annotations

from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize, to_hex

from pbt_rl.pbt.decisions import StateKey
from pbt_rl.pbt.lineage import Node
from pbt_rl.report.read import History
from pbt_rl.report.style import BEST, INK, UNKNOWN, Drawn, colour_scale, frames_axis, new_figure

THIN_LANE = 0.3
"""Height of a lane that died out, relative to the lane of a member."""


@dataclass(frozen=True)
class Layout:
    """Where each node is drawn. y: of each node, downwards. height: of the axes, in inches."""

    y: dict[StateKey, float]
    bottom: float
    height: float

    @classmethod
    def of(cls, history: History) -> Layout:
        """Stack the lanes."""
        last = {node.key for node in history.last.values()}
        y: dict[StateKey, float] = {}
        bottom = 0.0
        for lane in _lanes(history):
            weight = 1.0 if lane[-1].key in last else THIN_LANE
            y.update({node.key: bottom + weight / 2 for node in lane})
            bottom += weight
        return cls(y, bottom, min(11.0, max(2.4, 0.2 * bottom)))

    @property
    def points_per_lane(self) -> float:
        """Height of a member's lane, in points."""
        return self.height * 72 / (self.bottom + 3)


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
    lineage, ancestors = history.lineage, _ancestors(history)
    thick = min(4.0, max(0.8, 0.35 * layout.points_per_lane))
    lines, shades, widths = [], [], []
    for node in lineage.nodes:
        objective = history.objective(node)
        shade = UNKNOWN if objective is None else to_hex(colours.cmap(norm(objective)))
        y, begin, end = layout.y[node.key], node.trained, lineage.end_trained(node.key)
        until = ancestors.get(node.key, begin)
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
            color=BEST if best else INK,
        )


def _ancestors(history: History) -> dict[StateKey, int]:
    """Return the ancestors of the last weights of all members, each with the frames up to which it is an ancestor."""
    found: dict[StateKey, int] = {}
    for node in history.last.values():
        key: StateKey | None = node.key
        until = history.lineage.end_trained(node.key)
        while key is not None and found.get(key, -1) < until:
            found[key] = until
            until, key = history.lineage[key].trained, history.lineage[key].parent
    return found


def _lanes(history: History) -> list[list[Node]]:
    """Return the nodes that continue each other in place, tree by tree.

    The lane of a copy lies below that of its donor, later copies nearer, so that no branch crosses a lane.
    """
    lineage = history.lineage
    lanes = []
    stack = [n.key for n in reversed(lineage.nodes) if n.parent is None]
    while stack:
        lane = [lineage[stack.pop()]]
        branches = []
        while True:
            successor = None
            for key in lineage.children(lane[-1].key):
                if lineage[key].base is None:
                    successor = lineage[key]
                else:
                    branches.append(key)
            if successor is None:
                break
            lane.append(successor)
        lanes.append(lane)
        stack += sorted(branches, key=lambda key: lineage[key].trained)
    return lanes
