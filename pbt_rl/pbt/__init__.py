"""The part that thinks: pure, seeded Python. No torch, no processes, no I/O.

All that is needed to train a population of one's own things: `from pbt_rl.pbt import run, HyperSpec, ...`. Each
name is imported when it is first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pbt_rl.pbt.controllers import PbtController, StaticController
    from pbt_rl.pbt.crew import Member
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
    from pbt_rl.pbt.exploit import (
        Backtrack,
        BinaryTournament,
        Exploit,
        ExploitPipeline,
        Fate,
        Gap,
        Impala,
        QuantileTruncation,
        SigmaGap,
        Truncation,
        TTest,
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
    from pbt_rl.pbt.hyperband import Hyperband
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
    from pbt_rl.pbt.members import run
    from pbt_rl.pbt.mf_pbt import MfPbt
    from pbt_rl.pbt.pb2 import Pb2
    from pbt_rl.pbt.random_search import GridSearch, RandomSearch
    from pbt_rl.pbt.ready import Asynchronous, PartiallySynchronous, Ready, Synchronous
    from pbt_rl.pbt.replay import Replay
    from pbt_rl.pbt.search import HyperTrick, SuccessiveHalving
    from pbt_rl.pbt.training import Evaluation, Outcome, Result

__all__ = [
    "Asynchronous",
    "Backtrack",
    "BinaryTournament",
    "Continue",
    "Controller",
    "CustomExplore",
    "Decision",
    "Evaluation",
    "Exploit",
    "ExploitPipeline",
    "Explore",
    "ExplorePipeline",
    "Fate",
    "Gap",
    "GridSearch",
    "HyperSpec",
    "HyperTrick",
    "Hyperband",
    "Impala",
    "Lineage",
    "Member",
    "MemberReport",
    "MfPbt",
    "MultiplyOrDivide",
    "Mutate",
    "Outcome",
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
    "Result",
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
    "run",
    "sample_prior",
]

_ROOMS = {
    "controllers": "PbtController StaticController",
    "crew": "Member",
    "decisions": "Continue Controller Decision MemberReport Mutate PopulationReport Replace Restart Stop",
    "exploit": "Backtrack BinaryTournament Exploit ExploitPipeline Fate Gap Impala QuantileTruncation SigmaGap "
    "TTest Truncation",
    "explore": "CustomExplore Explore ExplorePipeline MultiplyOrDivide Perturb PerturbFactors Resample ResampleAll",
    "hyperband": "Hyperband",
    "hypers": "HyperSpec Values boolean_spec choice_spec decode flat_table sample_prior",
    "lineage": "Lineage",
    "members": "run",
    "mf_pbt": "MfPbt",
    "pb2": "Pb2",
    "random_search": "GridSearch RandomSearch",
    "ready": "Asynchronous PartiallySynchronous Ready Synchronous",
    "replay": "Replay",
    "search": "HyperTrick SuccessiveHalving",
    "training": "Evaluation Outcome Result",
}
_ROOM = {name: room for room, names in _ROOMS.items() for name in names.split()}


def __getattr__(name: str) -> object:
    if name not in _ROOM:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_ROOM[name]}"), name)
