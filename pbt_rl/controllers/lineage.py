"""Family trees of a population, built from a journal or during `tune.run`. The root of a tree has initialised weights.

`Noise` counts replacements whose donor did not differ significantly from the replaced member.

A *node* is a member between two changes. Terms as in Orion (`orion.algo.pbt.pbt.LineageNode`):

    parent   node from which the weights were copied or continued
    base     previous node of the member, if this node began with a copy of weights or with a restart
    path     all nodes of a member, oldest first
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pbt_rl.controllers.changes import Change, changes, given
from pbt_rl.controllers.decisions import (
    Decision,
    Evaluate,
    PopulationReport,
    Replace,
    Restart,
    StateKey,
    donor_of,
    values_of,
)
from pbt_rl.controllers.events import Comparison, Event, Initial, Progress, Resume, Start
from pbt_rl.controllers.exploit_published import welch_p
from pbt_rl.controllers.hypers import Values
from pbt_rl.controllers.ready import COMPARE_NEWEST, since_comparison
from pbt_rl.errors import ConfigError


@dataclass(frozen=True)
class Node:
    """One member between two changes.

    frames: population clock at the start of the node. own_frames: frames of the member at the start of the node.
    trained: frames on which the weights and their ancestors were trained before the start of the node.
    parent: node from which the weights came. None for initialised weights. base: previous node of the member, if this
    node began with a copy of weights or with a restart. Otherwise None.
    depth: number of changes between the initialised weights and this node.
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
        """Key of the node: (member, generation)."""
        return self.member, self.generation


class Lineage:
    """All family trees of a run. `take` adds the nodes and measurements of an event of the journal.

    The key of a node is (member, generation). `line`, `end_trained` and indexing raise KeyError for an unknown key.
    objectives: key of a node -> last mean objective, which may be NaN or infinite.
    """

    def __init__(self) -> None:
        self.objectives: dict[StateKey, float] = {}
        self.typed: dict[StateKey, Values] = {}
        """Key of a node that started at a resume -> values that the user changed at this resume."""
        self._nodes: dict[StateKey, Node] = {}
        self._present: dict[int, StateKey] = {}
        self._roots: dict[StateKey, StateKey] = {}
        self._children: defaultdict[StateKey, list[StateKey]] = defaultdict(list)
        self._seen_frames: dict[StateKey, int] = {}

    def __repr__(self) -> str:
        """Return the number of members and the number of nodes."""
        return f"<Lineage of {len(self._present)} members with {len(self._nodes)} nodes>"

    @classmethod
    def from_events(cls, events: Iterable[Event]) -> Lineage:
        """Build the trees from the events of a journal. Raises ConfigError if an event contradicts previous events."""
        lineage = cls()
        for event in events:
            lineage.take(event)
        return lineage

    def take(self, event: Event) -> None:
        """Apply one event. Events without effect on the trees are ignored.

        Raises ConfigError if the event contradicts the previous events.
        """
        match event:
            case Initial(values=values):
                self._check_initial(values)
                self.add_first_members(list(values))
            case Comparison(frames=frames, report=report, decisions=decisions):
                self._check_round(report, decisions)
                for m in report.members:
                    newest = since_comparison(m).objectives or m.objectives
                    self.measure((m.member, m.generation), m.frames, mean(newest))
                self.apply(frames, changes(decisions, self.generations))
            case Resume(frames=frames, values=values) if values:
                nodes = [self.present(m) for m in self.members]
                if any(values.keys() - node.values.keys() for node in nodes):
                    raise ConfigError("the journal's event `resume` sets values that the members do not have")
                self.apply(frames, given(values, [(n.member, n.generation, n.values) for n in nodes]))
                self.typed.update({self._present[n.member]: values for n in nodes})
            case Progress(members=members):
                for p in members:
                    self.measure((p.member, p.generation), p.frames, p.objective)

    def _check_initial(self, values: Sequence[Values]) -> None:
        if self._nodes:
            raise ConfigError("the journal contains the event `initial` twice")
        if any(own.keys() != values[0].keys() for own in values):
            raise ConfigError("the journal's event `initial` gives its members different sets of values")

    def _check_round(self, report: PopulationReport, decisions: Sequence[Decision]) -> None:
        """Raise ConfigError if a comparison names members, values or donors that do not exist."""
        where = f"the journal's comparison at {report.frames} frames"
        for m in report.members:
            if m.member not in self._present:
                raise ConfigError(f"{where} reports member {m.member}, which does not exist")
        names = next(iter(self._nodes.values())).values.keys() if self._nodes else frozenset[str]()
        if len({d.member for d in decisions}) < len(decisions):
            raise ConfigError(f"{where} contains two decisions on one member")
        for d in decisions:
            values, donor = values_of(d), donor_of(d)
            if d.member not in self._present or (values is not None and values.keys() != names):
                raise ConfigError(
                    f"{where} decides on member {d.member}, which does not exist or has other values"
                )
            if donor is None:
                continue
            source = self._present.get(donor[0]) if donor[1] is None else donor
            if source not in self._nodes:
                raise ConfigError(f"{where} copies a state of member {donor[0]} that does not exist")

    def add_first_members(self, values: list[Values]) -> None:
        """Add initialised members 0, 1, ... at frame 0."""
        for member, own in enumerate(values):
            self._add(Node(member, 0, 0, own, parent=None, depth=0))

    def measure(self, key: StateKey, frames: int, objective: float | None) -> None:
        """Record frames and objective of a node. Unknown nodes are ignored.

        frames: frames of the member. objective: mean objective. None keeps the previous objective.
        """
        if key in self._nodes:
            self._seen_frames[key] = frames
            if objective is not None:
                self.objectives[key] = objective

    def apply(self, frames: int, changes: Iterable[Change]) -> None:
        """Add the nodes that start with the changes of one comparison. frames: population clock.

        For a copy of a remembered state, `Node.trained` includes all frames of the remembered node. The journal does
        not record when the state was saved.
        """
        before = {member: self._nodes[key] for member, key in self._present.items()}
        for change in changes:
            own = before[change.member]
            if change.stopped:
                del self._present[change.member]
            if change.values is None:
                continue
            parent = own if change.weights == "keep" else None
            if change.weights_from is not None:
                parent = self._nodes[change.weights_from]
            self._add(
                Node(
                    own.member,
                    change.generation,
                    frames,
                    change.values,
                    parent=parent.key if parent else None,
                    depth=parent.depth + 1 if parent else 0,
                    base=None if parent == own else own.key,
                    own_frames=self._own_frames(own, frames),
                    trained=self._trained(parent, frames) if parent else 0,
                )
            )

    def _own_frames(self, node: Node, clock: int) -> int:
        return self._seen_frames.get(node.key, clock)

    def _trained(self, node: Node, clock: int) -> int:
        return node.trained + max(0, self._own_frames(node, clock) - node.own_frames)

    def _add(self, node: Node) -> None:
        self._nodes[node.key] = node
        self._present[node.member] = node.key
        self._roots[node.key] = self._roots[node.parent] if node.parent else node.key
        if node.parent:
            self._children[node.parent].append(node.key)

    # -- nodes ----------------------------------------------------------------------------------------------

    def __getitem__(self, key: StateKey) -> Node:
        return self._nodes[key]

    def __contains__(self, key: StateKey) -> bool:
        return key in self._nodes

    @property
    def nodes(self) -> list[Node]:
        """All nodes, oldest first."""
        return list(self._nodes.values())

    def children(self, key: StateKey) -> list[StateKey]:
        """Return the keys of the nodes whose weights came from this node, oldest first. [] for an unknown node."""
        return list(self._children.get(key, ()))

    def end_trained(self, key: StateKey) -> int:
        """Return the training frames of the node's weights and their ancestors until the last measurement."""
        node = self._nodes[key]
        return self._trained(node, node.own_frames)

    def line(self, key: StateKey) -> list[Node]:
        """Return the nodes from the root (initialised weights) to this node."""
        node = self._nodes[key]
        line = [node]
        while node.parent is not None:
            node = self._nodes[node.parent]
            line.append(node)
        return line[::-1]

    # -- members --------------------------------------------------------------------------------------------

    @property
    def members(self) -> list[int]:
        """Ids of the members that have not been stopped."""
        return sorted(self._present)

    @property
    def generations(self) -> dict[int, int]:
        """Present generation of each member that has not been stopped."""
        return dict(self._present.values())

    def present(self, member: int) -> Node:
        """Return the member's present node. Raises KeyError if the member was stopped or does not exist."""
        return self._nodes[self._present[member]]

    def path(self, member: int) -> list[Node]:
        """Return all nodes with this member id, oldest first, also for a stopped member. [] for an unknown member."""
        path: list[Node] = []
        while (member, len(path)) in self._nodes:
            path.append(self._nodes[member, len(path)])
        return path

    def ancestry(self, member: int) -> list[Node]:
        """Return the nodes from the root (initialised weights) to the member's present node.

        Raises KeyError if the member was stopped or does not exist.
        """
        return self.line(self._present[member])

    def surviving_roots(self) -> set[StateKey]:
        """Return the keys of the roots of all members that have not been stopped."""
        return {self._roots[key] for key in self._present.values()}


