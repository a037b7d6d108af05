"""The family mjlab/: its tasks by their ids. Neither torch nor mjlab is imported before one is made."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..base import EnvSetupError, EnvSpec, ShapingSource, Unit
from ..family import Backend, EnvOptions
from ..first_trial import FirstProbe
from ..resident.kinds import RESIDENT_RECIPE, unit_of_resident

RSL_PPO: dict[str, object] = RESIDENT_RECIPE | {
    "model.encoder": "mlp",
    "model.critic": "separate",
    "learner.rollout": 24,
    "learner.epochs": 5,
    "learner.minibatches": 4,
    "learner.normalize_observations": True,
    "hypers.unroll": 24,
    "hypers.learning_rate": 1e-3,
    "hypers.entropy_coef": 0.005,
    "hypers.clip_ratio": 0.2,
    "hypers.gamma": 0.99,
    "hypers.gae_lambda": 0.95,
    "hypers.max_grad_norm": 1.0,
}
"""RSL-RL's own values (mjlab 1.6, `RslRlPpoAlgorithmCfg`). Its rate follows the divergence; here PBT tunes it."""
TASK_ID = re.compile(r'task_id="(Mjlab-[\w-]+)"')


@cache
def names() -> tuple[str, ...]:
    """Read the ids of mjlab's own tasks from its sources."""
    found = find_spec("mjlab")
    places = (found.submodule_search_locations or ()) if found else ()
    files = (file for place in places for file in Path(place, "tasks").rglob("__init__.py"))
    return tuple(
        sorted({name for file in files for name in TASK_ID.findall(file.read_text(errors="replace"))})
    )


def make_resident(name: str, rows: int, seed: int, device: str, options: EnvOptions) -> Any:
    """Make R rows of a task. Raises EnvSetupError."""
    import_module("mjlab.tasks")
    registry, rl = import_module("mjlab.tasks.registry"), import_module("mjlab.rl")
    from .vec_env import adapted  # noqa: PLC0415 - it imports torch

    env_id = f"mjlab/{name}"
    keywords = dict(options.keywords)
    objective = keywords.pop("objective", "")
    if keywords:
        raise EnvSetupError(f"{env_id} has no option {', '.join(keywords)}: it has objective (--env-option)")
    if name not in registry.list_tasks():
        raise EnvSetupError(f"{env_id} is not a task of mjlab: there are {', '.join(registry.list_tasks())}")
    config = registry.load_env_cfg(name)
    config.scene.num_envs, config.seed = rows, seed % 2**31
    engine = import_module("mjlab.envs").ManagerBasedRlEnv(config, device=device)
    return adapted(env_id, rl.RslRlVecEnvWrapper(engine, registry.load_rl_cfg(name).clip_actions), objective)


def _describe(name: str, keywords: Mapping[str, Any]) -> EnvSpec:
    env = make_resident(name, 1, 0, "cpu", EnvOptions(keywords=keywords))
    env.close()
    spec: EnvSpec = env.spec
    return spec


FIRST = FirstProbe("mjlab/", _describe)


def _probe(name: str, options: EnvOptions) -> EnvSpec:
    """Describe it in a copy of this process, or here if the engine is already running here."""
    return (_describe if "warp" in sys.modules else FIRST)(name, options.keywords)


def _unit(name: str, rows: int, seed: int, options: EnvOptions, shaping: ShapingSource) -> Unit:
    return unit_of_resident(name, rows, seed, shaping, options, make_resident)


def _recipe(_name: str, _options: EnvOptions) -> dict[str, object]:
    return RSL_PPO | {"model.hidden": 128, "model.layers": 3}


BACKEND = Backend(names=names, probe=_probe, make_unit=_unit, recipe=_recipe, make_resident=make_resident)
