"""Options of population-based training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pbt_rl.errors import require


@dataclass(frozen=True)
class PbtConfig:
    """Population-based training: who is compared when, and how members change."""

    enabled: bool = True
    """Compare and change members. Off: independent members, all with the initial values of member 0."""
    exploit: Literal["top-middle-bottom", "truncation"] = "top-middle-bottom"
    """`top-middle-bottom` (Sample Factory): the best stay, the worst copy one of the best and mutate, the others
    keep their weights and mutate. `truncation` (Jaderberg et al. 2017): only the worst change."""
    period_frames: int = 5_000_000
    """Emulator frames of each member between two comparisons (a meta-epoch)."""
    start_frames: int = 10_000_000
    """Burn-in: no comparison before every member has this many frames."""
    replace_fraction: float = 0.3
    """Share of the population that is best, and share that is worst (rounded up, at most half)."""
    mutation_rate: float = 0.15
    """Probability that one value changes when its member mutates."""
    perturb_min: float = 1.1
    """Least factor of a change (multiplied or divided)."""
    perturb_max: float = 1.5
    """Largest factor of a change."""
    replace_gap: float = 0.1
    """A member is replaced only if the donor is better by this share of the larger of the two magnitudes..."""
    replace_gap_absolute: float = 1e-6
    """...and by this much in the objective's own unit."""
    objective_episodes: int = 100
    """The objective is the mean over at most this many last episodes since the member changed."""
    min_episodes: int = 5
    """A member with fewer finished episodes since its last change waits for the next comparison."""
    tune: tuple[str, ...] = ()
    """Names of the values to tune (hypers by name, shaping as `shaping.NAME`); empty: the table's defaults
    and all shaping."""

    def __post_init__(self) -> None:
        require(self.period_frames > 0, "pbt.period-frames", self.period_frames, "give a number above 0")
        require(self.start_frames >= 0, "pbt.start-frames", self.start_frames, "give 0 or more")
        require(
            0 <= self.replace_fraction <= 0.5, "pbt.replace-fraction", self.replace_fraction, "give 0 to 0.5"
        )
        require(0 <= self.mutation_rate <= 1, "pbt.mutation-rate", self.mutation_rate, "give 0 to 1")
        require(self.perturb_min >= 1, "pbt.perturb-min", self.perturb_min, "give a factor of at least 1")
        require(
            self.perturb_max >= self.perturb_min,
            "pbt.perturb-max",
            self.perturb_max,
            "give at least --pbt.perturb-min",
        )
        require(self.replace_gap >= 0, "pbt.replace-gap", self.replace_gap, "give 0 or more")
        require(
            self.replace_gap_absolute >= 0,
            "pbt.replace-gap-absolute",
            self.replace_gap_absolute,
            "give 0 or more",
        )
        require(
            self.objective_episodes > 0, "pbt.objective-episodes", self.objective_episodes, "give 1 or more"
        )
        require(self.min_episodes > 0, "pbt.min-episodes", self.min_episodes, "give 1 or more")
