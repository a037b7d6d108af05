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
"""Timeout of unfinished episodes in periods, for controllers without another timeout."""


class OptionGroups(Protocol):
    """Container of option groups, such as a config."""

    def group(self, kind: type[T]) -> T:
        """Return the option group of class `kind`."""


@dataclass(frozen=True)
class ControllerContext:
    """Inputs for the construction of a controller."""

    table: Mapping[str, HyperSpec]
    """Specs of all values of a member, including values that are not tuned."""
    seed: int
    members: int
    slots: int
    """Maximum number of members that train at the same time."""
    budget_frames: int
    """Budget of each member in frames (--train-for-frames)."""
    options: OptionGroups
    journal: Callable[[Path], Iterable[Event]]
    """Function that reads the journal in the folder of a recorded run.

    Raises ConfigError if the journal is missing or damaged.
    """
    settings: Sequence[str] = ()
    """NAME=VALUE entries of --controller-option, for a user-defined controller."""

    @property
    def pbt(self) -> PbtConfig:
        """PBT options. Most controllers read some of them."""
        return self.options.group(PbtConfig)


def ten_periods(options: OptionGroups, _budget_frames: int) -> int:
    """Return the default of `ControllerEntry.timeout_frames`: ten periods."""
    return TIMEOUT_PERIODS * options.group(PbtConfig).period_frames


@dataclass(frozen=True)
class ControllerEntry:
    """Registry entry of a controller."""

    build: Callable[[ControllerContext], Controller]
    """Function that builds the controller. Raises ConfigError if options do not fit the controller."""
    options: tuple[str, ...]
    """Names of the option groups and of the single options that the controller reads."""
    help: str = ""
    """Help text: one sentence."""
    searches: bool = False
    """True for a search, which draws configurations, sets their training lengths, and may stop configurations early."""
    compares: bool = False
    """True if the controller compares members once per period."""
    note: Callable[[OptionGroups, int, int], str] = lambda *_: ""
    """Function (options, number of members, budget in frames) -> warning about unsuitable settings, or ""."""
    follows: str = ""
    """Name of the option that gives the folder of a recorded run. The controller reads this run's journal. "": the
    controller reads no journal.
    """
    timeout_frames: Callable[[OptionGroups, int], int] = ten_periods
    """Function (options, budget in frames) -> timeout of unfinished episodes, in frames since a member's last change or
    the start of its evaluation. After the timeout, the member is ranked without its unfinished episodes. Without a
    timeout, an episode that never ends would exclude the member forever."""
    full_frames: Callable[[OptionGroups, int], int] = lambda _options, budget_frames: budget_frames
    """Function (options, budget in frames) -> maximum training length of a member in frames, without extensions of
    phases."""
    schedule_frames: Callable[[OptionGroups, int], int] = lambda _options, budget_frames: budget_frames
    """Function (options, budget in frames) -> frames over which a learning rate falls. Less than `full_frames` if a
    search restarts members with initialised weights, because the schedule then restarts, too."""
