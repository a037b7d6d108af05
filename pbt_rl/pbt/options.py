"""Options of population-based training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import tyro

from pbt_rl.errors import require
from pbt_rl.pbt.exploit.registry import EXPLOIT_RULES
from pbt_rl.pbt.explore.registry import EXPLORE_RULES
from pbt_rl.pbt.ready.registry import READY_RULES


@dataclass(frozen=True)
class PbtConfig:
    """Population-based training: who is compared when, and how members change."""

    enabled: bool = True
    """Compare and change members. Off: independent members, all with the initial values of member 0."""
    ready: str = "synchronous"
    """`synchronous`: all members are compared together. `asynchronous`: each by its own clock, with the others as
    they are (Jaderberg et al. 2017). `partially-synchronous`: those that have arrived, once they are enough."""
    ready_fraction: float = 0.8
    """partially-synchronous: share of the members that must have arrived."""
    period_frames: int = 5_000_000
    """Emulator frames of each member between two comparisons (a meta-epoch)."""
    period_growth: float = 1.0
    """Each period is the last one times this."""
    start_frames: int = 10_000_000
    """Burn-in: no comparison before every member (asynchronous: the member itself) has this many frames."""
    exploit: str = "top-middle-bottom"
    """`top-middle-bottom` (Sample Factory): the best stay, the worst copy one of the best and mutate, the others
    keep their weights and mutate. `truncation` (Jaderberg et al. 2017, Ray): only the worst change. `t-test`,
    `binary-tournament` (Jaderberg et al.): copy a random member if it is better, significantly or at all. `quantile`
    (Orion): the worst fifth copies one of the best fifth. `backtrack` (Orion's default): the worst return to an elite
    of any time, kept in memory; else as `quantile`. `impala`: copy a random member if it is 5 % better, mutate in any
    case. `sigma-gap` (DexPBT): the gap is counted in deviations of the population; a recent peak protects."""
    copy: Literal["both", "weights", "hypers"] = "both"
    """What is copied. `weights`: the member goes on from its own values. `hypers`: from its own weights."""
    replace_fraction: float = 0.3
    """Share of the population that is best, and share that is worst (rounded up, at most half): top-middle-bottom,
    truncation, sigma-gap."""
    replace_gap: float = 0.1
    """A member is replaced only if the donor is better by this share of the larger of the two magnitudes..."""
    replace_gap_absolute: float = 1e-6
    """...and by this much in the objective's own unit (both: top-middle-bottom, truncation)."""
    t_test_level: float = 0.05
    """t-test: the two-sided p-value of Welch's test on the last 10 episodes must be below this."""
    explore: str = "perturb"
    """`perturb` (Sample Factory): some values are multiplied or divided by a uniform factor. `factors` (Jaderberg et
    al. 2017): each is multiplied by one of --pbt.factors. `multiply-or-divide` (IMPALA): each by 1.2. `resample`
    (Ray): each is drawn anew or else changed as by `factors`. `resample-all` (Orion): all are drawn anew, or else
    each is multiplied or divided by 1.2. `pb2`: a Gaussian process chooses (needs the extra `search`)."""
    mutation_rate: float = 0.15
    """perturb: probability that one value changes when its member mutates."""
    perturb_min: float = 1.1
    """perturb: least factor of a change (multiplied or divided)."""
    perturb_max: float = 1.5
    """perturb: largest factor of a change."""
    reset_probability: float = 0.01
    """perturb: probability that a value that changes returns to its default."""
    factors: tuple[float, ...] = (1.2, 0.8)
    """factors, resample: what a value may be multiplied by."""
    explore_probability: float | None = None
    """factors, multiply-or-divide: that one value changes; resample: that it is drawn anew; resample-all: that all
    are. None: 1 (with impala 1/3), 0.25 and 0.2."""
    custom_explore: str = ""
    """Your own function, as module:function, called last with the values (name -> number) and a random.Random; it
    returns the new values."""
    frequencies: tuple[int, ...] = (1, 10, 25, 50)
    """mf-pbt: a group of members for each of these; it is compared every so many periods."""
    migrant_hypers: Literal["own", "best"] = "own"
    """mf-pbt: a member that takes the weights of a faster group goes on from its `own` values or from those of the
    `best` member of its group."""
    objective_episodes: int = 100
    """The objective is the mean over at most this many last episodes since the member changed."""
    min_episodes: int = 5
    """A member with fewer finished episodes since its last change waits for the next comparison."""
    tune: tuple[str, ...] = ()
    """Names of the values to tune (hypers by name, shaping as `shaping.NAME`), with bounds of your own as
    NAME=LOW:HIGH; empty: the table's defaults and all shaping. A search draws between the bounds."""
    exploit_option: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """NAME=VALUE for a setting of the exploit rule, such as sigmas=0.4 (sigma-gap); repeat it for more. Values are
    JSON if they can be, else strings; a wrong name lists the rule's settings."""
    explore_option: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """NAME=VALUE for a setting of the explore rule, such as window=100 (pb2); repeat it for more."""

    def __post_init__(self) -> None:
        require(self.ready in READY_RULES, "pbt.ready", self.ready, f"give one of {', '.join(READY_RULES)}")
        for name, rules in (("exploit", EXPLOIT_RULES), ("explore", EXPLORE_RULES)):
            rule = getattr(self, name)
            remedy = f"give one of {', '.join(rules)}, or module:Class of your own"
            require(rule in rules or ":" in rule, f"pbt.{name}", rule, remedy)
        require(
            0 < self.ready_fraction <= 1, "pbt.ready-fraction", self.ready_fraction, "give above 0, at most 1"
        )
        require(self.period_frames > 0, "pbt.period-frames", self.period_frames, "give a number above 0")
        require(
            self.period_growth >= 1, "pbt.period-growth", self.period_growth, "give a factor of at least 1"
        )
        require(self.start_frames >= 0, "pbt.start-frames", self.start_frames, "give 0 or more")
        require(
            0 <= self.replace_fraction <= 0.5, "pbt.replace-fraction", self.replace_fraction, "give 0 to 0.5"
        )
        for name in ("replace_gap", "replace_gap_absolute"):
            value = getattr(self, name)
            require(value >= 0, f"pbt.{name.replace('_', '-')}", value, "give 0 or more")
        for name in ("mutation_rate", "reset_probability", "explore_probability", "t_test_level"):
            value = getattr(self, name)
            require(value is None or 0 <= value <= 1, f"pbt.{name.replace('_', '-')}", value, "give 0 to 1")
        require(self.perturb_min >= 1, "pbt.perturb-min", self.perturb_min, "give a factor of at least 1")
        require(
            self.perturb_max >= self.perturb_min,
            "pbt.perturb-max",
            self.perturb_max,
            "give at least --pbt.perturb-min",
        )
        require(
            len(self.factors) > 0 and min(self.factors, default=0) > 0,
            "pbt.factors",
            " ".join(map(str, self.factors)),
            "give one or more factors above 0, such as 1.2 0.8",
        )
        module, _, function = self.custom_explore.partition(":")
        require(
            not self.custom_explore or bool(module and function),
            "pbt.custom-explore",
            self.custom_explore,
            "write module:function",
        )
        every = self.frequencies
        require(
            len(every) > 0 and min(every, default=0) > 0 and len(set(every)) == len(every),
            "pbt.frequencies",
            " ".join(map(str, every)),
            "give different numbers of periods, each 1 or more",
        )
        for name in ("objective_episodes", "min_episodes"):
            value = getattr(self, name)
            require(value > 0, f"pbt.{name.replace('_', '-')}", value, "give 1 or more")
