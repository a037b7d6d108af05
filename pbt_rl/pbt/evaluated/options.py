"""The option of evaluations, beside those of PBT."""

from __future__ import annotations

from dataclasses import dataclass

from pbt_rl.options import option


@dataclass(frozen=True)
class EvaluationOptions:
    """By which episodes members are compared."""

    evaluate_episodes: int = option(0, at_least=0)
    """Evaluate each member on purpose before it is compared: it learns nothing until its environments have played so
    many whole episodes (rounded up to equally many of each), and these are its objective. Their frames count in the
    budget. At the end of the run all members play --final-episodes. 0: compare by the episodes of training."""
