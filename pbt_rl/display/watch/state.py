"""Content of the watch page as JSON types: numbers, and texts that the page inserts as plain text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pbt_rl.controllers.changes import DecisionName
from pbt_rl.controllers.events import Event, Progress
from pbt_rl.controllers.lineage import Node
from pbt_rl.display.lanes import Layout, ancestors
from pbt_rl.display.ranking import clock
from pbt_rl.display.terminal import counted, in_words
from pbt_rl.record.history import History

State = dict[str, Any]
T = TypeVar("T")
MOST_POINTS = 300
"""Approximate maximum of points per curve or schedule, because a screen cannot show more."""
MOST_DECISIONS = 100
MOST_NODES = 3000
"""Maximum of nodes in the forest: the newest ones, plus the ancestors of the last members."""
RATE_SECONDS = 60.0
NEARLY_ALL = 0.99
"""Share of the frame budget. A run expected to reach it before its time is up may end by either budget."""
NAMES: Mapping[DecisionName, str] = {
    "replace": "replacements",
    "mutate": "mutations",
    "restart": "restarts",
    "stop": "stopped",
}


def state(history: History, events: Sequence[Event]) -> State:
    """Return the content of the watch page. events: those from which the history was built."""
    options, last = history.options, history.moments[-1] if history.moments else None
    counts = Counter(taken.change.decision for taken in history.decisions)
    told = history.told if history.told and history.told.training_seconds is not None else None
    return {
        "name": history.name,
        "env": options.env if options.api is None else options.api,
        "unit": options.unit,
        "choices": options.choices,
        "controller": options.controller,
        "seed": history.seed,
        "seconds": history.training_seconds,
        "seconds_left": told and told.seconds_left,
        "told": (told or events[-1]).time,
        "changed": events[-1].time,
        "ended": history.ended,
        "budget_frames": _frames_budget(history, told),
        "frames": last.frames if last else 0,
        "frames_per_second": _rate(history) if told is None else told.frames_per_second,
        "stalled": "" if told is None else told.stalled,
        "counts": {name: counts[kind] for kind, name in NAMES.items() if counts[kind]},
        "actor_restarts": history.actor_restarts,
        "varied": history.varied,
        "members": _members(history),
        "final_episodes": 0 if history.final is None else history.final.episodes.get(history.best or 0, 0),
        "remarks": [*_lost(history), *history.remarks],
        "random_play": None if history.final is None else history.final.random_play,
        "score": history.score(history.best),
        "population": history.population,
        "best": history.best,
        "curves": {
            str(m): [[p.frames, p.drawn] for p in _thinned(points)] for m, points in history.curves.items()
        },
        "evaluations": [
            [e.at_frames, e.mean, history.standard_error(e), e.episodes, e.member]
            for e in history.evaluations
        ],
        "forest": _forest(history),
        "schedules": _schedules(history),
        "decisions": _decisions(history),
    }


def _lost(history: History) -> list[str]:
    lost = history.learners_lost
    last = f" (the last one {clock(lost[-1])} after the start)" if lost else ""
    verb = "was" if len(lost) == 1 else "were"
    return [f"{counted(len(lost), 'learner')} died or hung and {verb} replaced{last}"] if lost else []


def _frames_budget(history: History, told: Progress | None) -> int | None:
    """Return the frames per member at which the run ends; None if its time is up earlier."""
    options, frames = history.options, history.moments[-1].frames if history.moments else 0
    budget = options.train_for_frames
    if not budget or not options.train_for_seconds or history.ended == "frames":
        return budget
    if history.ended is not None or told is None or not told.seconds_left or not told.frames_per_second:
        return None
    to_come = told.seconds_left * told.frames_per_second / max(1, len(history.last))
    return budget if frames + to_come >= budget * NEARLY_ALL else None


def _members(history: History) -> list[State]:
    """Return the members, best first."""
    stopped = {t.decision.member for t in history.decisions if t.change.stopped}
    rows = []
    for member in history.everyone:
        node, points, told = history.last[member], history.curves[member], history.now.get(member)
        now = points[-1] if points else None
        first = history.lineage.path(member)[0]
        rows.append(
            {
                "member": member,
                "objective": history.objective(node),
                "final": history.final_scores.get(member),
                "complete": now is None or now.complete,
                "early": told.early if told else None,
                "ended": f"{told.ended} of {told.environments}" if told and told.environments else "",
                "return": told.raw_return if told else None,
                "length": told.length_steps if told else None,
                "episodes": now.episodes if now else 0,
                "generation": node.generation,
                "frames": now.frames if now else 0,
                "status": "stopped" if member in stopped else "control" if member in history.controls else "",
                "founder": history.lineage.line(node.key)[0].member,
                "values": [
                    [history.options.shown(name, one.values[name]) for one in (first, node)]
                    for name in history.varied
                ],
            }
        )
    return rows


def _thinned(points: Sequence[T]) -> list[T]:
    step = max(1, len(points) // MOST_POINTS)
    return [*points[:-1:step], *points[-1:]]


def _forest(history: History) -> State:
    """Return the position of each node: x in training frames, y in lanes downwards."""
    lineage = history.lineage
    if not lineage.nodes:
        return {"height": 0, "nodes": [], "labels": []}
    layout, alive = Layout.of(history), ancestors(history)
    shown = set(alive) | {node.key for node in lineage.nodes[-MOST_NODES:]}
    nodes = [
        {
            "from": node.trained,
            "to": lineage.end_trained(node.key),
            "until": alive.get(node.key),
            "y": layout.y[node.key],
            "parent_y": layout.y[node.parent] if node.parent is not None else None,
            "objective": history.objective(node),
            "text": f"member {node.member}, generation {node.generation}",
        }
        for node in lineage.nodes
        if node.key in shown
    ]
    labels = [[lineage.end_trained(n.key), layout.y[n.key], m] for m, n in history.last.items()]
    return {"height": layout.bottom, "nodes": nodes, "labels": labels}


def _schedules(history: History) -> list[State]:
    """Return the steps of each varied value along each member's lineage."""
    lineage = history.lineage
    lines = {m: lineage.line(node.key) for m, node in history.last.items()}
    ends = {m: lineage.end_trained(line[-1].key) for m, line in lines.items()}
    return [
        {
            "name": name,
            "lines": [
                {"member": member, "points": [*_steps(line, name), (ends[member], line[-1].values[name])]}
                for member, line in lines.items()
            ],
        }
        for name in history.varied
    ]


