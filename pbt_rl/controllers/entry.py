"""Registry entry of a controller: its constructor, its options and its time limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from pbt_rl.controllers.decisions import Controller
from pbt_rl.controllers.events import Event
from pbt_rl.controllers.hypers import HyperSpec
from pbt_rl.controllers.options import PbtConfig

if TYPE_CHECKING:
    from pathlib import Path

T = TypeVar("T")
PATIENCE_PERIODS = 10


class OptionGroups(Protocol):
    """Container of option groups, such as a config."""

    def group(self, kind: type[T]) -> T:
        """Return the group of this class."""


@dataclass(frozen=True)
class ControllerContext:
    """Context that a controller is built from."""

    table: Mapping[str, HyperSpec]
    """All values of a member. The tuned ones change."""
    seed: int
    members: int
    slots: int
    """Members that train at the same time."""
    budget_frames: int
    """Frames of a member that trains to the end."""
    options: OptionGroups
    journal: Callable[[Path], Iterable[Event]]
    """Read the events of a recorded run. Raises ConfigError."""
    settings: Sequence[str] = ()
    """NAME=VALUE entries of a user-defined controller."""

    @property
    def pbt(self) -> PbtConfig:
        """PBT options, some of which most controllers read."""
        return self.options.group(PbtConfig)


def ten_periods(options: OptionGroups, _budget_frames: int) -> int:
    """Return the episode timeout of a PBT controller, in frames."""
    return PATIENCE_PERIODS * options.group(PbtConfig).period_frames


@dataclass(frozen=True)
class ControllerEntry:
    """Registry entry of a controller."""

    build: Callable[[ControllerContext], Controller]
    """Raises ConfigError."""
    options: tuple[str, ...]
    """Option groups and single options that it reads."""
    help: str = ""
    """One sentence."""
    searches: bool = False
    """It draws configurations, evicts them, and sets how far each one trains."""
    compares: bool = False
    """It compares members every PBT period."""
    note: Callable[[OptionGroups, int, int], str] = lambda *_: ""
    """(options, members, budget) -> a warning about settings that defeat its purpose, or ""."""
    follows: str = ""
    """Option that names the recorded run whose journal it replays, or ""."""
    patience_frames: Callable[[OptionGroups, int], int] = ten_periods
    """(options, budget) -> timeout in frames, after which a changed member is judged without its longest episodes. It
    keeps an episode that never ends from excluding the member forever."""
    full_frames: Callable[[OptionGroups, int], int] = lambda _options, budget_frames: budget_frames
    """(options, budget) -> the most frames that a member trains."""
