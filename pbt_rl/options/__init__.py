"""Options: declared, read from a command line or a file, checked, and shown. `pbt_rl.config` has those of a run."""

from pbt_rl.options.declare import option

__all__ = ["option"]