def _steps(line: Sequence[Node], name: str) -> list[tuple[int, float]]:
    """Return the points at which a value changes, thinned. A mutation may leave other values unchanged."""
    points = [(node.trained, node.values[name]) for node in line]
    return _thinned([p for i, p in enumerate(points) if i == 0 or p[1] != points[i - 1][1]])


def _decisions(history: History) -> list[State]:
    """Return the last decisions that changed something, newest first."""
    changed = [t for t in history.decisions if t.change.decision not in ("continue", "evaluate")]
    return [
        {
            "seconds": taken.seconds,
            "frames": taken.frames,
            "member": taken.decision.member,
            "decision": taken.change.decision,
            "donor": getattr(taken.decision, "donor", None),
            "objective": taken.objective,
            "reason": in_words(taken.decision.reason, taken.change),
        }
        for taken in changed[: -MOST_DECISIONS - 1 : -1]
    ]


def _rate(history: History) -> float | None:
    """Return frames/s of all members over the last minute, or the last two moments."""
    totals = [
        (m.seconds, sum(p.frames for p in m.points))
        for m in history.moments
        if len(m.points) == len(history.last)
    ]
    recent = [one for one in totals if one[0] >= history.seconds - RATE_SECONDS]
    recent = recent if len(recent) >= 2 else totals[-2:]
    if len(recent) < 2 or recent[-1][0] <= recent[0][0]:
        return None
    return max(0.0, (recent[-1][1] - recent[0][1]) / (recent[-1][0] - recent[0][0]))
