"""The family mjlab/: its tasks by their ids."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ..base import EnvSetupError
from .tasks import robots, task_names


def make_vec_env(name: str, rows: int, seed: int, device: str, render_mode: str | None) -> Any:
    """Make R rows of a task. Raises EnvSetupError."""
    import_module("mjlab.tasks")
    registry, rl = import_module("mjlab.tasks.registry"), import_module("mjlab.rl")
    if name not in registry.list_tasks():
        raise EnvSetupError(
            f"mjlab/{name} is not a task of mjlab: there are {', '.join(registry.list_tasks())}"
        )
    config = registry.load_env_cfg(name)
    config.scene.num_envs, config.seed = rows, seed
    engine = import_module("mjlab.envs").ManagerBasedRlEnv(config, device=device, render_mode=render_mode)
    return rl.RslRlVecEnvWrapper(engine, registry.load_rl_cfg(name).clip_actions)


names = task_names("mjlab", r'task_id="(Mjlab-[\w-]+)"')
BACKEND = robots("mjlab", "warp", names, make_vec_env)
