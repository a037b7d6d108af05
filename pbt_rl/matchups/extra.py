"""Declares matchups between members: who plays whom, ratings, and games against others (`pbt-rl eval --against`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbt_rl.matchups.options import MatchupConfig

if TYPE_CHECKING:
    from pbt_rl.run.resolved import ResolvedRun

OPTIONS = {"matchup": MatchupConfig}
CHECKS = "pbt_rl.matchups.run:check"
"""See `run.resolved.ResolvedRun`."""
OPPONENTS = "pbt_rl.matchups.run:BetweenMembers"
"""See `run.opponents.Opponents`."""
MATCHUP_TABLE = "pbt_rl.matchups.table:MatchupTable"
"""See `wire.tables`."""
AGAINST = "pbt_rl.matchups.against"
"""Module with `evaluate_against`."""


def PLAN_NOTES(resolved: ResolvedRun) -> list[str]:
    """Return who plays whom, for the plan of a run in an environment of several seats."""
    if resolved.spec.seats == 1:
        return []
    from pbt_rl.matchups.run import note  # noqa: PLC0415 - actors read this module

    return [note(resolved.config, resolved.plan.packs)]


ASKED = (
    "train --env toy/identity --matchup.scheme random --show",
    "eval runs/x --against random",
)
"""Command lines that ask for it."""
