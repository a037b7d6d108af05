"""Options of DeepMind Lab, shared by its unit, the cache of maps and the config."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..base import EnvSetupError

DUMMY = "dummy"
"""Data set that comes with the engine: colours in place of the photographs."""
PHOTOGRAPHS = ("0001.png", "2400.png")
"""First and last of the 2400 files of the real one."""
NO_CACHE = "none"


def _require(condition: bool, option: str, value: object, remedy: str) -> None:
    if not condition:
        raise EnvSetupError(f"--dmlab.{option} {value} cannot be used: {remedy}")


@dataclass(frozen=True)
class DmlabOptions:
    """How DeepMind Lab is played."""

    actions: Literal["standard", "extended"] = "standard"
    """`standard`: the 9 actions of IMPALA. `extended`: 15, which turn at two speeds and look up and down."""
    renderer: Literal["software", "hardware"] = "software"
    """`hardware` draws on a GPU."""
    gpus: tuple[int, ...] = (0,)
    """hardware: indices of the GPUs (EGL devices) that draw; rows take them in turn."""
    dataset: str = DUMMY
    """Folder of the 2400 pictures that two levels of psychlab show; `dummy`: colours, which the engine has."""
    one_level_per_unit: bool = True
    """dmlab30: all rows of a unit play the same level at a time. Off: each row begins elsewhere in the order."""
    level_seeds: int = 0
    """Episodes draw their seed from so many of each level, whose maps `pbt-rl dmlab-cache` can build beforehand; 0:
    from all."""
    level_cache: str = ""
    """Folder of compiled maps, shared by all processes and runs; empty: pbt_rl/dmlab in the user's cache folder;
    `none`: no cache."""
    level_cache_gb: float = 10.0
    """Size of that folder; what was used longest ago is removed."""
    clip_reward: bool = True
    """Learn from tanh of a step's reward. The objective is not clipped."""
    reward_unit: float = 1.0
    """Rewards are divided by it before tanh, and losses count 0.3 times as much: 1 is the formula of IMPALA's paper, 5
    that of its published code and of Sample Factory."""
    last_action_reward: bool = True
    """The network sees the last action and the last reward (clipped to -1..1) beside the picture, as IMPALA's does."""
    background_resets: bool = True
    """Rows play on while another resets. Off: they wait, so that equal seeds give equal steps (always so in serial
    mode and in evaluations)."""
    test: bool = False
    """Play the levels and maps of tests (evaluations always do)."""

    def __post_init__(self) -> None:
        _require(
            len(self.gpus) > 0 and min(self.gpus, default=0) >= 0,
            "gpus",
            " ".join(map(str, self.gpus)),
            "give indices from 0 on",
        )
        _require(self.level_seeds >= 0, "level-seeds", self.level_seeds, "give 0 (any) or more")
        _require(self.reward_unit > 0, "reward-unit", self.reward_unit, "give a number above 0")
        _require(self.level_cache_gb > 0, "level-cache-gb", self.level_cache_gb, "give gigabytes above 0")
        _require(
            self.dataset == DUMMY or all((Path(self.dataset) / name).is_file() for name in PHOTOGRAPHS),
            "dataset",
            self.dataset,
            f"give a folder with {PHOTOGRAPHS[0]} to {PHOTOGRAPHS[1]}, or {DUMMY}",
        )

    @property
    def dataset_path(self) -> str:
        """Setting `datasetPath` of the levels that show pictures."""
        return self.dataset if self.dataset == DUMMY else str(Path(self.dataset).absolute())

    @property
    def cache_folder(self) -> str:
        """Absolute path of the cache; empty for none."""
        if self.level_cache == NO_CACHE:
            return ""
        user = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        return str(Path(self.level_cache or Path(user) / "pbt_rl" / "dmlab").absolute())
