"""Declares matchups between members: their options, and games against others (`pbt-rl eval --against`)."""

from __future__ import annotations

from pbt_rl.matchups.options import MatchupConfig

AGAINST = "pbt_rl.matchups.against"
"""Module with `evaluate_against`."""
OPTIONS = {"matchup": MatchupConfig}
