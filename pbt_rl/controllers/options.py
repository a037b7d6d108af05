"""Options of population-based training, of schedules, and of searches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pbt_rl.errors import require
from pbt_rl.options.declare import names_module, names_object, option
from pbt_rl.registry import EXPLOIT_RULES, EXPLORE_RULES, READY_RULES


def _texts(rules: Mapping[str, Any]) -> dict[str, str]:
    """Return name -> help of each rule that has one. The option's help describes the others."""
    return {name: rule.help for name, rule in rules.items() if rule.help}


def _once(entries: tuple[str, ...]) -> bool:
    return len({entry.partition("=")[0].replace("-", "_") for entry in entries}) == len(entries)


@dataclass(frozen=True)
class PbtConfig:
    """Population-based training: when members are compared, and how they change."""

    enabled: bool = option(True, common=True)
    """Compare and change members. Off: members train independently, all with the initial values of member 0."""
    ready: str = option("synchronous", choices=lambda: tuple(READY_RULES), texts=lambda: _texts(READY_RULES))
    """Rule for the time of comparisons. `synchronous`: all members together, every --pbt.period-frames. {each}"""
    period_frames: int = option(2_500_000, above=0, common=True)
    """PBT interval: emulator frames per member between two comparisons."""
    period_growth: float = option(1.0, at_least=1)
    """Factor from each PBT interval to the next. 1: constant."""
    start_frames: int = option(5_000_000, at_least=0, common=True)
    """Emulator frames per member before the first comparison. With --pbt.ready asynchronous each member counts on its
    own."""
    ready_fraction: float = option(0.8, above=0, at_most=1)
    """Share of the members that must be due to start a comparison (--pbt.ready partially-synchronous)."""
    period_seconds: float = option(600.0, above=0)
    """Seconds of training between two comparisons of all members (--pbt.ready timed). The journal records the time of
    each one, so `audit` can replay it. Such a run is not reproducible from its seed, even with --mode serial."""
    start_seconds: float = option(0.0, at_least=0)
    """Seconds of training before the first comparison, at least one interval (--pbt.ready timed)."""
    frequencies: tuple[int, ...] = option((), at_least=1, distinct=True, empty=True)
    """One group of members per number n, compared every n-th PBT interval (--controller mf-pbt). Empty: 1 10 for at
    most 16 members, else 1 10 25 50 (Doulazmi et al. 2025)."""
    migrant_hypers: Literal["own", "best"] = "own"
    """Values of a member that copies the weights of a faster group (--controller mf-pbt): its `own`, or those of the
    `best` member of its group."""
    exploit: str = option(
        "top-middle-bottom",
        choices=lambda: tuple(EXPLOIT_RULES),
        texts=lambda: _texts(EXPLOIT_RULES),
        custom="module:Class",
        common=True,
    )
    """Rule for the choice of donors. `top-middle-bottom` (Sample Factory): the best stay unchanged, the worst copy one
    of the best and mutate, the others keep their weights and mutate. `truncation` (Jaderberg et al. 2017, Ray): only
    the worst change. {each} Or your own class or function (docs/reference/rules.md)."""
    copy: Literal["both", "weights", "hypers"] = "both"
    """Parts that a replaced member copies. `weights`: each member keeps its first values, without mutation. `hypers`:
    each member keeps its own weights. Both are ablations of Jaderberg et al. (2017), section 4.4.3."""
    replace_fraction: float = option(0.3, at_least=0, at_most=0.5)
    """Size of the best group and of the worst group, as a share of the population, at least 1 member each
    (--pbt.exploit top-middle-bottom, truncation, sigma-gap)."""
    replace_gap: float = option(0.1, at_least=0)
    """Minimum lead of a donor over the member that it replaces, as a share of the larger of the two magnitudes. A donor
    must exceed all three minimum leads (--pbt.exploit top-middle-bottom, truncation)."""
    replace_gap_absolute: float = option(1e-6, at_least=0)
    """Minimum lead of a donor, in the unit of the objective."""
    replace_errors: float = option(2.5, at_least=0)
    """Minimum lead of a donor, in standard errors of the difference of the two means. 0: differences within the noise
    count too."""
    t_test_level: float = option(0.05, at_least=0, at_most=1)
    """Significance level of Welch's two-sided test on the last 10 episodes (--pbt.exploit t-test)."""
    exploit_option: tuple[str, ...] = option((), pairs=True)
    """NAME=VALUE for a setting of the exploit rule, such as sigmas=0.4 (sigma-gap). May be repeated. A value that is
    not JSON is a string. The error for an unknown name lists the settings of the rule."""
    explore: str = option(
        "perturb",
        choices=lambda: tuple(EXPLORE_RULES),
        texts=lambda: _texts(EXPLORE_RULES),
        custom="module:Class",
        common=True,
    )
    """Rule for the change of values. `perturb` (Sample Factory): multiply or divide some values by a random factor. A
    copy draws values with a user-defined range anew with probability 0.25. `factors` (Jaderberg et al. 2017): multiply
    each value by one of --pbt.factors. {each}"""
    mutation_rate: float = option(0.15, at_least=0, at_most=1)
    """Probability that a value changes when its member mutates (--pbt.explore perturb)."""
    perturb_min: float = option(1.1, at_least=1)
    """Smallest factor that a value is multiplied or divided by (--pbt.explore perturb)."""
    perturb_max: float = option(1.5, at_least=1)
    """Largest factor that a value is multiplied or divided by (--pbt.explore perturb)."""
    reset_probability: float = option(0.01, at_least=0, at_most=1)
    """Probability that a changing value returns to its default (--pbt.explore perturb)."""
    factors: tuple[float, ...] = option((1.2, 0.8), above=0)
    """Factors that a value may be multiplied by (--pbt.explore factors, resample)."""
    explore_probability: float | None = option(None, at_least=0, at_most=1)
    """Probability per value that it changes (factors, multiply-or-divide), or that it is drawn anew (resample,
    pairwise, and perturb for user-defined ranges). With resample-all: probability that all values are drawn anew. None:
    1 for factors and multiply-or-divide (1/3 with --pbt.exploit impala), 0.2 for resample-all, 0.25 for the others."""
    explore_option: tuple[str, ...] = option((), pairs=True)
    """NAME=VALUE for a setting of the explore rule, such as window=100 (pb2). May be repeated. The error for an unknown
    name lists the settings of the rule."""
    custom_explore: str = option(
        "",
        test=lambda text: text == "" or names_object(text),
        remedy="module:function",
        leads_out=names_module,
    )
    """Your own function as module:function, called after the explore rule. It receives the values (name -> number) and
    a random.Random, and returns the new values."""
    objective_episodes: int = option(100, at_least=1, common=True)
    """Window of the objective: mean over at most this many of the latest episodes since the member changed."""
    min_episodes: int = option(5, at_least=1)
    """Finished episodes since its last change that a member needs for a comparison. A member with fewer waits for the
    next one."""
    evaluate_episodes: int = option(0, at_least=0)
    """Evaluation episodes per member before each comparison, which then determine its objective. Rounded up to an equal
    number per environment. The member does not learn meanwhile, and the frames count towards the budget. 0: compare by
    training episodes. (The final evaluation has its own option, --final-episodes.)"""
    tune: tuple[str, ...] = option((), common=True, test=_once, remedy="each name once")
    """Values to tune: hypers by name, reward shaping as `shaping.NAME`. Empty: the default set of hypers, and all
    shaping except score_scale, because normalised advantages cancel a factor on all rewards.
    NAME=LOW:HIGH sets the bounds of mutations. All start values are then drawn from them, evenly on the scale of the
    value; member 0 keeps its --hypers.* if that is within. NAME=LOW:HIGH:SCALE: draw on the scale log, linear,
    one-minus or int."""
    prior: tuple[str, ...] = option((), common=True, test=_once, remedy="each name once")
    """Distribution of the start values, if narrower than the bounds: NAME=LOW:HIGH, NAME=LOW:HIGH:SCALE, or choices as
    NAME=A,B,C."""
    start_values: tuple[str, ...] = ()
    """Start values of single members. Either a table (FILE.csv with one column per value, FILE.json with one object per
    member), or one text per member such as learning_rate=1e-3,gamma=0.99. Omitted values start as usual."""

    def __post_init__(self) -> None:
        require(
            self.perturb_max >= self.perturb_min,
            "pbt.perturb-max",
            self.perturb_max,
            f"give at least --pbt.perturb-min, {self.perturb_min:g}",
        )


