"""What is named on the command line and may come from elsewhere: seven tables, name -> where it is.

The one of commands stands in `cli`, with their texts. Each table is also a group of entry points, by which another
installed package adds to it:

    [project.entry-points."pbt_rl.exploit"]
    mine = "my_package.rules:MINE"

Nothing is imported before it is looked up. Everything else is imported by name, at the place where it is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from pbt_rl.algos.hypers import AlgorithmEntry
    from pbt_rl.envs.family import Family

T = TypeVar("T")


def load_object(path: str, name: str = "name") -> Any:
    """Return what `module:object` names. name: what the object is called in the message.

    Raises ValueError, whose text follows what was to be loaded: "cannot be loaded: ...".
    """
    module, _, attribute = path.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except Exception as error:  # the module is the user's, and may raise anything
        raise ValueError(f"cannot be loaded: {error!r}. Write module:{name}, as Python imports it") from error


@cache
def _entry_points() -> Any:
    """Return those of all groups: one search costs some milliseconds."""
    return entry_points()


class EntryPointError(ValueError):
    """Another package's addition cannot be imported. The message names it."""


class Registry(Mapping[str, T], Generic[T]):
    """Name -> object, imported when it is looked up; ours first, then those of other packages, by name.

    group: of entry points. own: name -> `module:OBJECT`.
    """

    def __init__(self, group: str, own: Mapping[str, str]) -> None:
        self.group, self._own = group, dict(own)

    @cached_property
    def _others(self) -> dict[str, EntryPoint]:
        points = sorted(_entry_points().select(group=self.group), key=lambda point: point.name)
        return {point.name: point for point in points if point.name not in self._own}

    def __getitem__(self, name: str) -> T:
        """Return the object. Raises KeyError, and EntryPointError if another package's cannot be imported."""
        path = self._own.get(name) or self._others[name].value
        module, _, attribute = path.partition(":")
        if name in self._own:
            found: T = getattr(import_module(module), attribute)
            return found
        try:
            other: T = load_object(path, "OBJECT")
        except ValueError as error:
            raise EntryPointError(
                f"the entry point {name} = {path} in the group {self.group} {error}"
            ) from error
        return other

    def __iter__(self) -> Iterator[str]:
        yield from self._own
        yield from self._others

    def __len__(self) -> int:
        return len(self._own) + len(self._others)


@dataclass(frozen=True)
class Recipe:
    """A published command line."""

    help: str
    """One sentence."""
    values: Mapping[str, object]
    """Dotted field of the config -> value."""


@dataclass(frozen=True)
class Command:
    """A command of `pbt-rl`, described without importing it."""

    name: str
    module: str
    """Has `run(arguments) -> exit code`, or is MODULE:FUNCTION."""
    arguments: str
    """Behind its name, in the list of commands."""
    help: str


FAMILIES: Registry[Family] = Registry(
    "pbt_rl.families",
    {
        "atari": "pbt_rl.envs.families:ATARI",
        "gym": "pbt_rl.envs.families:GYM",
        "toy": "pbt_rl.envs.families:TOY",
        "dmlab2d": "pbt_rl.envs.families:DMLAB2D",
        "pettingzoo": "pbt_rl.envs.families:PETTINGZOO",
        "dmlab": "pbt_rl.envs.families:DMLAB",
        "vizdoom": "pbt_rl.envs.families:VIZDOOM",
        "envpool": "pbt_rl.envs.families:ENVPOOL",
        "gymnax": "pbt_rl.envs.families:GYMNAX",
        "mjlab": "pbt_rl.envs.families:MJLAB",
        "isaaclab": "pbt_rl.envs.families:ISAACLAB",
        "tensors": "pbt_rl.envs.families:TENSORS",
    },
)
ALGORITHMS: Registry[AlgorithmEntry] = Registry(
    "pbt_rl.algorithms",
    {
        "appo": "pbt_rl.algos.hypers:APPO",
        "a3c": "pbt_rl.algos.hypers:A3C",
        "fun": "pbt_rl.algos.hypers:FUN",
        "unreal": "pbt_rl.algos.hypers:UNREAL",
    },
)
"""In the order of the hypers that each adds, which controllers draw in."""
CONTROLLERS: Registry[Any] = Registry(
    "pbt_rl.controllers",
    {
        "pbt": "pbt_rl.controllers.controllers:PBT",
        "mf-pbt": "pbt_rl.controllers.mf_pbt:MF_PBT",
        "schedule": "pbt_rl.controllers.schedule:SCHEDULE",
        "hypertrick": "pbt_rl.controllers.search.entries:HYPERTRICK",
        "successive-halving": "pbt_rl.controllers.search.entries:SUCCESSIVE_HALVING",
        "hyperband": "pbt_rl.controllers.search.entries:HYPERBAND",
        "asha": "pbt_rl.controllers.search.entries:ASHA",
        "random": "pbt_rl.controllers.search.entries:RANDOM",
    },
)
"""What `--controller` names: each a `ControllerEntry` (`controllers/entry.py`)."""
READY_RULES: Registry[Any] = Registry(
    "pbt_rl.ready",
    {
        "synchronous": "pbt_rl.controllers.ready:SYNCHRONOUS",
        "asynchronous": "pbt_rl.controllers.ready:ASYNCHRONOUS",
        "partially-synchronous": "pbt_rl.controllers.ready:PARTIALLY_SYNCHRONOUS",
        "timed": "pbt_rl.controllers.ready:TIMED",
    },
)
"""What `--pbt.ready` names: each a `ReadyRule` (`controllers/ready.py`)."""
EXPLOIT_RULES: Registry[Any] = Registry(
    "pbt_rl.exploit",
    {
        "top-middle-bottom": "pbt_rl.controllers.exploit:TOP_MIDDLE_BOTTOM",
        "truncation": "pbt_rl.controllers.exploit:TRUNCATION",
        "t-test": "pbt_rl.controllers.exploit_published:T_TEST",
        "binary-tournament": "pbt_rl.controllers.exploit_published:BINARY_TOURNAMENT",
        "impala": "pbt_rl.controllers.exploit_published:IMPALA",
        "quantile": "pbt_rl.controllers.exploit_published:QUANTILE",
        "backtrack": "pbt_rl.controllers.exploit_published:BACKTRACK",
        "sigma-gap": "pbt_rl.controllers.exploit_published:SIGMA_GAP",
    },
)
"""What `--pbt.exploit` names: each an `ExploitRule`, whose fields `--pbt.exploit-option` sets."""
EXPLORE_RULES: Registry[Any] = Registry(
    "pbt_rl.explore",
    {
        "perturb": "pbt_rl.controllers.explore:PERTURB",
        "factors": "pbt_rl.controllers.explore:FACTORS",
        "pb2": "pbt_rl.controllers.pb2:PB2",
        "multiply-or-divide": "pbt_rl.controllers.explore_published:MULTIPLY_OR_DIVIDE",
        "resample": "pbt_rl.controllers.explore_published:RESAMPLE",
        "resample-all": "pbt_rl.controllers.explore_published:RESAMPLE_ALL",
        "pairwise": "pbt_rl.controllers.explore_published:PAIRWISE",
    },
)
"""What `--pbt.explore` names: each an `ExploreRule`, whose fields `--pbt.explore-option` sets."""
RULES: Mapping[str, Registry[Any]] = {
    "pbt.ready": READY_RULES,
    "pbt.exploit": EXPLOIT_RULES,
    "pbt.explore": EXPLORE_RULES,
}
"""Option that names a rule -> the rules."""
