"""The journal of a run that was resumed, as that of a run that was never interrupted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Events = list[Mapping[str, Any]]


def uninterrupted(events: Iterable[Mapping[str, Any]]) -> Events:
    """Return the events with the interruptions taken out.

    - All times after a `resume` are earlier by the time in which the run stood still: from the event before it to it.
    - An `end` that a `resume` follows is left out.
    - Every slot is left at a `resume`, at which others may take other slots.
    - The config of the first event is that of the last `resume`.
    """
    told: Events = []
    paused, config = 0.0, None
    for event in events:
        if event["event"] == "resume":
            if told:
                paused = event["time"] - told[-1]["time"]
            config = event["config"]
            told = [e for e in told if e["event"] != "end"]
            told += [
                {"event": "slot", "pack": pack, "slot": slot, "leaves": member, "enters": None}
                | {"time": event["time"] - paused, "frames": event["frames"]}
                for (pack, slot), member in _held(told).items()
            ]
        told.append({**event, "time": event["time"] - paused})
    if config is not None:
        told[0] = {**told[0], "config": config}
    return told


def _held(events: Events) -> dict[tuple[int, int], int]:
    """Return (pack, slot) -> the member that holds it after the events."""
    held = {(e["pack"], e["slot"]): e["enters"] for e in events if e["event"] == "slot"}
    return {place: member for place, member in held.items() if member is not None}
