"""Layout of the figure of the lineages. A lane is a horizontal line: one set of weights during training."""

from __future__ import annotations

from dataclasses import dataclass

from pbt_rl.controllers.decisions import StateKey
from pbt_rl.controllers.lineage import Node
from pbt_rl.record.history import History

THIN_LANE = 0.3
"""Height of a lane whose weights were replaced, relative to a lane whose weights a member still has at the end."""


@dataclass(frozen=True)
class Layout:
    """Vertical positions of the nodes in the figure of the lineages. The unit is the height of a full lane.

    y: node as (member, generation) -> position, downwards from 0 to `bottom`. height: height of the axes in inches.
    """

    y: dict[StateKey, float]
    bottom: float
    height: float

    @classmethod
    def of(cls, history: History) -> Layout:
        """Return the layout that stacks the lanes of a history vertically."""
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
        """Approximate height in points (1/72 inch) of a lane whose weights a member still has at the end."""
        return self.height * 72 / (self.bottom + 3)


def ancestors(history: History) -> dict[StateKey, int]:
    """Return (member, generation) -> training frames, up to which the line of a node is drawn thick.

    The result contains the last node of each member, and all ancestors of these nodes. The number of a last node is its
    training frames at its end. The number of an ancestor is the training frames at which the latest of its children in
    the result begins.
    """
    found: dict[StateKey, int] = {}
    for node in history.last.values():
        key: StateKey | None = node.key
        until = history.lineage.end_trained(node.key)
        while key is not None and found.get(key, -1) < until:
            found[key] = until
            until, key = history.lineage[key].trained, history.lineage[key].parent
    return found


def _lanes(history: History) -> list[list[Node]]:
    """Return the lanes, sorted by tree. A lane is a list of nodes. Each node continues the previous node of its lane.

    The lane of a copy is below the donor's lane. Later copies are nearer to the donor, because the vertical lines of
    copies then cross fewer lanes.
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
