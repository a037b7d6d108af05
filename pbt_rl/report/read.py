"""The history of a run, from its journal: the run may have ended, go on, or have been killed."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pbt_rl.errors import ConfigError
from pbt_rl.pbt.changes import Change, changes
from pbt_rl.pbt.decisions import Decision, decision_from_dict
from pbt_rl.pbt.lineage import Lineage, Node, mean
from pbt_rl.record.folder import RunFolder
from pbt_rl.record.journal import read_journal
from pbt_rl.report.resumes import uninterrupted

_PHASE = re.compile(r"phase (\d+)")


@dataclass(frozen=True)
class Point:
    """One member at one moment. seconds: since the run began. frames: of the member."""

    seconds: float
    member: int
    generation: int
    frames: int
    objective: float | None
    episodes: int


@dataclass(frozen=True)
class Moment:
    """The population at one moment.

    nodes: of the members that were not stopped before the decisions of this moment. remaining: ids of those that are
    not stopped after them. founders: how many fresh weights the remaining members descend from.
    """

    seconds: float
    frames: int
    points: tuple[Point, ...]
    nodes: tuple[Node, ...]
    remaining: tuple[int, ...]
    founders: int

    @cached_property
    def present(self) -> frozenset[int]:
        """Members that were not stopped before the decisions of this moment."""
        return frozenset(node.member for node in self.nodes)


@dataclass(frozen=True)
class TakenDecision:
    """A decision, its time, and the objective of the member at that time."""

    seconds: float
    frames: int
    decision: Decision
    change: Change
    """What the decision did to its member."""
    objective: float | None


@dataclass(frozen=True)
class Turn:
    """The time in which a member held a slot. slot: counted over all packs."""

    slot: int
    member: int
    begin_seconds: float
    end_seconds: float


@dataclass(frozen=True)
class Phase:
    """A member's training between two decisions of a search.

    score: its objective at the end. outcome: what followed: `on`, `completed` or `evicted`. Both are None
    while the phase goes on.
    """

    member: int
    number: int
    begin_seconds: float
    end_seconds: float
    score: float | None
    outcome: str | None


@dataclass(frozen=True)
class History:
    """Everything that a report shows.

    config, versions: as in the journal's first event; the config of a resumed run is that of its last resume. seconds:
    since the run began, without the time in which it stood still. ended: why the run ended; None if it goes on or was
    cut off.
    """

    name: str
    config: Mapping[str, Any]
    versions: Mapping[str, str]
    git: str | None
    began: float
    seconds: float
    ended: str | None
    seed: int | None
    lineage: Lineage
    moments: Sequence[Moment]
    decisions: Sequence[TakenDecision]
    turns: Sequence[Turn]
    phases: Sequence[Phase]
    actor_restarts: int

    @cached_property
    def last(self) -> dict[int, Node]:
        """Return each member's last node, stopped or not, in order of id."""
        return {m: self.lineage.path(m)[-1] for m in sorted({n.member for n in self.lineage.nodes})}

    @cached_property
    def curves(self) -> dict[int, list[Point]]:
        """Return each member's points, oldest first."""
        curves: dict[int, list[Point]] = {m: [] for m in self.last}
        for moment in self.moments:
            for point in moment.points:
                curves[point.member].append(point)
        return curves

    def objective(self, node: Node) -> float | None:
        """Return the node's last known objective; None if there is none, or if it is NaN or infinite."""
        value = self.lineage.objectives.get(node.key, math.nan)
        return value if math.isfinite(value) else None

    @cached_property
    def ranking(self) -> list[int]:
        """Return the members with a known objective, best first; ties by id."""
        known = {m: o for m, node in self.last.items() if (o := self.objective(node)) is not None}
        return sorted(known, key=lambda m: (-known[m], m))

    @cached_property
    def varied(self) -> list[str]:
        """Return the names of the values in which any two nodes differ: what was tuned or searched."""
        nodes = self.lineage.nodes
        return (
            [n for n in nodes[0].values if len({node.values.get(n) for node in nodes}) > 1] if nodes else []
        )

    @property
    def is_search(self) -> bool:
        """Return whether members are configurations that are trained phase by phase and stopped."""
        return bool(self.phases)

    @property
    def slots(self) -> int:
        """Return the number of slots of all devices; 0 if it was not recorded."""
        return len({turn.slot for turn in self.turns})

    @property
    def occupancy(self) -> float | None:
        """Return the share of the slots' time in which a member held them; None if it was not recorded."""
        held = math.fsum(turn.end_seconds - turn.begin_seconds for turn in self.turns)
        return held / (self.slots * self.seconds) if self.turns and self.seconds > 0 else None

    @property
    def completion(self) -> float | None:
        """Return a search's completion rate: frames trained / frames of training every configuration to the end.

        None if the config does not determine the latter.
        """
        full = self.full_frames
        if not self.is_search or full is None or not self.last:
            return None
        trained = sum(points[-1].frames for points in self.curves.values() if points)
        return trained / (len(self.last) * full)

    @property
    def full_frames(self) -> int | None:
        """Return the frames of a configuration that is never stopped."""
        search = self.config.get("search", {})
        units = search.get("resource" if self.config.get("controller") == "hyperband" else "phases")
        phase = search.get("phase_frames", 0)
        return phase * units if phase and units else self.config.get("train_for_frames")


