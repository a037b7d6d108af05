"""The content of summary.json: the result of a run, for people and for scripts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from pbt_rl.display.ranking import best_member, known_objective
from pbt_rl.display.view import MATCHUP_STATS, MemberView, RunView, run_statistics
from pbt_rl.pbt.hypers import SHAPING


def summary(
    view: RunView,
    *,
    frames_per_second_steady: float,
    replacement_milliseconds: Sequence[float],
    ended: str,
    warnings: Sequence[str] = (),
    saved_at_frames: int | None = None,
) -> dict[str, Any]:
    """Return the result of a run as JSON types, which may hold NaN and infinities.

    `frames` are emulator frames and `steps` environment steps, of the whole population. ended: why the run ended,
    such as `frames`, `seconds`, `interrupted by SIGINT`. warnings: texts that the run has shown.
    saved_at_frames: of the checkpoint of its end, from which final games were played.
    """
    times = replacement_milliseconds
    return _statistics(view) | {
        "frames_per_second": frames_per_second_steady,
        "replacement_milliseconds": {
            "median": median(times) if times else None,
            "max": max(times, default=None),
        },
        "best_member": best_member(view.members),
        **({"replayed": {name: asdict(one) for name, one in view.replayed.items()}} if view.replayed else {}),
        "members": [_member(member) for member in view.members],
        "saved_at_frames": saved_at_frames,
        "ended": ended,
        "warnings": list(warnings),
    }


def _statistics(view: RunView) -> dict[str, Any]:
    """Every statistic that has a key; `a.b` is the key `b` of the object `a`."""
    content: dict[str, Any] = {}
    for shown, value in run_statistics(view).values():
        *outer, last = shown.key.split(".")
        inner = content
        for name in outer:
            inner = inner.setdefault(name, {})
        if last:
            inner[last] = value
    return content


def _member(member: MemberView) -> dict[str, Any]:
    values = member.values
    content = {
        "id": member.member,
        "frames": member.frames,
        "status": member.status,
        "objective": known_objective(member),
        "episodes": member.episodes,
        "generation": member.generation,
        "hypers": {name: value for name, value in values.items() if not name.startswith(SHAPING)},
        "shaping": {
            name.removeprefix(SHAPING): value for name, value in values.items() if name.startswith(SHAPING)
        },
    }
    if member.control:
        content["control"] = True
    if member.final is not None:
        content["final"] = {name: x for name, x in asdict(member.final).items() if name != "halves"}
    if member.tasks:
        content["tasks"] = {name: task and asdict(task) for name, task in member.tasks.items()}
    return content | {name: member.stats[name] for name in MATCHUP_STATS if name in member.stats}
