"""Train a population of reinforcement-learning agents on one machine or a Ray cluster.

    train, Config               train a population; options of `train`
    Result, MemberResult        result of `train`; result of one member
    Stop                        return value with which a callback ends the run
    load_policy, Policy         load the policy of a trained member; loaded policy, a function of observations
    tune                        population-based training of your own training code: `tune.run`
    EnvSpec                     description of an environment
    RewardShapingInterface      interface of environments whose reward shaping PBT may tune
    TrainingInfoInterface       interface of environments that receive the training progress of their member
    ConfigError, EnvSetupError  errors of user input and of environments
    RunFailed                   failure of a run

Each name is imported at its first use. The package itself imports fast and without torch, because actors import it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from pbt_rl.version import __version__ as __version__

if TYPE_CHECKING:
    from pbt_rl import tune
    from pbt_rl.cli.python import MemberResult, Result, train
    from pbt_rl.config import Config
    from pbt_rl.envs.base import EnvSpec, RewardShapingInterface, TrainingInfoInterface
    from pbt_rl.errors import ConfigError, EnvSetupError, RunFailed
    from pbt_rl.play.policy import Policy, load_policy
    from pbt_rl.run.callbacks import Stop

__all__ = [
    "Config",
    "ConfigError",
    "EnvSetupError",
    "EnvSpec",
    "MemberResult",
    "Policy",
    "Result",
    "RewardShapingInterface",
    "RunFailed",
    "Stop",
    "TrainingInfoInterface",
    "load_policy",
    "train",
    "tune",
]

_MODULES = {
    "config": ("Config",),
    "envs.base": ("EnvSpec", "RewardShapingInterface", "TrainingInfoInterface"),
    "errors": ("ConfigError", "EnvSetupError", "RunFailed"),
    "cli.python": ("MemberResult", "Result", "train"),
    "play.policy": ("Policy", "load_policy"),
    "run.callbacks": ("Stop",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        return getattr(importlib.import_module(f"pbt_rl.{_MODULE_OF[name]}"), name)
    if name == "tune":
        return importlib.import_module("pbt_rl.tune")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
