"""Declares games beside training and final games: `--evaluate-every-frames`, `--final-episodes`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbt_rl.games.options import GamesOptions

if TYPE_CHECKING:
    from pbt_rl.config import Config

NEEDS = ("pbt_rl.journals",)
EVALUATION_BYTES = 360 << 20
"""The process that plays beside training, with a few small environments."""

FIELDS = GamesOptions
"""Options of a run."""
CHECKS = "pbt_rl.games.run:check"
"""See `run.resolved.ResolvedRun`."""
GAMES = "pbt_rl.games.run:Evaluations"
"""See `run.games`."""
RECORDED_LATE = "pbt_rl.games.run:recorded_late"
"""Finds results in the part of a journal that a resumed run cuts off."""


def HOST_BYTES(config: Config) -> int:
    """Return the memory of processes that play beside training."""
    return EVALUATION_BYTES if config.group(GamesOptions).evaluate_every_frames else 0


ASKED = (
    "train --env toy/identity --final-episodes 4 --show",
    "train --env toy/identity --evaluate-every-frames 1000 --show",
)
"""Command lines that ask for it."""
