"""What the table of controllers knows of one: how it is built, and which options it reads."""

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
    """Groups of options, such as a config."""

    def group(self, kind: type[T]) -> T:
        """Return the group of this class."""


@dataclass(frozen=True)
class Ingredients:
    """All that a controller is built from."""

    table: Mapping[str, HyperSpec]
    """All values of a member; those of them that are tuned change."""
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
    """NAME=VALUE, of a controller of the user's own."""

    @property
    def pbt(self) -> PbtConfig:
        """Options of PBT, some of which most controllers read."""
        return self.options.group(PbtConfig)


def ten_periods(options: OptionGroups, _budget_frames: int) -> int:
    """Patience of a controller that compares members every period of PBT."""
    return PATIENCE_PERIODS * options.group(PbtConfig).period_frames


@dataclass(frozen=True)
class ControllerEntry:
    """How a controller is built."""

    build: Callable[[Ingredients], Controller]
    """Raises ConfigError."""
    options: tuple[str, ...]
    """Groups of options that it reads, and single ones."""
    help: str = ""
    """One sentence."""
    searches: bool = False
    """It draws configurations and gives them up; it decides how far each may train."""
    compares: bool = False
    """It compares members every period of PBT."""
    note: Callable[[OptionGroups, int, int], str] = lambda *_: ""
    """(options, members, budget) -> a line for people about settings that defeat its purpose; "" if there is none."""
    follows: str = ""
    """Option that names a recorded run, from whose journal it is built; "" if it follows none."""
    patience_frames: Callable[[OptionGroups, int], int] = ten_periods
    """(options, budget) -> how long a changed member is not judged because one of its environments plays a very long
    episode, so that one that never ends does not exclude the member for ever."""
    full_frames: Callable[[OptionGroups, int], int] = lambda _options, budget_frames: budget_frames
    """(options, budget) -> the most frames that a member trains."""
