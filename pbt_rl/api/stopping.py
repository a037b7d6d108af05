"""How a user's function ends the run of a population."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Stop:
    """Returned by a callback: end the run now, in order. reason: is noted as how it ended."""

    reason: str = "stopped"
