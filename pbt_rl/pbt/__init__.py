"""The part that decides: pure, seeded Python. No torch, no processes, no I/O.

Controllers, their rules and searches, and the table of values: `from pbt_rl.pbt import PbtController, HyperSpec, ...`.
Each name is imported when it is first used. `pbt_rl.tune` trains populations of anything with them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pbt_rl.pbt.controllers import PbtController, StaticController
    from pbt_rl.pbt.decisions import (
        Continue,
        Controller,
        Decision,
        Evaluate,
        MemberReport,
        Mutate,
        PopulationReport,
        Replace,
        Restart,
        Stop,
    )
    from pbt_rl.pbt.evaluation import Evaluation
    from pbt_rl.pbt.exploit.backtrack import Backtrack
    from pbt_rl.pbt.exploit.base import Exploit, Gap, Selection
    from pbt_rl.pbt.exploit.pipeline import ExploitPipeline
    from pbt_rl.pbt.exploit.quantile import QuantileTruncation
    from pbt_rl.pbt.exploit.sigma_gap import SigmaGap
    from pbt_rl.pbt.exploit.tournaments import BinaryTournament, Impala, TTest
    from pbt_rl.pbt.exploit.truncation import Truncation
    from pbt_rl.pbt.explore.base import Explore
    from pbt_rl.pbt.explore.custom import CustomExplore
    from pbt_rl.pbt.explore.factors import MultiplyOrDivide, PerturbFactors
    from pbt_rl.pbt.explore.pairwise import PairwiseLearning
    from pbt_rl.pbt.explore.perturb import Perturb
    from pbt_rl.pbt.explore.pipeline import ExplorePipeline
    from pbt_rl.pbt.explore.resample import Resample, ResampleAll
    from pbt_rl.pbt.hypers import (
        HyperSpec,
        Values,
        boolean_spec,
        choice_spec,
        decode,
        flat_table,
        sample_prior,
    )
    from pbt_rl.pbt.lineage import Lineage
    from pbt_rl.pbt.mf_pbt.controller import MfPbt
    from pbt_rl.pbt.pb2.pb2 import Pb2
    from pbt_rl.pbt.pb2.pb2_mix import Pb2Mix
    from pbt_rl.pbt.ready.asynchronous import Asynchronous
    from pbt_rl.pbt.ready.base import Ready
    from pbt_rl.pbt.ready.partially import PartiallySynchronous
    from pbt_rl.pbt.ready.synchronous import Synchronous
    from pbt_rl.pbt.schedule import Schedule
    from pbt_rl.pbt.search.asha import Asha
    from pbt_rl.pbt.search.draws import draw_grid, draw_random
    from pbt_rl.pbt.search.hyperband import Hyperband
    from pbt_rl.pbt.search.hypertrick import HyperTrick, SuccessiveHalving
    from pbt_rl.pbt.search.random_search import RandomSearch
    from pbt_rl.pbt.state import restore_state, save_state

__all__ = [
    "Asha",
    "Asynchronous",
    "Backtrack",
    "BinaryTournament",
    "Continue",
    "Controller",
    "CustomExplore",
    "Decision",
    "Evaluate",
    "Evaluation",
    "Exploit",
    "ExploitPipeline",
    "Explore",
    "ExplorePipeline",
    "Gap",
    "HyperSpec",
    "HyperTrick",
    "Hyperband",
    "Impala",
    "Lineage",
    "MemberReport",
    "MfPbt",
    "MultiplyOrDivide",
    "Mutate",
    "PairwiseLearning",
    "PartiallySynchronous",
    "Pb2",
    "Pb2Mix",
    "PbtController",
    "Perturb",
    "PerturbFactors",
    "PopulationReport",
    "QuantileTruncation",
    "RandomSearch",
    "Ready",
    "Replace",
    "Resample",
    "ResampleAll",
    "Restart",
    "Schedule",
    "Selection",
    "SigmaGap",
    "StaticController",
    "Stop",
    "SuccessiveHalving",
    "Synchronous",
    "TTest",
    "Truncation",
    "Values",
    "boolean_spec",
    "choice_spec",
    "decode",
    "draw_grid",
    "draw_random",
    "flat_table",
    "restore_state",
    "sample_prior",
    "save_state",
]

_MODULES = {
    "controllers": "PbtController StaticController",
    "decisions": "Continue Controller Decision Evaluate MemberReport Mutate PopulationReport Replace Restart Stop",
    "evaluation": "Evaluation",
    "exploit.backtrack": "Backtrack",
    "exploit.base": "Exploit Gap Selection",
    "exploit.pipeline": "ExploitPipeline",
    "exploit.quantile": "QuantileTruncation",
    "exploit.sigma_gap": "SigmaGap",
    "exploit.tournaments": "BinaryTournament Impala TTest",
    "exploit.truncation": "Truncation",
    "explore.base": "Explore",
    "explore.custom": "CustomExplore",
    "explore.factors": "MultiplyOrDivide PerturbFactors",
    "explore.pairwise": "PairwiseLearning",
    "pb2.pb2": "Pb2",
    "pb2.pb2_mix": "Pb2Mix",
    "explore.perturb": "Perturb",
    "explore.pipeline": "ExplorePipeline",
    "explore.resample": "Resample ResampleAll",
    "hypers": "HyperSpec Values boolean_spec choice_spec decode flat_table sample_prior",
    "lineage": "Lineage",
    "mf_pbt.controller": "MfPbt",
    "ready.asynchronous": "Asynchronous",
    "ready.base": "Ready",
    "ready.partially": "PartiallySynchronous",
    "ready.synchronous": "Synchronous",
    "schedule": "Schedule",
    "search.asha": "Asha",
    "search.draws": "draw_grid draw_random",
    "search.hyperband": "Hyperband",
    "search.hypertrick": "HyperTrick SuccessiveHalving",
    "search.random_search": "RandomSearch",
    "state": "restore_state save_state",
}
_MODULE = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    if name not in _MODULE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"pbt_rl.pbt.{_MODULE[name]}"), name)
