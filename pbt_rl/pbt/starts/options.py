"""The option of start values, beside those of PBT."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StartOptions:
    """Where single members start."""

    start_values: tuple[str, ...] = ()
    """Start values of single members: a table (FILE.csv with a column per value, FILE.json with an object per member),
    or one text per member such as learning_rate=1e-3,gamma=0.99. What is left out starts as without it."""
