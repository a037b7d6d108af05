"""The rules that the options of population-based training name."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pbt_rl.errors import ConfigError
from pbt_rl.pbt.exploit.base import Exploit
from pbt_rl.pbt.exploit.truncation import (
    Backtrack,
    BinaryTournament,
    ExploitPipeline,
    Gap,
    Impala,
    QuantileTruncation,
    SigmaGap,
    Truncation,
    TTest,
)
from pbt_rl.pbt.explore.pb2 import Pb2
from pbt_rl.pbt.explore.rules import (
    CustomExplore,
    Explore,
    ExplorePipeline,
    MultiplyOrDivide,
    Perturb,
    PerturbFactors,
    Resample,
    ResampleAll,
)
from pbt_rl.pbt.hypers import HyperSpec
from pbt_rl.pbt.ready import Asynchronous, PartiallySynchronous, Ready, Synchronous

if TYPE_CHECKING:
    from pbt_rl.pbt.options import PbtConfig

ORION_VOLATILITY = 1e-4
LEAST_MEMBERS = {"quantile": 5, "backtrack": 5, "sigma-gap": 3}
"""Exploit rules that do nothing in a smaller population."""


def make_ready(pbt: PbtConfig) -> Ready:
    """The rule that says when."""
    common = pbt.period_frames, pbt.start_frames, pbt.min_episodes, pbt.period_growth
    if pbt.ready == "asynchronous":
        return Asynchronous(*common)
    if pbt.ready == "partially-synchronous":
        return PartiallySynchronous(*common, fraction=pbt.ready_fraction)
    return Synchronous(*common)


def make_exploit(pbt: PbtConfig) -> Exploit:
    """The rule of selection."""
    if pbt.exploit == "t-test":
        return TTest(pbt.t_test_level)
    if pbt.exploit == "binary-tournament":
        return BinaryTournament()
    if pbt.exploit == "quantile":
        return QuantileTruncation()
    if pbt.exploit == "backtrack":
        return ExploitPipeline((Backtrack(), QuantileTruncation()))
    if pbt.exploit == "impala":
        return Impala()
    if pbt.exploit == "sigma-gap":
        return SigmaGap(pbt.replace_fraction)
    gap = Gap(pbt.replace_gap, pbt.replace_gap_absolute)
    return Truncation(pbt.replace_fraction, gap, others_mutate=pbt.exploit == "top-middle-bottom")


def make_explore(pbt: PbtConfig, table: Mapping[str, HyperSpec], tuned: Mapping[str, HyperSpec]) -> Explore:
    """The rule of exploration, with the user's own function last. Raises ConfigError if that cannot be loaded."""
    rule = _built_in(pbt, tuned)
    if not pbt.custom_explore:
        return rule
    module, _, function = pbt.custom_explore.partition(":")
    try:
        loaded = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"--pbt.custom-explore {pbt.custom_explore} cannot be loaded: {error}") from error
    return ExplorePipeline((rule, CustomExplore(loaded, table)), until_change=False)


def _built_in(pbt: PbtConfig, tuned: Mapping[str, HyperSpec]) -> Explore:
    def probability(usual: float) -> float:
        return usual if pbt.explore_probability is None else pbt.explore_probability

    each = probability(1 / 3 if pbt.exploit == "impala" else 1.0)
    if pbt.explore == "factors":
        return PerturbFactors(tuned, pbt.factors, each)
    if pbt.explore == "multiply-or-divide":
        return MultiplyOrDivide(tuned, probability=each)
    if pbt.explore == "resample":
        return Resample(tuned, probability(0.25), PerturbFactors(tuned, pbt.factors))
    if pbt.explore == "resample-all":
        else_change = MultiplyOrDivide(tuned, volatility=ORION_VOLATILITY)
        return ExplorePipeline((ResampleAll(tuned, probability(0.2)), else_change), until_change=True)
    if pbt.explore == "pb2":
        return Pb2(tuned)
    return Perturb(tuned, pbt.mutation_rate, pbt.perturb_min, pbt.perturb_max, pbt.reset_probability)
