"""Options of a run that a report reads, from the config in the journal. A field that a run lacks has a default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta

from pbt_rl.config import number_of_controls
from pbt_rl.controllers.records import Whole

FRAMES = "frames"
"""Unit of training in column names and figure texts."""


@dataclass(frozen=True)
class SearchOptions:
    """Search options that a report reads."""

    eviction_rate: Annotated[float, Meta(ge=0, lt=1)] = 0.0


@dataclass(frozen=True)
class PbtOptions:
    """PBT options that a report reads."""

    ready: str = ""


@dataclass(frozen=True)
class RunOptions:
    """Options that a report reads. A run of `tune.run` has only some of these options."""

    env: str = "a run"
    controller: str = "pbt"
    num_policies: Whole = 0
    control: Annotated[float, Meta(ge=0, le=100_000)] = 0.0
    train_for_frames: Whole | None = None
    train_for_seconds: float | None = None
    search: SearchOptions = SearchOptions()
    pbt: PbtOptions = PbtOptions()
    api: str | None = None
    """Not None for a run of `tune.run`, which counts steps and evaluations instead of frames and episodes."""
    choices: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Name of a value -> texts of its choices, for each value that is a choice."""

    @property
    def controls(self) -> frozenset[int]:
        """Members of the control group."""
        first = self.num_policies
        return frozenset(range(first, first + number_of_controls(self.control, first)))

    @property
    def unit(self) -> str:
        """Unit of training progress: frames or steps."""
        return FRAMES if self.api is None else "steps"

    def shown(self, name: str, value: float) -> float | str:
        """Return a value for display. If the value is the index of a choice, return the text of this choice."""
        texts = self.choices.get(name)
        return value if not texts else texts[min(max(round(value), 0), len(texts) - 1)]
