"""Declares runs that begin from what others have learned: `--init-from`."""

from __future__ import annotations

from pbt_rl.warm_start.options import InitOptions

FIELDS = InitOptions
"""Options of a run."""
FIRST_STATES = "pbt_rl.warm_start.saved:WarmStart"
"""See `run.resuming.first_states`."""
ASKED = ("train --env toy/identity --init-from runs/x --show",)
"""Command lines that ask for it."""
