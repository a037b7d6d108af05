"""Declares games beside training and final games: `--evaluate-every-frames`, `--final-episodes`."""

from __future__ import annotations

from pbt_rl.games.options import GamesOptions

NEEDS = ("pbt_rl.journals",)

FIELDS = GamesOptions
"""Options of a run."""
CHECKS = "pbt_rl.games.run:check"
"""See `run.resolved.ResolvedRun`."""
GAMES = "pbt_rl.games.run:SavedMembers"
"""See `run.games`."""
ASKED = (
    "train --env toy/identity --final-episodes 4 --show",
    "train --env toy/identity --evaluate-every-frames 1000 --show",
)
"""Command lines that ask for it."""
