"""Declares films of environments, which `pbt_rl/video` stands on."""

from __future__ import annotations

FAMILIES = ()
ASKED = ()
"""Command lines that ask for it: none without a run that is there."""
