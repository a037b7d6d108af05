"""Declares evaluations before comparisons: `--pbt.evaluate-episodes`."""

from __future__ import annotations

from pbt_rl.errors import require
from pbt_rl.pbt.entry import PATIENCE_PERIODS, Ingredients
from pbt_rl.pbt.evaluated.evaluation import Evaluation
from pbt_rl.pbt.evaluated.options import EvaluationOptions

PBT_FIELDS = EvaluationOptions
"""Options beside those of PBT."""


def BEFORE_COMPARING(given: Ingredients) -> Evaluation | None:
    """See `pbt.registry`. Raises ConfigError."""
    pbt, name = given.pbt, "pbt.evaluate-episodes"
    episodes = given.options.group(EvaluationOptions).evaluate_episodes
    if episodes == 0:
        return None
    require(
        pbt.ready == "synchronous",
        name,
        episodes,
        "all members are evaluated together: use --pbt.ready synchronous",
    )
    require(
        given.slots >= given.members,
        name,
        episodes,
        "members that take turns cannot be evaluated: leave out --slots",
    )
    require(
        pbt.min_episodes <= episodes <= pbt.objective_episodes,
        name,
        episodes,
        f"give --pbt.min-episodes, {pbt.min_episodes}, to --pbt.objective-episodes, {pbt.objective_episodes}",
    )
    return Evaluation(episodes, PATIENCE_PERIODS * pbt.period_frames)


NAMES = {"Evaluation": "pbt_rl.pbt.evaluated.evaluation"}
"""Name in `pbt_rl.pbt` -> its module."""
ASKED = ("train --env toy/identity --pbt.evaluate-episodes 5 --show",)
"""Command lines that ask for it."""
