"""Matchups between members, ratings of their games, and games against others (`pbt-rl eval --against`)."""

from __future__ import annotations

AGAINST = "pbt_rl.matchups.against"
"""Module with `evaluate_against`."""
