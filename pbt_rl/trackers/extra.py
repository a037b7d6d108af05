"""Shows the numbers of a run elsewhere: `--track csv`, `wandb`, or a tracker of one's own."""

from __future__ import annotations

from pbt_rl.trackers.options import TrackersOption

FIELDS = TrackersOption
"""Options of a run."""
SINKS = "pbt_rl.trackers.outlets"
"""See `display.view`."""
ASKED = ("train --env toy/identity --track csv --show",)
"""Command lines that ask for it."""