@dataclass(frozen=True)
class ScheduleConfig:
    """Follow the schedule of a recorded run. Each member follows it, with its own weights."""

    run: str = ""
    """Folder of the recorded run."""
    member: str = option(
        "best",
        test=lambda member: member == "best" or member.isdecimal(),
        remedy="`best` or the id of a member",
    )
    """Member whose schedule is followed, along its ancestry: `best` or an id."""
    hold_final: bool = False
    """Hold the last values of the schedule from the start (ablation of Jaderberg et al. 2017)."""


@dataclass(frozen=True)
class SearchConfig:
    """Searches: HyperTrick, Successive Halving, Hyperband, ASHA and random search.

    Each member is one configuration, drawn from the priors of the tuned values (--pbt.tune); none has the defaults.
    When a member stops, the next one takes its slot (--slots).
    """

    phases: int = option(10, at_least=1, at_most=1000)
    """Phases of a configuration that trains to the end (all but hyperband and asha)."""
    phase_frames: int = option(0, at_least=0, zero="derived")
    """Emulator frames per member and phase (hyperband, asha: per unit of the resource). Derived: --train-for-frames
    divided by --search.phases (hyperband, asha: by --search.resource)."""
    phase_episodes: int = option(0, at_least=0, zero="by frames")
    """Episodes per member and phase, instead of frames (hypertrick; Heinrich and Frosio 2019: 2,500). Counted twice per
    second, at the reports of the learner. A phase also ends at --train-for-frames."""
    eviction_rate: float = option(0.25, at_least=0, below=1)
    """Share of members stopped at the end of each phase: expected (hypertrick) or exact (successive-halving; 0.5
    halves)."""
    allocation: Literal["static", "dynamic"] = "dynamic"
    """Assignment of members to slots (successive-halving). `dynamic`: a free slot trains any member that has not
    finished the phase. `static`: each slot has a fixed set of members, and idles once they have finished the phase."""
    eta: int = option(3, at_least=2)
    """Inverse of the share of members promoted from each bracket or rung (hyperband, asha)."""
    resource: int = option(27, at_least=1)
    """Units of the longest training, R (hyperband, asha). With eta 3: 46 configurations in 4 brackets (hyperband), or
    rungs of 1, 3, 9 and 27 units (asha)."""
    restart: bool = True
    """Restart promoted members from initialised weights (hyperband; Heinrich and Frosio 2019). Off: they train on."""
    sampling: Literal["random", "grid"] = "random"
    """Configurations. `random`: drawn from the priors. `grid`: points of a grid, evenly spaced on the scale of each
    value."""
