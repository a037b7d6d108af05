"""Options of the searches over configurations (--search) and of a schedule's replay (--replay)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SearchConfig:
    """HyperTrick, Successive Halving, Hyperband and random search."""


@dataclass(frozen=True)
class ReplayConfig:
    """Train by the schedule of a recorded run."""
