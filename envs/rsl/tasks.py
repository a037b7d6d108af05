"""What the families of robot simulators share: tasks by their ids, described before one is made for a run.

Neither torch nor a simulator is imported before one is made.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .. import time_limits
from ..base import EnvSetupError, EnvSpec
from ..family import Backend, EnvOptions
from ..first_trial import FirstProbe
from ..resident.kinds import filmed, unit_of_resident
from .recipe import ROBOTS

MakeVecEnv = Callable[[str, int, int, str, str | None], Any]
"""(task, rows, seed, device, render_mode) -> RSL-RL `VecEnv`. Raises EnvSetupError."""


def task_names(package: str, pattern: str) -> Callable[[], tuple[str, ...]]:
    """Return what reads the ids of tasks from the sources of a package, by a pattern with one group."""

    @cache
    def names() -> tuple[str, ...]:
        found = find_spec(package)
        places = (found.submodule_search_locations or ()) if found else ()
        files = (file for place in places for file in Path(place).rglob("__init__.py"))
        ids = (name for file in files for name in re.findall(pattern, file.read_text(errors="replace")))
        return tuple(sorted(set(ids)))

    return names


def robots(family: str, engine: str, names: Callable[[], tuple[str, ...]], make: MakeVecEnv) -> Backend:
    """Return the backend of a family. engine: module that is imported once the simulator runs in a process."""

    def make_resident(
        name: str, rows: int, seed: int, device: str, options: EnvOptions, render_mode: str | None = None
    ) -> Any:
        from .vec_env import VecEnvRows  # noqa: PLC0415 - it imports torch

        env_id, keywords = f"{family}/{name}", dict(options.keywords)
        objective = keywords.pop("objective", "")
        if keywords:
            raise EnvSetupError(
                f"{env_id} has no option {', '.join(keywords)}: it has objective (--env-option)"
            )
        return VecEnvRows(env_id, make(name, rows, seed % 2**31, device, render_mode), objective)

    def describe(name: str, keywords: Mapping[str, Any]) -> EnvSpec:
        env_id = f"{family}/{name}"
        for tell in time_limits.told_of_long:
            tell()
        with time_limits.time_limit(time_limits.LONG_SECONDS, time_limits.making(env_id, long=True)):
            env = make_resident(name, 1, 0, "cpu", EnvOptions(keywords=keywords))
            env.close()
        spec: EnvSpec = env.spec
        return spec

    first = FirstProbe(f"{family}/", describe)
    return Backend(
        names=names,
        probe=lambda name, options: (describe if engine in sys.modules else first)(name, options.keywords),
        make_unit=lambda name, rows, seed, options, shaping: unit_of_resident(
            name, rows, seed, shaping, options, make_resident
        ),
        film=lambda name, rows, seed, options, shaping: filmed(
            make_resident(name, rows, seed, "cpu", options, "rgb_array"), shaping
        ),
        recipe=lambda _name, _options: ROBOTS,
        step_seconds=time_limits.LONG_SECONDS,
        make_resident=make_resident,
    )
