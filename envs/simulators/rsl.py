"""The families mjlab/ and isaaclab/: robot tasks by their ids.

This module imports torch and the simulator when it makes an environment. isaaclab/ was tested only with a fake module,
never with Isaac Lab. A process can run only one simulator of Isaac Lab. The launcher of Isaac Lab must start before any
other import of Isaac Lab.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pbt_rl.errors import EnvSetupError

from ..base import EnvSpec
from ..families import ROBOTS
from ..family import Backend, EnvOptions
from ..first_trial import FirstProbe
from ..time_limits import LONG_SECONDS
from .custom_simulators import described, filmed, vector_envs_of

MakeVecEnv = Callable[[str, int, int, str, str | None], Any]
"""(task, rows, seed, device, render_mode) -> RSL-RL `VecEnv`. Raises EnvSetupError for an unknown task."""


def task_names(package: str, pattern: str) -> Callable[[], tuple[str, ...]]:
    """Return a function that reads the task ids from the sources of a package.

    The function returns the sorted ids, or [] without the package.

    pattern: regular expression with one group, the id.
    """

    @cache
    def names() -> tuple[str, ...]:
        found = find_spec(package)
        places = (found.submodule_search_locations or ()) if found else ()
        files = (file for place in places for file in Path(place).rglob("__init__.py"))
        ids = (name for file in files for name in re.findall(pattern, file.read_text(errors="replace")))
        return tuple(sorted(set(ids)))

    return names


def robots(family: str, engine: str, names: Callable[[], tuple[str, ...]], make: MakeVecEnv) -> Backend:
    """Return the backend of a family of robot tasks.

    family: name of the family.
    engine: module of the simulator. If this module is already imported, `probe` uses no fork.
    names: function that returns the task ids.
    make: function that makes a `VecEnv`.
    """

    def make_simulator(
        name: str, rows: int, seed: int, device: str, options: EnvOptions, render_mode: str | None = None
    ) -> Any:
        from .rsl_rows import VecEnvRows  # noqa: PLC0415 - it imports torch

        env_id, keywords = f"{family}/{name}", dict(options.keywords)
        objective = keywords.pop("objective", "")
        if keywords:
            raise EnvSetupError(
                f"{env_id} has no option {', '.join(keywords)}. Supported: objective (--env-option)"
            )
        return VecEnvRows(env_id, make(name, rows, seed % 2**31, device, render_mode), objective)

    def describe(name: str, keywords: Mapping[str, Any]) -> EnvSpec:
        one = partial(make_simulator, name, 1, 0, "cpu", EnvOptions(keywords=keywords))
        return described(f"{family}/{name}", one)

    first = FirstProbe(f"{family}/", describe)
    return Backend(
        names=names,
        probe=lambda name, options: (describe if engine in sys.modules else first)(name, options.keywords),
        make_vector_env=vector_envs_of(make_simulator),
        film=lambda name, rows, seed, options, shaping: filmed(
            make_simulator(name, rows, seed, "cpu", options, "rgb_array"), shaping
        ),
        recipe=lambda _name, _options: ROBOTS,
        step_seconds=LONG_SECONDS,
        make_simulator=make_simulator,
    )


def _of_mjlab(name: str, rows: int, seed: int, device: str, render_mode: str | None) -> Any:
    """Make a `VecEnv` of R rows of a task of mjlab. Raises EnvSetupError for an unknown task."""
    import_module("mjlab.tasks")
    registry, rl = import_module("mjlab.tasks.registry"), import_module("mjlab.rl")
    if name not in registry.list_tasks():
        raise EnvSetupError(
            f"mjlab/{name} is not a task of mjlab. Available: {', '.join(registry.list_tasks())}"
        )
    config = registry.load_env_cfg(name)
    config.scene.num_envs, config.seed = rows, seed
    engine = import_module("mjlab.envs").ManagerBasedRlEnv(config, device=device, render_mode=render_mode)
    return rl.RslRlVecEnvWrapper(engine, registry.load_rl_cfg(name).clip_actions)


_started: list[Any] = []
"""Launcher of Isaac Lab. The list is empty until the launcher has started."""


def _start(device: str, *, cameras: bool) -> None:
    """Start the simulator of Isaac Lab, once per process."""
    if not _started:
        launcher = import_module("isaaclab.app").AppLauncher
        _started.append(launcher(headless=True, device=device, enable_cameras=cameras))


def _of_isaaclab(name: str, rows: int, seed: int, device: str, render_mode: str | None) -> Any:
    """Start the simulator and make a `VecEnv` of R rows of a task. Raises EnvSetupError for an unknown task."""
    _start(device, cameras=render_mode is not None)
    gymnasium = import_module("gymnasium")
    import_module("isaaclab_tasks")  # registers the tasks
    if name not in gymnasium.registry:
        there = ", ".join(sorted(task for task in gymnasium.registry if task.startswith("Isaac-")))
        raise EnvSetupError(f"isaaclab/{name} is not a task of Isaac Lab. Available: {there or 'none'}")
    parse = import_module("isaaclab_tasks.utils").parse_env_cfg
    config = parse(name, device=device, num_envs=rows)
    config.seed = seed
    wrapper = import_module("isaaclab_rl.rsl_rl").RslRlVecEnvWrapper
    return wrapper(gymnasium.make(name, cfg=config, render_mode=render_mode))


MJLAB = robots("mjlab", "warp", task_names("mjlab", r'task_id="(Mjlab-[\w-]+)"'), _of_mjlab)
ISAACLAB = robots(
    "isaaclab", "isaaclab.app", task_names("isaaclab_tasks", r'id="(Isaac-[\w-]+)"'), _of_isaaclab
)
