"""The events of a run that was resumed, as those of a run that was never interrupted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import structs

from pbt_rl.record.events import End, Event, Final, Resume, SlotChange, Start


def uninterrupted(events: Iterable[Event]) -> Sequence[Event]:
    """Return the events with the interruptions taken out.

    - All times after a `Resume` are earlier by the time in which the run stood still: from the event before it to it.
    - An `End` and a `Final` that a `Resume` follows are left out.
    - Every slot is left at a `Resume`, at which others may take other slots.
    - The config of the first event is that of the last `Resume`.
    """
    told: list[Event] = []
    paused, config = 0.0, None
    for event in events:
        if isinstance(event, Resume):
            if told:
                paused = event.time - told[-1].time
            config = event.config
            told = [e for e in told if not isinstance(e, End | Final)]
            time = event.time - paused
            told += [SlotChange(time, event.frames, pack, slot, None) for pack, slot in _held(told)]
        told.append(structs.replace(event, time=event.time - paused))
    if config is not None and told and isinstance(told[0], Start):
        told[0] = structs.replace(told[0], config=config)
    return told


def _held(events: Iterable[Event]) -> list[tuple[int, int]]:
    """Return (pack, slot) of every slot that a member holds after the events."""
    held = {(e.pack, e.slot): e.enters for e in events if isinstance(e, SlotChange)}
    return [place for place, member in held.items() if member is not None]
