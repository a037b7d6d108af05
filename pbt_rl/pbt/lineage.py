"""Who descends from whom, rebuilt from the events of a journal.

Words, Orion's (`orion.algo.pbt.pbt.LineageNode`): a node's *parent* is whom its weights came from; its *base* is the
member's own node that was dropped for it, where the weights came from elsewhere; the dropped node's *jumps* are the
nodes it was dropped for. The *true ancestor* is the base if there is one, else the parent: so the true ancestors are
the path of one worker, here of one member, and no node lies on two paths.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pbt_rl.pbt.decisions import Continue, Decision, Mutate, Replace, StateKey, Stop, decision_from_dict
from pbt_rl.pbt.hypers import Values


@dataclass(frozen=True)
class Node:
    """One member between two changes.

    frames: the population's clock when it began. own_frames: the member's own count then. trained: how many frames
    its weights had been trained on then, over all their ancestors; along a lineage it never falls.
    parent: whom its weights came from, None for fresh ones. base: what was dropped for it.
    depth: how many changes lie between the fresh weights and this node.
    """

    member: int
    generation: int
    frames: int
    values: Values
    parent: StateKey | None
    depth: int
    base: StateKey | None = None
    own_frames: int = 0
    trained: int = 0

    @property
    def key(self) -> StateKey:
        """(member, generation)"""
        return self.member, self.generation


class Lineage:
    """The family tree of a run. It grows with `begin`, `measure` and `apply`; `from_events` does that from a journal.

    objectives: the mean objective of each node when it was last seen; may hold NaN and infinities.
    """

    def __init__(self) -> None:
        self.objectives: dict[StateKey, float] = {}
        self._nodes: dict[StateKey, Node] = {}
        self._present: dict[int, StateKey] = {}
        self._roots: dict[StateKey, StateKey] = {}
        self._children: defaultdict[StateKey, list[StateKey]] = defaultdict(list)
        self._jumps: defaultdict[StateKey, list[StateKey]] = defaultdict(list)
        self._seen_frames: dict[StateKey, int] = {}

    @classmethod
    def from_events(cls, events: Iterable[Mapping[str, Any]]) -> Lineage:
        """Read the `initial`, `round` and `progress` events; all others are passed over."""
        lineage = cls()
        for event in events:
            lineage.take(event)
        return lineage

    def take(self, event: Mapping[str, Any]) -> None:
        """Read one event."""
        if event["event"] == "initial":
            self.begin([{k: float(v) for k, v in values.items()} for values in event["values"]])
        elif event["event"] == "round":
            for m in event.get("report", {}).get("members", ()):
                self.measure((m["member"], m["generation"]), m["frames"], mean(map(float, m["objectives"])))
            self.apply(event["frames"], [decision_from_dict(d) for d in event["decisions"]])
        elif event["event"] == "progress":
            for m in event["members"]:
                objective = None if m["objective"] is None else float(m["objective"])
                self.measure((m["member"], m["generation"]), m["frames"], objective)

    def begin(self, values: list[Values]) -> None:
        """Fresh members 0, 1, ... at frame 0."""
        for member, own in enumerate(values):
            self._add(Node(member, 0, 0, own, parent=None, depth=0))

    def measure(self, key: StateKey, frames: int, objective: float | None) -> None:
        """A node was seen at so many frames of its member. No objective leaves the one before."""
        if key in self._nodes:
            self._seen_frames[key] = frames
            if objective is not None:
                self.objectives[key] = objective

    def apply(self, frames: int, decisions: Iterable[Decision]) -> None:
        """One comparison. Its decisions hold at once: a donor is what it was before any of them.

        A remembered state is taken to be as old as its node's end: when it was put away is not recorded.
        """
        before = {member: self._nodes[key] for member, key in self._present.items()}
        for decision in decisions:
            if isinstance(decision, Continue):
                continue
            if isinstance(decision, Stop):
                del self._present[decision.member]
                continue
            own = before[decision.member]
            parent = self._weights_from(decision, own, before)
            self._add(
                Node(
                    own.member,
                    own.generation + 1,
                    frames,
                    decision.values,
                    parent=parent.key if parent else None,
                    depth=parent.depth + 1 if parent else 0,
                    base=None if parent == own else own.key,
                    own_frames=self._own_frames(own, frames),
                    trained=self._trained(parent, frames) if parent else 0,
                )
            )

    def _weights_from(self, decision: Decision, own: Node, before: Mapping[int, Node]) -> Node | None:
        if isinstance(decision, Replace) and decision.copy != "hypers":
            if decision.donor_generation is not None:
                return self._nodes[decision.donor, decision.donor_generation]
            return before[decision.donor]
        return own if isinstance(decision, Mutate | Replace) else None

    def _own_frames(self, node: Node, clock: int) -> int:
        return self._seen_frames.get(node.key, clock)

    def _trained(self, node: Node, clock: int) -> int:
        return node.trained + self._own_frames(node, clock) - node.own_frames

    def _add(self, node: Node) -> None:
        self._nodes[node.key] = node
        self._present[node.member] = node.key
        self._roots[node.key] = self._roots[node.parent] if node.parent else node.key
        if node.parent:
            self._children[node.parent].append(node.key)
        if node.base:
            self._jumps[node.base].append(node.key)

    # -- nodes ----------------------------------------------------------------------------------------------

    def __getitem__(self, key: StateKey) -> Node:
        return self._nodes[key]

    def __contains__(self, key: StateKey) -> bool:
        return key in self._nodes

    @property
    def nodes(self) -> list[Node]:
        """All nodes that ever were, oldest first."""
        return list(self._nodes.values())

    def children(self, key: StateKey) -> list[StateKey]:
        """Nodes whose weights came from this one, oldest first."""
        return list(self._children.get(key, ()))

    def jumps(self, key: StateKey) -> list[StateKey]:
        """Nodes that this one was dropped for."""
        return list(self._jumps.get(key, ()))

    def true_ancestor(self, key: StateKey) -> Node | None:
        """What the member was before: the base if there is one, else the parent; None at its start."""
        node = self._nodes[key]
        before = node.base or node.parent
        return self._nodes[before] if before else None

    def end_trained(self, key: StateKey) -> int:
        """Frames that the node's weights had been trained on when it was last seen."""
        node = self._nodes[key]
        return self._trained(node, node.own_frames)

    def line(self, key: StateKey) -> list[Node]:
        """From the fresh weights (the root) down to a node."""
        node = self._nodes[key]
        line = [node]
        while node.parent is not None:
            node = self._nodes[node.parent]
            line.append(node)
        return line[::-1]

    def at_depth(self, depth: int) -> list[Node]:
        """All nodes so many changes away from fresh weights, oldest first."""
        return [node for node in self._nodes.values() if node.depth == depth]

    # -- members --------------------------------------------------------------------------------------------

    @property
    def members(self) -> list[int]:
        """Ids of the members that have not been stopped."""
        return sorted(self._present)

    def present(self, member: int) -> Node:
        """The member as it is now. KeyError for one that was stopped or never was."""
        return self._nodes[self._present[member]]

    def path(self, member: int) -> list[Node]:
        """All that the member ever was, stopped or not, oldest first: the path of true ancestors."""
        path: list[Node] = []
        while (member, len(path)) in self._nodes:
            path.append(self._nodes[member, len(path)])
        return path

    def best(self, key: StateKey, max_depth: int | None = None) -> Node | None:
        """Best along the true ancestors, the node included; the older one where two are equal.

        None where no node of at most that depth has a finite objective.
        """
        known = [
            node
            for node in self.path(key[0])[: key[1] + 1]
            if math.isfinite(self.objectives.get(node.key, math.nan))
            and (max_depth is None or node.depth <= max_depth)
        ]
        return max(known, key=lambda node: self.objectives[node.key], default=None)

    def elites(self, max_depth: int | None = None) -> list[Node]:
        """The best node of each member's path, in order of id; of those of at most a depth where one is given."""
        ids = sorted({member for member, _ in self._nodes})
        best = (self.best(self.path(member)[-1].key, max_depth) for member in ids)
        return [node for node in best if node is not None]

    def ancestry(self, member: int) -> list[Node]:
        """From the fresh weights (the root) down to the member's present node."""
        return self.line(self._present[member])

    def root(self, member: int) -> Node:
        """The fresh weights that the member's present ones descend from."""
        return self._nodes[self._roots[self._present[member]]]

    def history(self, member: int) -> list[tuple[int, Values]]:
        """The schedule that made the member's present weights, root first: (frames they were trained on, values)."""
        return [(node.trained, node.values) for node in self.ancestry(member)]

    def surviving_roots(self) -> set[StateKey]:
        """Roots of the members that have not been stopped. Without restarts it never grows, but for one thing: a
        remembered state may bring back a root of which no member was left.
        """
        return {self._roots[key] for key in self._present.values()}


def mean(objectives: Iterable[float]) -> float | None:
    """Mean of a window; None of an empty one. A NaN or infinity in it shows in the answer."""
    values = list(objectives)
    return sum(values) / len(values) if values else None
