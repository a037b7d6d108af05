"""Controllers, rules of PBT, searches, and specs of the values that they change.

Built-in controllers decide without torch, processes or I/O, and draw random numbers only from seeded generators.

Public names can be imported from this package, such as `from pbt_rl.controllers import PbtController`. The module that
defines a name is imported when the name is first requested.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pbt_rl.controllers.controllers import PbtController as PbtController
    from pbt_rl.controllers.controllers import StaticController as StaticController
    from pbt_rl.controllers.decisions import Continue as Continue
    from pbt_rl.controllers.decisions import Controller as Controller
    from pbt_rl.controllers.decisions import Decision as Decision
    from pbt_rl.controllers.decisions import Evaluate as Evaluate
    from pbt_rl.controllers.decisions import MemberReport as MemberReport
    from pbt_rl.controllers.decisions import Mutate as Mutate
    from pbt_rl.controllers.decisions import PopulationReport as PopulationReport
    from pbt_rl.controllers.decisions import Replace as Replace
    from pbt_rl.controllers.decisions import Restart as Restart
    from pbt_rl.controllers.decisions import Stop as Stop
    from pbt_rl.controllers.exploit import Exploit as Exploit
    from pbt_rl.controllers.exploit import Gap as Gap
    from pbt_rl.controllers.exploit import Selection as Selection
    from pbt_rl.controllers.exploit import Truncation as Truncation
    from pbt_rl.controllers.explore import Explore as Explore
    from pbt_rl.controllers.explore import Perturb as Perturb
    from pbt_rl.controllers.explore import PerturbFactors as PerturbFactors
    from pbt_rl.controllers.hypers import HyperSpec as HyperSpec
    from pbt_rl.controllers.hypers import Values as Values
    from pbt_rl.controllers.hypers import choice_spec as choice_spec
    from pbt_rl.controllers.hypers import sample_prior as sample_prior
    from pbt_rl.controllers.ready import Ready as Ready
    from pbt_rl.controllers.ready import Synchronous as Synchronous
    from pbt_rl.controllers.state import restore_state as restore_state
    from pbt_rl.controllers.state import save_state as save_state

_MODULES = {
    "controllers": "PbtController StaticController",
    "decisions": "Continue Controller Decision Evaluate MemberReport Mutate PopulationReport Replace Restart Stop",
    "evaluation": "Evaluation",
    "exploit": "Exploit Gap Selection Truncation",
    "exploit_published": "Backtrack BinaryTournament ExploitPipeline Impala QuantileTruncation SigmaGap TTest",
    "explore": "Explore Perturb PerturbFactors",
    "explore_published": "ExplorePipeline MultiplyOrDivide PairwiseLearning Resample ResampleAll",
    "hypers": "HyperSpec Values choice_spec sample_prior",
    "lineage": "Lineage",
    "mf_pbt": "MfPbt",
    "own": "CustomExplore",
    "pb2": "Pb2",
    "ready": "Asynchronous PartiallySynchronous Ready Synchronous Timed",
    "schedule": "Schedule",
    "search.asha": "Asha",
    "search.search": "RandomSearch draw_grid draw_random",
    "search.brackets": "Hyperband",
    "search.hypertrick": "HyperTrick SuccessiveHalving",
    "state": "restore_state save_state",
}
_PLACES = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
