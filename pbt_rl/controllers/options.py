"""Options of population-based training, of schedules, and of searches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pbt_rl.errors import require
from pbt_rl.options.declare import names_module, names_object, option
from pbt_rl.registry import EXPLOIT_RULES, EXPLORE_RULES, READY_RULES


def _texts(rules: Mapping[str, Any]) -> dict[str, str]:
    """Return name -> help text of rules. The docstring of the option describes rules without a help text."""
    return {name: rule.help for name, rule in rules.items() if rule.help}


def _once(entries: tuple[str, ...]) -> bool:
    return len({entry.partition("=")[0].replace("-", "_") for entry in entries}) == len(entries)


@dataclass(frozen=True)
class PbtConfig:
    """Population-based training: when members are compared, and how they change."""

    enabled: bool = option(True, common=True, may_change=False)
    """Compare and change members. With --pbt.no-enabled, members train independently, with the values of --hypers,
    --shaping and --pbt.start-values."""
    ready: str = option(
        "synchronous",
        choices=lambda: tuple(READY_RULES),
        texts=lambda: _texts(READY_RULES),
        may_change=False,
    )
    """Rule for the time of comparisons. `synchronous`: compare all members together, every --pbt.period-frames.
    {each}"""
    period_frames: int = option(2_500_000, above=0, common=True)
    """Period: emulator frames of each member between two comparisons."""
    period_growth: float = option(1.0, at_least=1)
    """Each period is longer than the previous period by this factor. 1: all periods are equal."""
    start_frames: int = option(5_000_000, at_least=0, common=True)
    """Emulator frames per member before the first comparison, at least one period."""
    ready_fraction: float = option(0.8, above=0, at_most=1)
    """Share of the members that must be due before a comparison (--pbt.ready partially-synchronous)."""
    period_seconds: float = option(600.0, above=0)
    """Period in seconds of training (--pbt.ready timed). The journal records the time of each comparison, because
    `audit` needs these times. A timed run is not reproducible from its seed, even with --mode serial."""
    start_seconds: float = option(0.0, at_least=0)
    """Seconds of training before the first comparison, at least one period (--pbt.ready timed)."""
    frequencies: tuple[int, ...] = option((), at_least=1, distinct=True, empty=True)
    """Groups of members (--controller mf-pbt). Each number n defines a group that is compared after every n-th
    period. Default: 1 10 for at most 16 members, otherwise 1 10 25 50 (Doulazmi et al. 2025)."""
    migrant_hypers: Literal["own", "best"] = "own"
    """Values of a member that copies weights from a group with more frequent comparisons (--controller mf-pbt). `own`:
    the member keeps its values. `best`: the member copies the values of the best member in its group."""
    exploit: str = option(
        "top-middle-bottom",
        choices=lambda: tuple(EXPLOIT_RULES),
        texts=lambda: _texts(EXPLOIT_RULES),
        custom="module:Class",
        common=True,
    )
    """Rule for replacements. `top-middle-bottom` (Sample Factory): the best members stay unchanged, each of the worst
    members copies a random member of the best and mutates, and the other members only mutate. `truncation` (Jaderberg
    et al. 2017, Ray): only the worst members copy and mutate. {each} Or your own class or function
    (docs/reference/rules.md)."""
    copy: Literal["both", "weights", "hypers"] = "both"
    """Parts that a replaced member copies. `both`: weights and values. `weights`: members keep their initial values,
    without mutation. `hypers`: members keep their own weights. `weights` and `hypers` are ablations of Jaderberg et al.
    (2017), section 4.4.3."""
    replace_fraction: float = option(0.3, at_least=0, at_most=0.5)
    """Size of the best group, and of the worst group, as a share of the population (--pbt.exploit top-middle-bottom,
    truncation, sigma-gap). Unless the share is 0, each group has at least 1 member."""
    replace_gap: float = option(0.1, at_least=0)
    """Minimum lead of a donor over the replaced member, relative to the larger of the two absolute objectives
    (--pbt.exploit top-middle-bottom, truncation). The lead must exceed --pbt.replace-gap, --pbt.replace-gap-absolute
    and --pbt.replace-errors."""
    replace_gap_absolute: float = option(1e-6, at_least=0)
    """Minimum lead of a donor, in the unit of the objective (see --pbt.replace-gap)."""
    replace_errors: float = option(2.5, at_least=0)
    """Minimum lead of a donor, in standard errors of the difference between the two mean objectives (see
    --pbt.replace-gap). 0: do not test the significance."""
    t_test_level: float = option(0.05, at_least=0, at_most=1)
    """Significance level of Welch's two-sided t-test on the last 10 episodes (--pbt.exploit t-test)."""
    exploit_option: tuple[str, ...] = option((), pairs=True)
    """NAME=VALUE: setting of the exploit rule, such as sigmas=0.4 (sigma-gap). A value that is not JSON is used as a
    string. The error for an unknown name lists the settings of the rule."""
    explore: str = option(
        "perturb",
        choices=lambda: tuple(EXPLORE_RULES),
        texts=lambda: _texts(EXPLORE_RULES),
        custom="module:Class",
        common=True,
    )
    """Rule for mutations. `perturb` (Sample Factory): multiply or divide some values by a random factor. After a
    replacement, each value with a user-defined range may be redrawn from its prior (--pbt.explore-probability).
    `factors` (Jaderberg et al. 2017): multiply each value by one of --pbt.factors. {each}"""
    mutation_rate: float = option(0.15, at_least=0, at_most=1)
    """Probability that a value changes when its member mutates (--pbt.explore perturb)."""
    perturb_min: float = option(1.1, at_least=1)
    """Smallest factor by which a value is multiplied or divided (--pbt.explore perturb)."""
    perturb_max: float = option(1.5, at_least=1)
    """Largest factor by which a value is multiplied or divided (--pbt.explore perturb)."""
    reset_probability: float = option(0.01, at_least=0, at_most=1)
    """Probability that a changing value returns to its default (--pbt.explore perturb)."""
    factors: tuple[float, ...] = option((1.2, 0.8), above=0)
    """Factors by which a value may be multiplied (--pbt.explore factors, resample)."""
    explore_probability: float | None = option(None, at_least=0, at_most=1)
    """Probability of a change. The kind of change depends on --pbt.explore. factors, multiply-or-divide: a value is
    multiplied or divided (default: 1; with --pbt.exploit impala: 1/3). resample, pairwise: a value is redrawn from its
    prior (default: 0.25). perturb: the same, but only for values with a user-defined range. resample-all: all values
    are redrawn (default: 0.2)."""
    explore_option: tuple[str, ...] = option((), pairs=True)
    """NAME=VALUE: setting of the explore rule, such as window=100 (pb2). The error for an unknown name lists the
    settings of the rule."""
    custom_explore: str = option(
        "",
        test=lambda text: text == "" or names_object(text),
        remedy="module:function",
        is_external=names_module,
    )
    """Your own function as module:function, called after the explore rule. Arguments: the values (name -> number) and a
    random.Random. Return value: the new values."""
    objective_episodes: int = option(100, at_least=1, common=True)
    """Window of the objective: maximum number of latest episodes in the mean. Episodes before the member's last change
    do not count."""
    min_episodes: int = option(5, at_least=1)
    """Minimum number of episodes of a member since its last comparison (--pbt.ready asynchronous,
    partially-synchronous: since its last change). A member with fewer episodes is not compared yet. In a search, a
    phase with fewer episodes is extended."""
    evaluate_episodes: int = option(0, at_least=0)
    """Evaluation episodes per member before each comparison, rounded up to an equal number per environment. The mean
    over these episodes is the objective. Members do not learn during an evaluation, but the frames of the evaluation
    count towards the budget. 0: rank members by their training episodes. The final evaluation has a separate option,
    --final-episodes."""
    tune: tuple[str, ...] = option((), common=True, test=_once, remedy="each name once")
    """Values to tune: hypers by name, reward shaping as `shaping.NAME`. Default: the hypers marked as tuned in
    --help-all, and the reward weights. (A hyper that is switched off, for example by 0, is not tuned. Of the weights
    with the value 0, only life_loss_penalty is tuned. score_scale is not tuned, because advantage normalisation cancels
    a common factor of all rewards.) NAME=LOW:HIGH also sets the bounds of mutations. Start values are then drawn
    between the bounds, uniformly on the scale of the value. Member 0 starts with the --hypers.* value if this value is
    within the bounds. NAME=LOW:HIGH:SCALE also sets the scale of this draw: log, linear, one-minus or int. With int,
    mutations keep the value whole."""
    prior: tuple[str, ...] = option((), common=True, test=_once, remedy="each name once")
    """Distribution of the start values, if it is narrower than the bounds: NAME=LOW:HIGH, NAME=LOW:HIGH:SCALE, or
    choices as NAME=A,B,C."""
    start_values: tuple[str, ...] = option((), may_change=False)
    """Start values of individual members: a table (FILE.csv with one column per value, FILE.json with one object per
    member), or one text per member such as learning_rate=1e-3,gamma=0.99. Values that are not listed start as without
    this option."""

    def __post_init__(self) -> None:
        require(
            self.perturb_max >= self.perturb_min,
            "pbt.perturb-max",
            self.perturb_max,
            f"give at least --pbt.perturb-min, {self.perturb_min:g}",
        )


