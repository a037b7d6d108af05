"""Declares parts of networks that a user wrote, and what these and losses of a user's own are checked for."""

from __future__ import annotations

CHECKS_NETWORK = "pbt_rl.own.check:check"
"""See `learner.build.check_network`."""
ASKED = ("train --env toy/identity --model.encoder torch:nn --show",)
"""Command lines that ask for it."""
