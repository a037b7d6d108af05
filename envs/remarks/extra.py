"""Declares remarks about environments: what they do wrong though nothing breaks."""

from __future__ import annotations

FAMILIES = ()
REMARKS = "pbt_rl.envs.remarks.told:Told"
"""See `envs.base.remarks_of`."""
NOTES = "pbt_rl.envs.remarks.notes:notes"
"""See `envs.base.notes_of`."""
ASKED = ()
"""Command lines that ask for it: none, it is used where it is."""
