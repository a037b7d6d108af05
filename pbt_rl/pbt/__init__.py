"""The part that decides: pure, seeded Python. No torch, no processes, no I/O.

Controllers, their rules and searches, and the table of values: `from pbt_rl.pbt import PbtController, HyperSpec, ...`.
Each name is imported when it is first used. Those of an extra, a folder with an `extra.py`, can be imported from here
as well: its `NAMES` says from which of its modules.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from pbt_rl.extras import offered

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
    from pbt_rl.pbt.ready.asynchronous import Asynchronous
    from pbt_rl.pbt.ready.base import Ready
    from pbt_rl.pbt.ready.partially import PartiallySynchronous
    from pbt_rl.pbt.ready.synchronous import Synchronous
    from pbt_rl.pbt.schedule import Schedule
    from pbt_rl.pbt.state import restore_state, save_state

__all__ = [
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
    "Impala",
    "Lineage",
    "MemberReport",
    "MultiplyOrDivide",
    "Mutate",
    "PairwiseLearning",
    "PartiallySynchronous",
    "PbtController",
    "Perturb",
    "PerturbFactors",
    "PopulationReport",
    "QuantileTruncation",
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
    "Synchronous",
    "TTest",
    "Truncation",
    "Values",
    "boolean_spec",
    "choice_spec",
    "decode",
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
    "explore.perturb": "Perturb",
    "explore.pipeline": "ExplorePipeline",
    "explore.resample": "Resample ResampleAll",
    "hypers": "HyperSpec Values boolean_spec choice_spec decode flat_table sample_prior",
    "lineage": "Lineage",
    "ready.asynchronous": "Asynchronous",
    "ready.base": "Ready",
    "ready.partially": "PartiallySynchronous",
    "ready.synchronous": "Synchronous",
    "schedule": "Schedule",
    "state": "restore_state save_state",
}
_MODULE = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name in _MODULE:
        return getattr(importlib.import_module(f"{__name__}.{_MODULE[name]}"), name)
    if not name.startswith("_"):
        for names in offered(__name__, "NAMES"):
            if name in names:
                return getattr(importlib.import_module(names[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
