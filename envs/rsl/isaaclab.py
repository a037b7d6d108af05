"""The family isaaclab/: Isaac Lab's tasks by their ids. It was never run with Isaac Lab, only with a stand-in.

One process runs one simulator, which its launcher starts before anything else of Isaac Lab is imported.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ..base import EnvSetupError
from .tasks import robots, task_names

_started: list[Any] = []
"""The launcher, once it runs."""


def _start(device: str, *, cameras: bool) -> None:
    """Start the simulator, once a process."""
    if not _started:
        launcher = import_module("isaaclab.app").AppLauncher
        _started.append(launcher(headless=True, device=device, enable_cameras=cameras))


def make_vec_env(name: str, rows: int, seed: int, device: str, render_mode: str | None) -> Any:
    """Start the simulator and make R rows of a task. Raises EnvSetupError."""
    _start(device, cameras=render_mode is not None)
    gymnasium = import_module("gymnasium")
    import_module("isaaclab_tasks")  # registers them
    if name not in gymnasium.registry:
        there = ", ".join(sorted(task for task in gymnasium.registry if task.startswith("Isaac-")))
        raise EnvSetupError(f"isaaclab/{name} is not a task of Isaac Lab: there are {there or 'none'}")
    parse = import_module("isaaclab_tasks.utils").parse_env_cfg
    config = parse(name, device=device, num_envs=rows)
    config.seed = seed
    wrapper = import_module("isaaclab_rl.rsl_rl").RslRlVecEnvWrapper
    return wrapper(gymnasium.make(name, cfg=config, render_mode=render_mode))


names = task_names("isaaclab_tasks", r'id="(Isaac-[\w-]+)"')
BACKEND = robots("isaaclab", "isaaclab.app", names, make_vec_env)
