"""Population based training of any Python code that trains, in one process or several.

Importing the package imports neither torch nor Gymnasium. Public names are imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pbt_rl.tune.api import audit, run
    from pbt_rl.tune.result import Evaluation, Outcome, Progress, Result
    from pbt_rl.tune.space import loguniform
    from pbt_rl.tune.workers import Member

__all__ = ["Evaluation", "Member", "Outcome", "Progress", "Result", "audit", "loguniform", "run"]

_MODULES = {
    "api": ("audit", "run"),
    "result": ("Evaluation", "Outcome", "Progress", "Result"),
    "space": ("loguniform",),
    "workers": ("Member",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
