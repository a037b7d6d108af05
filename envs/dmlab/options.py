"""Options of DeepMind Lab, shared by its vector env, the map cache and the config."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Self

from pbt_rl.options.declare import option

from ..base import FamilyOptions

DUMMY = "dummy"
"""Name of the engine's substitute for the data set: colours instead of photographs."""
PHOTOGRAPHS = ("0001.png", "2400.png")
"""First and last of the 2400 files of the data set."""
NO_CACHE = "none"


def _has_photographs(dataset: str) -> bool:
    return dataset == DUMMY or all((Path(dataset) / name).is_file() for name in PHOTOGRAPHS)


@dataclass(frozen=True)
class DmlabOptions(FamilyOptions):
    """Options of DeepMind Lab."""

    actions: Literal["standard", "extended"] = "standard"
    """`standard`: the 9 actions of IMPALA. `extended`: 15, which turn at two speeds and look up and down."""
    renderer: Literal["software", "hardware"] = "software"
    """`hardware`: render on a GPU."""
    gpus: tuple[int, ...] = option((0,), at_least=0)
    """hardware: indices of the GPUs (EGL devices) that render, assigned to the run's rows round-robin."""
    dataset: str = option(
        DUMMY,
        test=_has_photographs,
        remedy=f"a folder with {PHOTOGRAPHS[0]} to {PHOTOGRAPHS[1]}, or {DUMMY}",
        machine=True,
    )
    """Folder of the 2400 pictures of two psychlab levels. `dummy`: colours of the engine."""
    one_level_per_vector_env: bool = True
    """dmlab30: all rows of a vector env run the same level at a time. Off: each row starts elsewhere in the order."""
    level_seeds: int = option(0, at_least=0, zero="any")
    """Draw the episodes' seeds from this many per level, whose maps `pbt-rl dmlab-cache` can build in advance."""
    level_cache: str = option("", machine=True)
    """Folder of compiled maps, shared by all processes and runs; empty: pbt_rl/dmlab in the user's cache folder;
    `none`: no cache.
    """
    level_cache_gb: float = option(10.0, above=0, machine=True)
    """Maximum size of that folder in gigabytes; the least recently used maps are removed."""
    clip_reward: bool = True
    """Learn from tanh of a step's reward. The objective is not clipped."""
    reward_unit: float = option(1.0, above=0)
    """Divisor of rewards before tanh; losses are multiplied by 0.3 times this value. 1 is the formula of IMPALA's
    paper, 5 that of its published code and of Sample Factory.
    """
    last_action_reward: bool = True
    """Add the last action and reward (clipped to -1..1) to the network's input, as in IMPALA."""
    background_resets: bool = True
    """Let rows continue while another one resets. Off: they wait, so that equal seeds give equal steps (always off
    in serial mode and in evaluations).
    """
    test: bool = False
    """Use the test levels and maps (evaluations always do)."""

    def reproducible(self) -> Self:
        """Return the options under which equal seeds give equal steps."""
        return replace(self, background_resets=False)

    @property
    def dataset_path(self) -> str:
        """Return the setting `datasetPath` of the levels that show pictures."""
        return self.dataset if self.dataset == DUMMY else str(Path(self.dataset).absolute())

    @property
    def cache_folder(self) -> str:
        """Return the absolute path of the cache; empty for none."""
        if self.level_cache == NO_CACHE:
            return ""
        user = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        return str(Path(self.level_cache or Path(user) / "pbt_rl" / "dmlab").absolute())