@dataclass(frozen=True)
class ScheduleConfig:
    """Schedule of values that each member follows, read from a recorded run (--controller schedule)."""

    run: str = ""
    """Folder of the recorded run."""
    member: str = option(
        "best",
        test=lambda member: member == "best" or member.isdecimal(),
        remedy="`best` or the id of a member",
    )
    """Member of the recorded run whose schedule is followed: `best` or an id. The schedule includes the ancestors of
    this member."""
    hold_final: bool = False
    """Use the last values of the schedule from the start of training (ablation of Jaderberg et al. 2017)."""


@dataclass(frozen=True)
class SearchConfig:
    """Searches: HyperTrick, Successive Halving, Hyperband, ASHA and random search.

    Each member is one configuration, drawn from the priors of the tuned values (--pbt.tune). Member 0 is drawn too, so
    the --hypers values are not among the configurations. When a member stops, the next member takes its slot (--slots).
    """

    phases: int = option(10, at_least=1, at_most=1000)
    """Number of phases of a full training (not hyperband and asha)."""
    phase_frames: int = option(0, at_least=0, zero="derived")
    """Emulator frames per member and phase (hyperband, asha: per unit of the resource). Derived: --train-for-frames
    divided by --search.phases (hyperband, asha: by --search.resource)."""
    phase_episodes: int = option(0, at_least=0, zero="by frames")
    """Length of a phase in episodes per member instead of frames (hypertrick; Heinrich and Frosio 2019: 2,500).
    Episodes are counted at the reports of the learner: twice per second, or with --mode sync and serial after each
    batch. A phase also ends at --train-for-frames."""
    eviction_rate: float = option(0.25, at_least=0, below=1)
    """Share of members stopped at the end of each phase: expected share (hypertrick), or exact share,
    rounded to members (successive-halving)."""
    allocation: Literal["static", "dynamic"] = "dynamic"
    """Assignment of members to slots (successive-halving). `dynamic`: a free slot trains any member that has not
    finished the phase. `static`: each slot has a fixed set of members, and is idle when all of them have finished the
    phase."""
    eta: int = option(3, at_least=2)
    """Reduction factor: 1/eta of the members of each rung are promoted to the next rung (hyperband, asha)."""
    resource: int = option(27, at_least=1)
    """Maximum resource R: number of units in a full training (hyperband, asha). With eta 3 and R 27: 46 configurations
    in 4 brackets (hyperband), or rungs of 1, 3, 9 and 27 units (asha)."""
    restart: bool = True
    """Restart promoted members from initialised weights (hyperband; Heinrich and Frosio 2019). With
    --search.no-restart, promoted members continue with their weights."""
    sampling: Literal["random", "grid"] = "random"
    """Sampling of configurations. `random`: from the priors. `grid`: points of a grid with even spacing on the scale of
    each value."""
