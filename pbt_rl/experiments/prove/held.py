"""What weakens an arm: members that were compared more seldom than its periods say, or by scores that are noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from pbt_rl.config import Config
from pbt_rl.controllers.history.noise import Noise
from pbt_rl.controllers.registry import controller_entry
from pbt_rl.record.events import Round
from pbt_rl.record.reading import journal_events
from pbt_rl.record.saved import read_config


def too_short(run: Path) -> str:
    """Return a line on a run whose members were compared in less than half of its periods, and what to set.

    Nothing of any other run, of one whose periods are not of frames and all alike, and of one that plays evaluations:
    these last as long as they need.
    """
    config = read_config(run)
    pbt = config.pbt
    compares = controller_entry(config.controller).compares and pbt.enabled and config.num_policies > 1
    if not compares or pbt.ready != "synchronous" or pbt.period_growth > 1 or pbt.evaluate_episodes > 0:
        return ""
    return said(config, [len(event.decisions) for event in journal_events(run) if isinstance(event, Round)])


def lucky(runs: Sequence[Path]) -> str:
    """Return a line on an arm if most replacements of its runs were within the noise of their windows, else nothing."""
    from pbt_rl.report.verdict import mostly_luck, said_of_luck  # noqa: PLC0415 - loads matplotlib

    noise = Noise()
    for run in runs:
        for event in journal_events(run):
            if isinstance(event, Round):
                noise.note(event)
    return said_of_luck(noise, "--pbt.period-frames", in_python=False) if mostly_luck(noise) else ""


def said(config: Config, compared: Sequence[int]) -> str:
    """Return the line of `too_short`. compared: members that took part in each comparison that was held."""
    pbt, frames = config.pbt, config.train_for_frames
    first = max(pbt.start_frames, pbt.period_frames)
    due = (frames - first) // pbt.period_frames  # without the last, which the end of the run may forestall
    held = sum(compared) / config.num_policies
    if 2 * held >= due:
        return ""
    least = f"{_up(frames / held):,}" if held else f"more than {frames:,}"
    return (
        f"each member was compared {held:.3g} times instead of about {due}: --pbt.period-frames {pbt.period_frames} is "
        f"too short for {pbt.min_episodes} episodes that began after a member's last change, and as many as it has "
        f"environments. Give {least}{' or more' if held else ''}, or fewer environments (--envs-per-unit, --actors, or "
        "--rows of a simulator), under another --name"
    )


def _up(frames: float) -> int:
    """Round up to two digits."""
    unit: int = 10 ** max(0, math.floor(math.log10(frames)) - 1)
    return math.ceil(frames / unit) * unit
