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
    from pbt_rl.pbt.controllers import Evaluation, PbtController, StaticController
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
    from pbt_rl.pbt.exploit import (
        Exploit,
        Gap,
        Selection,
        Truncation,
    )
    from pbt_rl.pbt.explore import (
        CustomExplore,
        Explore,
        ExplorePipeline,
        MultiplyOrDivide,
        Perturb,
        PerturbFactors,
        Resample,
        ResampleAll,
    )
    from pbt_rl.pbt.hypers import (
        HyperSpec,
        Values,
        boolean_spec,
        choice_spec,
        decode,
        flat_table,
        sample_prior,
    )
    from pbt_rl.pbt.ready import Asynchronous, PartiallySynchronous, Ready, Synchronous
    from pbt_rl.pbt.state import restore_state, save_state
    from pbt_rl.pbt.tournaments import BinaryTournament, Impala, TTest

__all__ = [
    "Asynchronous",
    "BinaryTournament",
    "Continue",
    "Controller",
    "CustomExplore",
    "Decision",
    "Evaluate",
    "Evaluation",
    "Exploit",
    "Explore",
    "ExplorePipeline",
    "Gap",
    "HyperSpec",
    "Impala",
    "MemberReport",
    "MultiplyOrDivide",
    "Mutate",
    "PartiallySynchronous",
    "PbtController",
    "Perturb",
    "PerturbFactors",
    "PopulationReport",
    "Ready",
    "Replace",
    "Resample",
    "ResampleAll",
    "Restart",
    "Selection",
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
    "controllers": "Evaluation PbtController StaticController",
    "decisions": "Continue Controller Decision Evaluate MemberReport Mutate PopulationReport Replace Restart Stop",
    "exploit": "Exploit Gap Selection Truncation",
    "explore": (
        "CustomExplore Explore ExplorePipeline MultiplyOrDivide Perturb PerturbFactors Resample ResampleAll"
    ),
    "hypers": "HyperSpec Values boolean_spec choice_spec decode flat_table sample_prior",
    "ready": "Asynchronous PartiallySynchronous Ready Synchronous",
    "state": "restore_state save_state",
    "tournaments": "BinaryTournament Impala TTest",
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
