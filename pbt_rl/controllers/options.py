"""Options of population-based training, of the controller that follows a recorded run, and of searches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pbt_rl.errors import require
from pbt_rl.options.declare import names_module, names_object, option
from pbt_rl.registry import EXPLOIT_RULES, EXPLORE_RULES, READY_RULES


def _texts(rules: Mapping[str, Any]) -> dict[str, str]:
    """Return name -> help of each rule that has one; the option's own help has those of the others."""
    return {name: rule.help for name, rule in rules.items() if rule.help}


def _once(entries: tuple[str, ...]) -> bool:
    return len({entry.partition("=")[0].replace("-", "_") for entry in entries}) == len(entries)


@dataclass(frozen=True)
class PbtConfig:
    """Population-based training: when members are compared and how they change."""

    enabled: bool = option(True, common=True)
    """Compare and change members. Off: members train independently, all with the initial values of member 0."""
    ready: str = option("synchronous", choices=lambda: tuple(READY_RULES), texts=lambda: _texts(READY_RULES))
    """`synchronous`: all members are compared together. {each}"""
    period_frames: int = option(2_500_000, above=0, common=True)
    """Emulator frames of each member between two comparisons (a meta-epoch)."""
    period_growth: float = option(1.0, at_least=1)
    """Factor from each period to the next."""
    start_frames: int = option(5_000_000, at_least=0, common=True)
    """Compare no members before all of them (asynchronous: before the member) have this many frames."""
    ready_fraction: float = option(0.8, above=0, at_most=1)
    """partially-synchronous: share of the members that must have arrived."""
    period_seconds: float = option(600.0, above=0)
    """--pbt.ready timed: seconds of training between two comparisons of all members. The journal keeps at which second
    each was held, so that `audit` decides it again; two runs of one seed are not alike, not even with --mode serial."""
    start_seconds: float = option(0.0, at_least=0)
    """timed: compare no members before this many seconds of training, nor before a whole period."""
    frequencies: tuple[int, ...] = option((), at_least=1, distinct=True, empty=True)
    """mf-pbt: one group of members for each of these, compared every n-th period. Empty: 1 10 for at most 16 members,
    else 1 10 25 50 (Doulazmi et al. 2025)."""
    migrant_hypers: Literal["own", "best"] = "own"
    """mf-pbt: a member that takes the weights of a faster group keeps its `own` values or takes those of the `best`
    member of its group."""
    exploit: str = option(
        "top-middle-bottom",
        choices=lambda: tuple(EXPLOIT_RULES),
        texts=lambda: _texts(EXPLOIT_RULES),
        custom="module:Class",
        common=True,
    )
    """`top-middle-bottom` (Sample Factory): the best stay, the worst copy one of the best and mutate, the others
    keep their weights and mutate. `truncation` (Jaderberg et al. 2017, Ray): only the worst change. {each} Or your own
    class or function (docs/reference/rules.md)."""
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
    t_test_level: float = option(0.05, at_least=0, at_most=1)
    """t-test: level of the two-sided Welch test on the last 10 episodes."""
    exploit_option: tuple[str, ...] = option((), pairs=True)
    """NAME=VALUE for a setting of the exploit rule, such as sigmas=0.4 (sigma-gap). May be repeated. A value
    that is not JSON is a string; a wrong name lists the settings of the rule."""
    explore: str = option(
        "perturb",
        choices=lambda: tuple(EXPLORE_RULES),
        texts=lambda: _texts(EXPLORE_RULES),
        custom="module:Class",
        common=True,
    )
    """`perturb` (Sample Factory): some values are multiplied or divided by a uniform factor, and one with a range of
    your own is drawn anew one time in four. `factors` (Jaderberg et al. 2017): each is multiplied by one of
    --pbt.factors. {each}"""
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
    (resample, pairwise, perturb if it has a range of your own; None: 0.25), or that all are (resample-all; None:
    0.2)."""
    explore_option: tuple[str, ...] = option((), pairs=True)
    """NAME=VALUE for a setting of the explore rule, such as window=100 (pb2). May be repeated."""
    custom_explore: str = option(
        "",
        test=lambda text: text == "" or names_object(text),
        remedy="module:function",
        leads_out=names_module,
    )
    """Your own function as module:function, called last with the values (name -> number) and a random.Random; it
    returns the new values."""
    objective_episodes: int = option(100, at_least=1, common=True)
    """Average the objective over at most this many of the last episodes since the member changed."""
    min_episodes: int = option(5, at_least=1)
    """Leave a member with fewer finished episodes since its last change to the next comparison."""
    evaluate_episodes: int = option(0, at_least=0)
    """Evaluate each member on purpose before it is compared: it learns nothing until its environments have played so
    many whole episodes (rounded up to equally many of each), and these are its objective. Their frames count in the
    budget. At the end of the run all members play --final-episodes. 0: compare by the episodes of training."""
    tune: tuple[str, ...] = option((), common=True, test=_once, remedy="each name once")
    """Names of the values to tune: hypers by name, shaping as `shaping.NAME`. Empty: the usual hypers, and all shaping
    but score_scale (a factor on all rewards, which normalised advantages do not see).
    NAME=LOW:HIGH sets bounds: mutations keep to them, and members and searches start drawn from them (member 0 at its
    --hypers.* if that lies within), evenly on the value's scale; NAME=LOW:HIGH:SCALE: on log, linear, one-minus or
    int."""
    prior: tuple[str, ...] = option((), common=True, test=_once, remedy="each name once")
    """Where the tuned values start, if not anywhere within their bounds: NAME=LOW:HIGH, NAME=LOW:HIGH:SCALE, or choices
    as NAME=A,B,C."""
    start_values: tuple[str, ...] = ()
    """Start values of single members: a table (FILE.csv with a column per value, FILE.json with an object per member),
    or one text per member such as learning_rate=1e-3,gamma=0.99. What is left out starts as without it."""

    def __post_init__(self) -> None:
        require(
            self.perturb_max >= self.perturb_min,
            "pbt.perturb-max",
            self.perturb_max,
            f"give at least --pbt.perturb-min, {self.perturb_min:g}",
        )


@dataclass(frozen=True)
class ScheduleConfig:
    """Follow the schedule of a recorded run: every member does, with its own weights."""

    run: str = ""
    """Folder of the recorded run."""
    member: str = option(
        "best",
        test=lambda member: member == "best" or member.isdecimal(),
        remedy="`best` or the id of a member",
    )
    """Member whose schedule is followed, along its ancestry: `best` or an id."""
    hold_final: bool = False
    """Hold the schedule's last values from the start (the paper's ablation) instead of following it."""


@dataclass(frozen=True)
class SearchConfig:
    """HyperTrick, Successive Halving, Hyperband, ASHA and random search. The members are the configurations; all are
    drawn from the priors of the values to tune (--pbt.tune), none has the defaults. The next member takes the slot of
    a stopped one (--slots).
    """

    phases: int = option(10, at_least=1, at_most=1000)
    """Phases of a configuration that is never stopped (all but hyperband and asha)."""
    phase_frames: int = option(0, at_least=0, zero="derived")
    """Emulator frames of each member per phase (hyperband, asha: per unit of the resource). Derived: --train-for-frames
    divided by --search.phases (hyperband, asha: by --search.resource)."""
    phase_episodes: int = option(0, at_least=0, zero="by frames")
    """hypertrick: a phase ends with this many episodes of the member (Heinrich and Frosio 2019: 2,500), as seen at the
    reports of its learner, twice per second; with --train-for-frames it ends in any case."""
    eviction_rate: float = option(0.25, at_least=0, below=1)
    """Share of members stopped at the end of each phase: expected (hypertrick) or exact (successive-halving; 0.5
    halves)."""
    allocation: Literal["static", "dynamic"] = "dynamic"
    """successive-halving: `dynamic`: any free slot trains any member that has not ended the phase. `static`:
    each slot has members of its own, and idles when these have ended the phase."""
    eta: int = option(3, at_least=2)
    """hyperband, asha: one of this many members of a bracket or rung goes on."""
    resource: int = option(27, at_least=1)
    """hyperband, asha: units of the longest training (R). With eta 3: 46 configurations in 4 brackets; of asha rungs of
    1, 3, 9 and 27 units."""
    restart: bool = True
    """hyperband: members that go on start again from fresh weights (Heinrich and Frosio 2019). Off: they train on."""
    sampling: Literal["random", "grid"] = "random"
    """`random`: drawn from the priors. `grid`: the points of a grid, evenly spaced on each value's scale."""
