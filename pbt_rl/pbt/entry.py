"""What registries know of a controller or a rule: how it is built, and which options it reads.

They are entries of the tables of the registries, or of an extra, `pbt/NAME/extra.py`, which may have

    CONTROLLERS                                  name -> ControllerEntry
    READY_RULES, EXPLOIT_RULES, EXPLORE_RULES    name -> ReadyRule, ExploitRule, ExploreRule
    OPTIONS                                      group of the config -> dataclass of options
    BEFORE_COMPARING                             (ingredients) -> what comes before comparisons, or None
    OWN                                          option that names one -> (`module:object`) -> its entry
    REFINES                                      (exploit rule, options) -> rule, (explore rule, options, specs) -> rule
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from pbt_rl.errors import ConfigError
from pbt_rl.extras import offered
from pbt_rl.pbt.decisions import Controller
from pbt_rl.pbt.exploit import Exploit
from pbt_rl.pbt.explore import Explore
from pbt_rl.pbt.hypers import HyperSpec
from pbt_rl.pbt.ready import Ready

if TYPE_CHECKING:
    from pbt_rl.pbt.options import PbtConfig

T = TypeVar("T")
PATIENCE_PERIODS = 10
PERIOD_OPTIONS = ("pbt.period_frames", "pbt.start_frames", "pbt.min_episodes", "pbt.period_growth")


def own_entry(option: str, path: str) -> Any:
    """Return the entry of what a user wrote, `module:object`. Raises ConfigError."""
    for own in offered("pbt_rl.pbt", "OWN"):
        return own[option](path)
    raise ConfigError(f"--{option} {path} cannot be used: the extra that loads what users wrote is not there")


class Groups(Protocol):
    """Groups of options, such as a config."""

    def group(self, kind: type[T]) -> T:
        """Return the group of this class."""


@dataclass(frozen=True)
class ReadyRule:
    """How a rule of readiness is built from the options."""

    build: Callable[[PbtConfig], Ready]
    options: tuple[str, ...] = PERIOD_OPTIONS
    """Names of the options that `build` reads."""
    by_time: bool = False
    """It reads `PopulationReport.seconds`."""
    help: str = ""
    """What it does, for an extra: the texts of the others stand with the option."""


@dataclass(frozen=True)
class ExploitRule:
    """How a rule of selection is built from the options."""

    build: Callable[[PbtConfig], Exploit]
    options: tuple[str, ...] = ()
    """Names of the options that `build` reads."""
    least_members: int = 1
    """In a smaller population the rule does nothing."""
    explore_probability: float = 1.0
    """Probability that exploration changes a value, unless the user gives one."""
    help: str = ""
    """What it does, for an extra: the texts of the others stand with the option."""


@dataclass(frozen=True)
class ExploreRule:
    """How a rule of exploration is built from the options and the specs of the tuned values."""

    build: Callable[[PbtConfig, Mapping[str, HyperSpec]], Explore]
    options: tuple[str, ...] = ()
    """Names of the options that `build` reads (beside `pbt.exploit`)."""
    help: str = ""
    """A sentence for people who choose one."""


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
    options: Groups
    settings: Sequence[str] = ()
    """NAME=VALUE, of a controller of the user's own."""

    @property
    def pbt(self) -> PbtConfig:
        """Options of PBT, some of which most controllers read."""
        return _pbt(self.options)


def _pbt(options: Groups) -> PbtConfig:
    from pbt_rl.pbt.options import PbtConfig  # noqa: PLC0415 - its fields come from extras, which read this module

    return options.group(PbtConfig)


def ten_periods(options: Groups, _budget_frames: int) -> int:
    """Patience of a controller that compares members every period of PBT."""
    return PATIENCE_PERIODS * _pbt(options).period_frames


def whole_budget(_options: Groups, budget_frames: int) -> int:
    """Frames of a member that no controller stops."""
    return budget_frames


def no_note(_options: Groups, _members: int, _budget_frames: int) -> str:
    """Nothing to say of the settings."""
    return ""


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
    note: Callable[[Groups, int, int], str] = no_note
    """(options, members, budget) -> a line for people about settings that defeat its purpose; "" if there is none."""
    follows: str = ""
    """Option that names a recorded run, from whose journal it is built; "" if it follows none."""
    patience_frames: Callable[[Groups, int], int] = ten_periods
    """(options, budget) -> how long a changed member is not judged because one of its environments plays a very long
    episode, so that one that never ends does not exclude the member for ever."""
    full_frames: Callable[[Groups, int], int] = whole_budget
    """(options, budget) -> the most frames that a member trains."""
