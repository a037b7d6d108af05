"""Shows the numbers of a run elsewhere: `--track csv`, `wandb`, `mlflow`, or a tracker of one's own."""

from __future__ import annotations

SINKS = "pbt_rl.trackers.outlets"
"""See `display.sinks`."""