def mean(objectives: Iterable[float]) -> float | None:
    """Return the mean of a window, or None for an empty window. NaN and infinities propagate."""
    values = list(objectives)
    return sum(values) / len(values) if values else None


# -- noise --------------------------------------------------------------------------------------------------

LEVEL = 0.05
"""Significance level of the t-test in `Noise`."""


def _uncompared(decision: Decision) -> bool:
    """Check whether a decision needs no comparison: an evaluation, or the restart of a broken member."""
    return isinstance(decision, Evaluate) or (isinstance(decision, Restart) and decision.phase is None)


@dataclass
class Noise:
    """Number of comparisons, of replacements, and of replacements *within the noise* in a journal.

    A replacement is within the noise if Welch's two-sided t-test finds no difference between the compared episodes of
    member and donor at the significance `LEVEL`. The test is approximate, because the weights change between episodes.
    """

    comparisons: int = 0
    replacements: int = 0
    """Number of replacements. Copies of remembered states are excluded, because remembered states have no window."""
    within: int = 0
    whole_windows: bool = field(default=False, init=False)
    """True if the ready rule compares whole windows."""

    def take(self, event: Event) -> None:
        """Count the replacements of a comparison. Take the ready rule from the event `start`. Ignore other events."""
        match event:
            case Start(config={"pbt": {"ready": ready}}) | Resume(config={"pbt": {"ready": ready}}):
                self.whole_windows = ready not in COMPARE_NEWEST
            case Comparison():
                self._count(event)

    def _count(self, event: Comparison) -> None:
        members = event.report.members if self.whole_windows else map(since_comparison, event.report.members)
        windows = {m.member: m.objectives for m in members}
        if not all(map(_uncompared, event.decisions)):
            self.comparisons += 1
        for decision in event.decisions:
            if not isinstance(decision, Replace) or decision.donor_generation is not None:
                continue
            if decision.donor == decision.member or not {decision.donor, decision.member} <= windows.keys():
                continue
            self.replacements += 1
            pair = windows[decision.member], windows[decision.donor]
            if all(map(math.isfinite, (*pair[0], *pair[1]))):  # a broken member is not noise
                self.within += welch_p(*pair) >= LEVEL
