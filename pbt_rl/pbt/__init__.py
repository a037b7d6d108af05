"""The part that thinks: pure, seeded Python. No torch, no processes, no I/O.

Controllers, rules and searches for a population of one's own: `from pbt_rl.pbt import PbtController, ...`;
`pbt_rl.tune` trains it. Each name is imported when it is first used.
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
        MemberReport,
        Mutate,
        PopulationReport,
        Replace,
        Restart,
        Stop,
    )
    from pbt_rl.pbt.exploit.truncation import (
        Backtrack,
        BinaryTournament,
        Exploit,
        ExploitPipeline,
        Gap,
        Impala,
        QuantileTruncation,
        Selection,
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
    from pbt_rl.pbt.mf_pbt import MfPbt
    from pbt_rl.pbt.ready import Asynchronous, PartiallySynchronous, Ready, Synchronous
    from pbt_rl.pbt.schedule import Replay
    from pbt_rl.pbt.search.hyperband import Hyperband
    from pbt_rl.pbt.search.hypertrick import HyperTrick, SuccessiveHalving
    from pbt_rl.pbt.search.random_search import GridSearch, RandomSearch

__all__ = [
    "Asynchronous",
    "Backtrack",
    "BinaryTournament",
    "Continue",
    "Controller",
    "CustomExplore",
    "Decision",
    "Exploit",
    "ExploitPipeline",
    "Explore",
    "ExplorePipeline",
    "Gap",
    "GridSearch",
    "HyperSpec",
    "HyperTrick",
    "Hyperband",
    "Impala",
    "Lineage",
    "MemberReport",
    "MfPbt",
    "MultiplyOrDivide",
    "Mutate",
    "PartiallySynchronous",
    "Pb2",
    "PbtController",
    "Perturb",
    "PerturbFactors",
    "PopulationReport",
    "QuantileTruncation",
    "RandomSearch",
    "Ready",
    "Replace",
    "Replay",
    "Resample",
    "ResampleAll",
    "Restart",
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
    "flat_table",
    "sample_prior",
]

_ROOMS = {
    "pbt.controllers": "PbtController StaticController",
    "pbt.decisions": "Continue Controller Decision MemberReport Mutate PopulationReport Replace Restart Stop",
    "pbt.exploit.base": "Exploit Gap Selection",
    "pbt.exploit.truncation": "ExploitPipeline SigmaGap Truncation",
    "pbt.exploit.backtrack": "Backtrack QuantileTruncation",
    "pbt.exploit.tournaments": "BinaryTournament Impala TTest",
    "pbt.explore.rules": "CustomExplore Explore ExplorePipeline MultiplyOrDivide Perturb PerturbFactors "
    "Resample ResampleAll",
    "pbt.search.hyperband": "Hyperband",
    "pbt.hypers": "HyperSpec Values boolean_spec choice_spec decode flat_table sample_prior",
    "pbt.lineage": "Lineage",
    "pbt.mf_pbt": "MfPbt",
    "pbt.explore.pb2": "Pb2",
    "pbt.search.random_search": "GridSearch RandomSearch",
    "pbt.ready": "Asynchronous PartiallySynchronous Ready Synchronous",
    "pbt.schedule": "Replay",
    "pbt.search.hypertrick": "HyperTrick SuccessiveHalving",
}
_ROOM = {name: room for room, names in _ROOMS.items() for name in names.split()}


def __getattr__(name: str) -> object:
    if name not in _ROOM:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"pbt_rl.{_ROOM[name]}"), name)
