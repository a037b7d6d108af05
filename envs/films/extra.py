"""Declares how environments are filmed whose families do not say it themselves."""

from __future__ import annotations

FAMILIES = ()
FILMED = {"atari": "pbt_rl.envs.films.atari", "gym": "pbt_rl.envs.films.gym", "": "pbt_rl.envs.films.custom"}
"""See `envs.registry.film`."""
ASKED = ()
"""Command lines that ask for it: none without a run that is there."""
