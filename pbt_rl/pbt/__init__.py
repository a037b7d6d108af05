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
    from pbt_rl.pbt.controllers import PbtController as PbtController
    from pbt_rl.pbt.controllers import StaticController as StaticController
    from pbt_rl.pbt.decisions import Continue as Continue
    from pbt_rl.pbt.decisions import Controller as Controller
    from pbt_rl.pbt.decisions import Decision as Decision
    from pbt_rl.pbt.decisions import Evaluate as Evaluate
    from pbt_rl.pbt.decisions import MemberReport as MemberReport
    from pbt_rl.pbt.decisions import Mutate as Mutate
    from pbt_rl.pbt.decisions import PopulationReport as PopulationReport
    from pbt_rl.pbt.decisions import Replace as Replace
    from pbt_rl.pbt.decisions import Restart as Restart
    from pbt_rl.pbt.decisions import Stop as Stop
    from pbt_rl.pbt.exploit import Exploit as Exploit
    from pbt_rl.pbt.exploit import Gap as Gap
    from pbt_rl.pbt.exploit import Selection as Selection
    from pbt_rl.pbt.exploit import Truncation as Truncation
    from pbt_rl.pbt.explore import Explore as Explore
    from pbt_rl.pbt.explore import Perturb as Perturb
    from pbt_rl.pbt.explore import PerturbFactors as PerturbFactors
    from pbt_rl.pbt.hypers import HyperSpec as HyperSpec
    from pbt_rl.pbt.hypers import Values as Values
    from pbt_rl.pbt.hypers import choice_spec as choice_spec
    from pbt_rl.pbt.hypers import sample_prior as sample_prior
    from pbt_rl.pbt.ready import Ready as Ready
    from pbt_rl.pbt.ready import Synchronous as Synchronous
    from pbt_rl.pbt.state import restore_state as restore_state
    from pbt_rl.pbt.state import save_state as save_state

_MODULES = ("decisions", "hypers", "state", "exploit", "explore", "ready", "controllers")


def __getattr__(name: str) -> Any:
    if not name.startswith("_"):
        of_extras = (names[name] for names in offered(__name__, "NAMES") if name in names)
        own = (f"{__name__}.{module}" for module in _MODULES)
        for module in (*of_extras, *own):
            found = getattr(importlib.import_module(module), name, None)
            if found is not None:
                return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
