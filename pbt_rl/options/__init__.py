"""Options: declaration, parsing, checks and help. `pbt_rl.config.Config` contains the options of a run."""

from pbt_rl.options.declare import option

__all__ = ["option"]
