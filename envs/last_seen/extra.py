"""Declares what adds the last action and reward to the observations: --model.last-action-reward."""

from __future__ import annotations

FAMILIES = ()
LAST_SEEN = "pbt_rl.envs.last_seen.unit"
"""Module with `with_last` and `LastUnit`: see `envs.registry`."""
ASKED = ("train --env toy/identity --model.last-action-reward --show",)
"""Command lines that ask for it."""
