"""Options of population-based training. The names of its rules come from the registries, which read these options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pbt_rl.errors import require
from pbt_rl.extras import offered
from pbt_rl.options import option, with_fields


def _texts(kind: str) -> dict[str, str]:
    """Return name -> help of each rule of an extra."""
    declared = offered("pbt_rl.pbt", kind)
    return {name: rule.help for rules in declared for name, rule in rules.items()}


def _once(entries: tuple[str, ...]) -> bool:
    return len({entry.partition("=")[0].replace("-", "_") for entry in entries}) == len(entries)


@dataclass(frozen=True)
@with_fields(*offered("pbt_rl.pbt", "PBT_FIELDS"))
class PbtConfig:
    """Population-based training: when members are compared and how they change."""

    enabled: bool = option(True, common=True)
    """Compare and change members. Off: members train independently, all with the initial values of member 0."""
    ready: str = option("synchronous", texts=lambda: _texts("READY_RULES"))
    """`synchronous`: all members are compared together. {each}"""
    period_frames: int = option(2_500_000, above=0, common=True)
    """Emulator frames of each member between two comparisons (a meta-epoch)."""
    period_growth: float = option(1.0, at_least=1)
    """Factor from each period to the next."""
    start_frames: int = option(5_000_000, at_least=0, common=True)
    """Compare no members before all of them (asynchronous: before the member) have this many frames."""
    exploit: str = option(
        "top-middle-bottom", custom="module:Class", common=True, texts=lambda: _texts("EXPLOIT_RULES")
    )
    """`top-middle-bottom` (Sample Factory): the best stay, the worst copy one of the best and mutate, the others
    keep their weights and mutate. `truncation` (Jaderberg et al. 2017, Ray): only the worst change. {each} Or your own
    class or function (docs/own-rules.md)."""
    copy: Literal["both", "weights", "hypers"] = "both"
    """What a replaced member copies. `weights`: values are neither copied nor explored, each member keeps those that it
    began with. `hypers`: it keeps its own weights. (Both are ablations of Jaderberg et al. 2017, section 4.4.3.)"""
    replace_fraction: float = option(0.3, at_least=0, at_most=0.5)
    """Share of the population that is best, and share that is worst (rounded, at least 1 member): top-middle-bottom,
    truncation, sigma-gap."""
    replace_gap: float = option(0.1, at_least=0)
    """A member is replaced only if the donor is better by this share of the larger of the two magnitudes..."""
    replace_gap_absolute: float = option(1e-6, at_least=0)
    """...and by this much in the objective's own unit..."""
    replace_errors: float = option(2.5, at_least=0)
    """...and by so many standard errors of the difference of the two windows; 0: noise counts (all three:
    top-middle-bottom, truncation)."""
    explore: str = option(
        "perturb", custom="module:Class", common=True, texts=lambda: _texts("EXPLORE_RULES")
    )
    """`perturb` (Sample Factory): some values are multiplied or divided by a uniform factor. `factors` (Jaderberg et
    al. 2017): each is multiplied by one of --pbt.factors. {each}"""
    mutation_rate: float = option(0.15, at_least=0, at_most=1)
    """perturb: probability that a value changes when its member mutates."""
    perturb_min: float = option(1.1, at_least=1)
    """perturb: smallest factor that a value is multiplied or divided by."""
    perturb_max: float = option(1.5, at_least=1)
    """perturb: largest factor that a value is multiplied or divided by."""
    reset_probability: float = option(0.01, at_least=0, at_most=1)
    """perturb: probability that a changed value returns to its default."""
    factors: tuple[float, ...] = option((1.2, 0.8), above=0)
    """factors, resample: factors that a value may be multiplied by."""
    explore_probability: float | None = option(None, at_least=0, at_most=1)
    """Probability that a value changes (factors, multiply-or-divide; None: 1, with impala 1/3), that it is drawn anew
    (resample, pairwise; None: 0.25), or that all are (resample-all; None: 0.2)."""
    objective_episodes: int = option(100, at_least=1, common=True)
    """Average the objective over at most this many of the last episodes since the member changed."""
    min_episodes: int = option(5, at_least=1)
    """Leave a member with fewer finished episodes since its last change to the next comparison."""
    tune: tuple[str, ...] = option((), common=True, test=_once, remedy="each name once")
    """Names of the values to tune: hypers by name, shaping as `shaping.NAME`. Empty: the usual hypers, and all shaping
    but score_scale (a factor on all rewards, which normalised advantages do not see).
    NAME=LOW:HIGH sets bounds: mutations keep to them, and members and searches start drawn from them (member 0 at its
    --hypers.* if that lies within), evenly on the value's scale; NAME=LOW:HIGH:SCALE: on log, linear, one-minus or
    int."""
    prior: tuple[str, ...] = option((), common=True, test=_once, remedy="each name once")
    """Where the tuned values start, if not anywhere within their bounds: NAME=LOW:HIGH, NAME=LOW:HIGH:SCALE, or choices
    as NAME=A,B,C."""

    def __post_init__(self) -> None:
        require(
            self.perturb_max >= self.perturb_min,
            "pbt.perturb-max",
            self.perturb_max,
            f"give at least --pbt.perturb-min, {self.perturb_min:g}",
        )