def read_run(folder: Path) -> History:
    """Read the journal of a run's folder. Raises ConfigError if it is not the folder of a run."""
    path = RunFolder(folder).journal
    try:
        events = read_journal(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder} is not the folder of a run: {error}") from error
    if not events or events[0].get("event") != "start":
        raise ConfigError(
            f"{folder} is not the folder of a run: {path} does not begin with the event `start`"
        )
    try:
        return read_events(folder.resolve().name, events)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"{path} cannot be read ({error!r}): was it written by another version?") from error


def read_events(name: str, events: Sequence[Mapping[str, Any]]) -> History:
    """Build the history from a run's events, the first of which is `start`."""
    events = uninterrupted(events)
    start, end = events[0], events[-1]
    began = start["time"]
    lineage = Lineage()
    moments: list[Moment] = []
    decisions: list[TakenDecision] = []
    for event in events:
        kind, seconds = event["event"], event["time"] - began
        nodes = tuple(lineage.present(m) for m in lineage.members) if kind in ("round", "progress") else ()
        generations = lineage.generations if kind == "round" else {}
        lineage.take(event)
        if kind not in ("round", "progress"):
            continue
        members = event["members"] if kind == "progress" else event["report"]["members"]
        points = tuple(p for p in _points(members, seconds) if (p.member, 0) in lineage)
        founders = len(lineage.surviving_roots())
        moments.append(Moment(seconds, event["frames"], points, nodes, tuple(lineage.members), founders))
        if kind == "round":
            known = {p.member: p.objective for p in points}
            taken = [decision_from_dict(d) for d in event["decisions"]]
            decisions += [
                TakenDecision(seconds, event["frames"], decision, change, known.get(decision.member))
                for decision, change in zip(taken, changes(taken, generations), strict=True)
            ]
    total = end["time"] - began
    turns = _turns([e for e in events if e["event"] == "slot"], began, total)
    return History(
        name=name,
        config=start["config"],
        versions=start.get("versions", {}),
        git=start.get("git"),
        began=began,
        seconds=total,
        ended=next((e["ended"] for e in reversed(events) if e["event"] == "end"), None),
        seed=start.get("seed"),
        lineage=lineage,
        moments=moments,
        decisions=decisions,
        turns=turns,
        phases=_phases(decisions, turns, total),
        actor_restarts=sum(e["event"] == "actor_restart" for e in events),
    )


def _points(members: Iterable[Mapping[str, Any]], seconds: float) -> list[Point]:
    points = []
    for m in members:
        window = [m["objective"]] if "objective" in m else m["objectives"]
        objective = mean(float(o) for o in window if o is not None)
        points.append(
            Point(seconds, m["member"], m["generation"], m["frames"], _finite(objective), m["episodes"])
        )
    return points


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _turns(changes: Iterable[Mapping[str, Any]], began: float, total: float) -> list[Turn]:
    """Pair every entry into a slot with the exit; turns without an exit last to the end."""
    slots: dict[tuple[int, int], int] = {}
    holders: dict[int, tuple[int, float]] = {}
    turns = []
    for event in changes:
        slot = slots.setdefault((event["pack"], event["slot"]), len(slots))
        seconds = event["time"] - began
        if slot in holders:
            member, since = holders.pop(slot)
            turns.append(Turn(slot, member, since, seconds))
        if event["enters"] is not None:
            holders[slot] = event["enters"], seconds
    turns += [Turn(slot, member, since, total) for slot, (member, since) in sorted(holders.items())]
    return turns


def _phases(decisions: Iterable[TakenDecision], turns: Sequence[Turn], total: float) -> list[Phase]:
    """Return the phases of a search, as its decisions name them ("phase 2: ..."), in order of their end.

    The first phase of a member begins with its first turn; a member that never held a slot has no phase.
    """
    entered: dict[int, float] = {}
    for turn in turns:
        entered[turn.member] = min(entered.get(turn.member, math.inf), turn.begin_seconds)
    present: dict[int, tuple[int, float]] = {}
    phases = []
    for taken in decisions:
        member, reason = taken.decision.member, taken.decision.reason
        named = _PHASE.match(reason)
        number = int(named[1]) if named else None
        if member in present and (taken.change.stopped or number not in (None, present[member][0])):
            past, since = present.pop(member)
            outcome = "on" if named else "completed" if reason.startswith("completed") else "evicted"
            phases.append(Phase(member, past, since, taken.seconds, taken.objective, outcome))
        if number is not None and member not in present and (not turns or member in entered):
            first = all(phase.member != member for phase in phases)
            present[member] = number, entered.get(member, taken.seconds) if first else taken.seconds
    phases += [Phase(m, number, since, total, None, None) for m, (number, since) in present.items()]
    return phases
