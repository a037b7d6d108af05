"""Who descends from whom, rebuilt from the events of a journal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pbt_rl.pbt.decisions import Continue, Decision, Key, Mutate, Replace, Stop, decision_from_dict
from pbt_rl.pbt.hypers import Values


@dataclass(frozen=True)
class Node:
    """One member between two changes.

    frames: the population's clock when it began. parent: whom its weights came from, None for fresh ones.
    depth: how many changes lie between the fresh weights and this node.
    """

    member: int
    generation: int
    frames: int
    values: Values
    parent: Key | None
    depth: int

    @property
    def key(self) -> Key:
        """(member, generation)"""
        return self.member, self.generation


class Lineage:
    """The family tree of a run. It grows with `begin` and `apply`; `from_events` does that from a journal."""

    def __init__(self) -> None:
        self._nodes: dict[Key, Node] = {}
        self._present: dict[int, Key] = {}

    @classmethod
    def from_events(cls, events: Iterable[Mapping[str, Any]]) -> Lineage:
        """Read the `initial` and `round` events; all others are passed over."""
        lineage = cls()
        for event in events:
            if event["event"] == "initial":
                lineage.begin([{k: float(v) for k, v in values.items()} for values in event["values"]])
            elif event["event"] == "round":
                lineage.apply(event["frames"], [decision_from_dict(d) for d in event["decisions"]])
        return lineage

    def begin(self, values: list[Values]) -> None:
        """Fresh members 0, 1, ... at frame 0."""
        for member, own in enumerate(values):
            self._add(Node(member, 0, 0, own, parent=None, depth=0))

    def apply(self, frames: int, decisions: Iterable[Decision]) -> None:
        """One comparison. Its decisions hold at once: a donor is what it was before any of them."""
        before = {member: self._nodes[key] for member, key in self._present.items()}
        for decision in decisions:
            if isinstance(decision, Continue):
                continue
            if isinstance(decision, Stop):
                del self._present[decision.member]
                continue
            own = before[decision.member]
            parent = _weights_from(decision, own, before)
            depth = parent.depth + 1 if parent else 0
            key = parent.key if parent else None
            self._add(Node(own.member, own.generation + 1, frames, decision.values, key, depth))

    def _add(self, node: Node) -> None:
        self._nodes[node.key] = node
        self._present[node.member] = node.key

    @property
    def members(self) -> list[int]:
        """Ids of the members that have not been stopped."""
        return sorted(self._present)

    def present(self, member: int) -> Node:
        """The member as it is now. KeyError for one that was stopped or never was."""
        return self._nodes[self._present[member]]

    def ancestry(self, member: int) -> list[Node]:
        """From the fresh weights (the root) down to the member's present node."""
        node = self.present(member)
        line = [node]
        while node.parent is not None:
            node = self._nodes[node.parent]
            line.append(node)
        return line[::-1]

    def root(self, member: int) -> Node:
        """The fresh weights that the member's present ones descend from."""
        return self.ancestry(member)[0]

    def history(self, member: int) -> list[tuple[int, Values]]:
        """The schedule that made the member's present weights: (from these frames on, values), root first."""
        return [(node.frames, node.values) for node in self.ancestry(member)]

    def surviving_roots(self) -> set[Key]:
        """Roots of the members that have not been stopped. Without restarts it never grows."""
        return {self.root(member).key for member in self._present}


def _weights_from(decision: Decision, own: Node, before: Mapping[int, Node]) -> Node | None:
    if isinstance(decision, Replace) and decision.copy != "hypers":
        return before[decision.donor]
    return own if isinstance(decision, Mutate | Replace) else None
