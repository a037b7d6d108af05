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
    from pbt_rl.pbt.exploit import (
        Exploit,
        Gap,
        Selection,
        Truncation,
    )
    from pbt_rl.pbt.explore import (
        Explore,
        Perturb,
        PerturbFactors,
    )
    from pbt_rl.pbt.hypers import (
        HyperSpec,
        Values,
        choice_spec,
        sample_prior,
    )
    from pbt_rl.pbt.ready import Ready, Synchronous
    from pbt_rl.pbt.state import restore_state, save_state

__all__ = [
    "Continue",
    "Controller",
    "Decision",
    "Evaluate",
    "Exploit",
    "Explore",
    "Gap",
    "HyperSpec",
    "MemberReport",
    "Mutate",
    "PbtController",
    "Perturb",
    "PerturbFactors",
    "PopulationReport",
    "Ready",
    "Replace",
    "Restart",
    "Selection",
    "StaticController",
    "Stop",
    "Synchronous",
    "Truncation",
    "Values",
    "choice_spec",
    "restore_state",
    "sample_prior",
    "save_state",
]

_MODULES = ("decisions", "hypers", "state", "exploit", "explore", "ready", "controllers")


def __getattr__(name: str) -> Any:
    if not name.startswith("_"):
        of_extras = (names[name] for names in offered(__name__, "NAMES") if name in names)
        own = (f"{__name__}.{module}" for module in _MODULES if name in __all__)
        for module in (*of_extras, *own):
            found = getattr(importlib.import_module(module), name, None)
            if found is not None:
                return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
