"""Declares units of Atari games that begin with some of their rows."""

from __future__ import annotations

FAMILIES = ()
GROWING = "pbt_rl.envs.growing.unit:unit_that_grows"
"""See `envs.ale`."""
BESIDE_STEPS = "pbt_rl.envs.growing.growth:Growth"
"""See `wire.actor.BesideSteps`."""
ASKED = ()
"""Command lines that ask for it: none, it is used for units of many rows."""
