"""The family pettingzoo/: PettingZoo's environments by their ids."""

from __future__ import annotations

import difflib
import re
import warnings
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from pbt_rl.errors import EnvSetupError

from ..base import EnvSpec, ShapingSource
from ..family import keywords_backend
from ..spaces import is_grid
from .multi_agent import MakeTable, MultiAgentVectorEnv, probe_with
from .tables import ParallelTable, TurnTable, table_of

NEEDS = {
    "atari": ("multi_agent_ale_py", "pygame"),
    "butterfly": ("pymunk", "pygame"),
    "classic": ("pygame",),
    "sisl": ("pymunk", "Box2D", "pygame"),
    "chess": ("chess",),
    "hanabi": ("shimmy", "pyspiel"),
    "holdem": ("rlcard",),
}
"""Substring of an environment's name -> import names of the packages that the environment requires."""


def names() -> tuple[str, ...]:
    """Return the names of environments whose packages are installed, such as `classic/connect_four_v3`."""
    return tuple(name for name in sorted(_registered()) if not _missing(name))


def _registered() -> dict[str, str]:
    """Return name `collection/name_vN` -> PettingZoo's registered id, which ends in `-vN`."""
    import pettingzoo  # noqa: PLC0415 - families are imported when used

    known = set(pettingzoo.aec_registry) | set(pettingzoo.parallel_registry)
    return {_module(name): name for name in known}


def _module(name: str) -> str:
    return re.sub(r"-(v\d+)$", r"_\1", name)


def maker(name: str, keywords: Mapping[str, Any]) -> MakeTable:
    """Return a function that makes environments. Raises EnvSetupError for an unknown name and for missing packages.

    The returned function raises EnvSetupError if an environment cannot be made.

    name: name of the environment, with or without its collection (such as `classic/`).
    keywords: arguments of the environment's constructor (--env-option).
    """
    import pettingzoo  # noqa: PLC0415 - families are imported when used

    full = _find(name)
    registered = _registered()[full]
    kind: Any = "parallel" if registered in pettingzoo.parallel_registry else "aec"

    def make() -> ParallelTable | TurnTable:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                env: Any = pettingzoo.make(kind, registered, **keywords)
        except (ImportError, TypeError, AssertionError, ValueError) as error:
            raise EnvSetupError(f"pettingzoo/{full} cannot be made: {str(error).rstrip('.')}") from error
        return table_of(f"pettingzoo/{full}", env)

    return make


def probe(name: str, keywords: Mapping[str, Any]) -> EnvSpec:
    """Return the spec of an environment. Raises EnvSetupError if it cannot be made, or has unsupported spaces."""
    return probe_with(maker(name, keywords))


def make_vector_env(
    name: str, rows: int, seed: int, shaping: ShapingSource, keywords: Mapping[str, Any]
) -> MultiAgentVectorEnv:
    """Make a vector env of R rows. Each row is an agent.

    Raises EnvSetupError as `probe` does, and if R is not a multiple of the number of agents.
    """
    return MultiAgentVectorEnv(maker(name, keywords), rows, seed, shaping)


def _find(name: str) -> str:
    known, name = _registered(), _module(name)
    short = {full.rpartition("/")[2]: full for full in known}
    full = name if name in known else short.get(name)
    if full is None:
        close = difflib.get_close_matches(name.rpartition("/")[2], short)
        hint = f" Did you mean {', '.join('pettingzoo/' + short[c] for c in close)}?" if close else ""
        raise EnvSetupError(f"pettingzoo/{name} does not exist.{hint} `pbt-rl envs` lists all names")
    missing = _missing(full)
    if missing:
        remedy = f"pip install 'pettingzoo[{full.partition('/')[0]}]'"
        raise EnvSetupError(f"pettingzoo/{full} needs the package {', '.join(missing)}: {remedy}")
    return full


def _missing(name: str) -> list[str]:
    needed = dict.fromkeys(one for part, packages in NEEDS.items() if part in name for one in packages)
    return [package for package in needed if find_spec(package) is None]


def recipe(spec: EnvSpec) -> dict[str, object]:
    """Return the default options of a run: dotted name of a config field -> value.

    Board games get a small MLP and large batches. An environment counts as a board game if its actions are discrete and
    its pictures, if any, are grids of codes. Grids of codes and unbounded numbers are normalised.
    """
    images = [array for array in spec.obs.values() if array.dtype == "uint8" and len(array.shape) == 3]
    grids = any(map(is_grid, images))
    unknown = grids or any(array.unscaled for array in spec.obs.values())
    normalised: dict[str, object] = {"learner.normalize_observations": True} if unknown else {}
    return normalised if spec.action.low or not all(map(is_grid, images)) else _BOARDS | normalised


_BOARDS: dict[str, object] = {
    "model.encoder": "mlp",
    "model.hidden": (128,),
    "model.layers": 2,
    "learner.rollout": 32,
    "learner.batch": 2048,
    "learner.minibatches": 4,
    "learner.epochs": 2,
    "hypers.unroll": 32,
    "hypers.learning_rate": 1e-3,
    "hypers.entropy_coef": 0.01,
    "hypers.clip_ratio": 0.2,
    "hypers.gamma": 0.99,
    "hypers.gae_lambda": 0.95,
    "train_for_frames": 2_000_000,
}

BACKEND = keywords_backend("pettingzoo", names, probe, make_vector_env, recipe)
