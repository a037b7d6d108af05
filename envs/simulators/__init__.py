"""Device simulators: environments whose rows are tensors on the learner's device.

The first use of an exported name imports torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .rows import Checks, MakeSimulator, SimulatorEnv, SimulatorStep, SimulatorVectorEnv, check_made

__all__ = ["Checks", "MakeSimulator", "SimulatorEnv", "SimulatorStep", "SimulatorVectorEnv", "check_made"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(".rows", __name__), name)
