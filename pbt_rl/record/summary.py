"""`summary.json`: what a run came to, for people and for scripts. Valid JSON: what is not finite is null."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from pbt_rl.display.ranking import best_member, known_objective
from pbt_rl.display.view import MemberView, RunView
from pbt_rl.pbt.hypers import SHAPING


def write_summary(
    path: Path,
    view: RunView,
    *,
    frames_per_second_steady: float,
    replacement_milliseconds: list[float],
    ended: str,
) -> None:
    """Write the summary in one piece: a reader sees the old file or the whole new one.

    ended: why the run ended, such as `frames`, `seconds`, `interrupted`. Raises OSError if `path` cannot be
    written; then no half-written file is left.
    """
    facts = _finite(summary(view, frames_per_second_steady, replacement_milliseconds, ended))
    text = json.dumps(facts, indent=2, allow_nan=False) + "\n"
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def summary(
    view: RunView, frames_per_second_steady: float, replacement_milliseconds: list[float], ended: str
) -> dict[str, Any]:
    """The summary's facts. `frames` are emulator frames and `steps` decisions, of the whole population."""
    times = replacement_milliseconds
    return {
        "frames": view.frames,
        "steps": view.steps,
        "seconds": view.seconds,
        "frames_per_second": frames_per_second_steady,
        "best_member": best_member(view.members),
        "members": [_member(member) | _met(member) for member in view.members],
        "replacements": view.replacements,
        "replacement_milliseconds": {
            "median": median(times) if times else None,
            "max": max(times, default=None),
        },
        "policy_lag": {"mean": view.lag_mean, "max": view.lag_max},
        "discarded_rollouts": view.discarded_rollouts,
        "actors_restarted": view.actors_restarted,
        "ended": ended,
    }


def _member(member: MemberView) -> dict[str, Any]:
    values = member.values
    return {
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
        **({"tasks": {k: task and asdict(task) for k, task in member.tasks.items()}} if member.tasks else {}),
    }


def _met(member: MemberView) -> dict[str, float]:
    """Rating and win rate, where members meet."""
    return {name: member.stats[name] for name in ("elo", "win_rate") if name in member.stats}


def _finite(value: Any) -> Any:
    """The same facts with None for every NaN and infinity: JSON has no words for them."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
