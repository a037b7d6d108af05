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
TIMEOUT_PERIODS = 10


class OptionGroups(Protocol):
    """Container of option groups, such as a config."""

    def group(self, kind: type[T]) -> T:
        """Return the group of this class."""


@dataclass(frozen=True)
class ControllerContext:
    """Inputs for the construction of a controller."""

    table: Mapping[str, HyperSpec]
    """Specs of all values of a member, including values that are not tuned."""
    seed: int
    members: int
    slots: int
    """Number of members that train at the same time."""
    budget_frames: int
    """Frames of a full training of one member."""
    options: OptionGroups
    journal: Callable[[Path], Iterable[Event]]
    """Read the events of a recorded run. Raises ConfigError."""
    settings: Sequence[str] = ()
    """NAME=VALUE entries of a user-defined controller."""

    @property
    def pbt(self) -> PbtConfig:
        """PBT options. Most controllers read some of them."""
        return self.options.group(PbtConfig)


def ten_periods(options: OptionGroups, _budget_frames: int) -> int:
    """Return the episode timeout of a PBT controller, in frames."""
    return TIMEOUT_PERIODS * options.group(PbtConfig).period_frames


@dataclass(frozen=True)
class ControllerEntry:
    """Registry entry of a controller."""

    build: Callable[[ControllerContext], Controller]
    """Build the controller. Raises ConfigError."""
    options: tuple[str, ...]
    """Option groups and single options that the controller reads."""
    help: str = ""
    """Help text: one sentence."""
    searches: bool = False
    """True for a search: it draws configurations, stops some, and sets the training length of each."""
    compares: bool = False
    """True if the controller compares members every PBT interval."""
    note: Callable[[OptionGroups, int, int], str] = lambda *_: ""
    """(options, members, budget in frames) -> warning about unsuitable settings, or ""."""
    follows: str = ""
    """Option with the recorded run whose journal the controller reads, or ""."""
    timeout_frames: Callable[[OptionGroups, int], int] = ten_periods
    """(options, budget in frames) -> episode timeout in frames. After this time, a changed member is ranked without its
    unfinished episodes, because an episode that never ends would otherwise exclude the member forever."""
    full_frames: Callable[[OptionGroups, int], int] = lambda _options, budget_frames: budget_frames
    """(options, budget in frames) -> maximum training length of a member in frames."""
