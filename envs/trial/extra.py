"""Declares a process in which an environment's code is tried first."""

from __future__ import annotations

FAMILIES = ()
TRIES = "pbt_rl.envs.trial.process:tried"
"""See `envs.first_trial.tried`."""
ASKED = ()
"""Command lines that ask for it: none, it is used where it is."""
