"""Options of DeepMind Lab."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Self

from pbt_rl.options.declare import option

from ..base import FamilyOptions

DUMMY = "dummy"
"""Value of --dmlab.dataset with which the engine shows colours instead of photographs."""
PHOTOGRAPHS = ("0001.png", "2400.png")
"""First and last of the 2400 files in the folder of the data set."""
NO_CACHE = "none"


def _has_photographs(dataset: str) -> bool:
    return dataset == DUMMY or all((Path(dataset) / name).is_file() for name in PHOTOGRAPHS)


@dataclass(frozen=True)
class DmlabOptions(FamilyOptions):
    """Options of DeepMind Lab."""

    actions: Literal["standard", "extended"] = "standard"
    """`standard`: the 9 actions of IMPALA. `extended`: 15 actions with two turning speeds, and with looking up and
    down.
    """
    renderer: Literal["software", "hardware"] = "software"
    """`software`: render on the CPU. `hardware`: render on a GPU."""
    gpus: tuple[int, ...] = option((0,), at_least=0)
    """GPUs (EGL devices) of the renderer `hardware`. GPUs are assigned to the run's rows round-robin."""
    dataset: str = option(
        DUMMY,
        test=_has_photographs,
        remedy=f"a folder with {PHOTOGRAPHS[0]} to {PHOTOGRAPHS[1]}, or {DUMMY}",
        machine=True,
    )
    """Folder with the 2400 photographs of two psychlab levels. `dummy`: the engine shows colours instead."""
    one_level_per_vector_env: bool = True
    """dmlab30: all rows of a vector env start with the same level, and mostly run the same level. Off: rows start with
    different levels.
    """
    level_seeds: int = option(0, at_least=0, zero="any")
    """Number of different seeds per level. Each episode draws one of these seeds, and `pbt-rl dmlab-cache` can compile
    the maps of all seeds before training.
    """
    level_cache: str = option("", machine=True)
    """Folder of compiled maps, shared by all processes and runs. Empty: pbt_rl/dmlab in the user's cache folder.
    `none`: no cache.
    """
    level_cache_gb: float = option(10.0, above=0, machine=True)
    """Maximum size of the map cache in gigabytes. The least recently used maps are removed."""
    clip_reward: bool = True
    """Clip rewards by tanh for learning. The objective is not clipped."""
    reward_unit: float = option(1.0, above=0)
    """Divisor of rewards before tanh. After tanh, negative rewards are multiplied by 0.3 times this value,
    and positive rewards by 5. 1: formula of IMPALA's paper. 5: formula of IMPALA's published code and of Sample
    Factory.
    """
    last_action_reward: bool = True
    """Add the last action and reward (clipped to -1..1) to the network's input, as in IMPALA."""
    background_resets: bool = True
    """Step the other rows while a row resets. Off: all rows wait, so equal seeds give equal steps. Always off in serial
    mode and in evaluations.
    """
    test: bool = False
    """Use the test levels and test maps. Evaluations always use test levels and test maps."""

    def reproducible(self) -> Self:
        """Return the options under which equal seeds give equal steps."""
        return replace(self, background_resets=False)

    @property
    def dataset_path(self) -> str:
        """Setting `datasetPath` of the levels that show photographs: DUMMY, or the absolute path of their folder."""
        return self.dataset if self.dataset == DUMMY else str(Path(self.dataset).absolute())

    @property
    def cache_folder(self) -> str:
        """Absolute path of the map cache, or "" for `level_cache` "none"."""
        if self.level_cache == NO_CACHE:
            return ""
        user = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        return str(Path(self.level_cache or Path(user) / "pbt_rl" / "dmlab").absolute())
