"""Declares the options of matchups."""

from __future__ import annotations

from pbt_rl.matchups.options import MatchupConfig

OPTIONS = {"matchup": MatchupConfig}
