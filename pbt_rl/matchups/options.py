"""Options of matchups, for environments of several agents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pbt_rl.errors import require
from pbt_rl.options import option

Scheme = Literal["self", "round-robin", "random", "prioritised"]


@dataclass(frozen=True)
class MatchupConfig:
    """Matchups in environments of several agents, and how their outcome ranks members."""

    scheme: Scheme = "round-robin"
    """`self`: one member plays all seats of an environment. `round-robin`: all members play each other equally often.
    `random`: opponents are drawn uniformly. `prioritised`: opponents that a member beats least are drawn most (Vinyals
    et al. 2019). Opponents are members of the same device; matchups change with every comparison."""
    objective: Literal["return", "win-rate", "elo"] = "return"
    """Objective that ranks members. `return`: the returns of their seats. `win-rate`: share of opponents beaten (a draw
    counts half). `elo`: a rating from all games between members."""
    power: float = option(2.0, at_least=0)
    """prioritised: exponent p of the weight (1 - win rate)^p; 0 weighs all alike."""
    elo_k: float = option(8.0, above=0)
    """elo: the most points by which one game moves a rating."""

    def __post_init__(self) -> None:
        require(
            self.scheme != "self" or self.objective == "return",
            "matchup.objective",
            self.objective,
            "with --matchup.scheme self members never play each other: use another scheme, or the objective return",
        )

    def check_whole(self, config: Any) -> None:
        """Raise ConfigError if members are evaluated on purpose, by their returns, and ranked by something else."""
        episodes = config.pbt.evaluate_episodes
        require(
            not episodes or self.objective == "return",
            "pbt.evaluate-episodes",
            episodes,
            "members are evaluated on one machine, by their return: leave out --nodes and --matchup.objective",
        )
