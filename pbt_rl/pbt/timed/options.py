"""Options of the rule `timed`, beside those of PBT."""

from __future__ import annotations

from dataclasses import dataclass

from pbt_rl.options import option


@dataclass(frozen=True)
class TimedOptions:
    """When members are compared, in seconds of training."""

    period_seconds: float = option(600.0, above=0)
    """--pbt.ready timed: seconds of training between two comparisons of all members. The journal keeps at which second
    each was held, so that `audit` decides it again; two runs of one seed are not alike, not even with --mode serial."""
    start_seconds: float = option(0.0, at_least=0)
    """timed: compare no members before this many seconds of training, nor before a whole period."""
