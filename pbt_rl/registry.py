"""Registries of environments, algorithms, controllers and rules: tables from name to `module:OBJECT`.

The registry of commands is in `cli`. Each registry has a group of entry points, with which other installed packages add
objects:

    [project.entry-points."pbt_rl.exploit"]
    mine = "my_package.rules:MINE"

Objects are imported at lookup. The lookup of a faulty entry point raises EntryPointError. `items` and `values` omit
faulty entry points.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

T = TypeVar("T")


def load_object(path: str, name: str = "name") -> Any:
    """Import and return the object at `path`, which has the form `module:object`.

    Raises ValueError with the message "cannot be loaded: ..." if the import fails or the object does not exist. The
    caller prepends a subject, such as "--track x". name: word for the object in the remedy, "Write module:NAME".
    """
    module, _, attribute = path.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the module is the user's, and may raise anything
        raise ValueError(f"cannot be loaded: {error!r}. Write module:{name}, as Python imports it") from error


@cache
def _entry_points() -> Any:
    """Return the entry points of all groups. Cached because a search takes milliseconds."""
    return entry_points()


class EntryPointError(ValueError):
    """Error about an entry point whose object cannot be imported or has the wrong type.

    The message contains the name of the entry point.
    """


class Registry(Mapping[str, T], Generic[T]):
    """Mapping from name to object. Objects are imported at lookup. Iteration starts with the built-in names.

    group: group of entry points, for objects of other packages. kind: class of the objects, as `module:Class`.
    own: built-in objects, name -> `module:OBJECT`.
    """

    def __init__(self, group: str, kind: str, own: Mapping[str, str]) -> None:
        self.group, self._kind, self._own = group, kind, dict(own)

    @cached_property
    def _others(self) -> dict[str, EntryPoint]:
        points = sorted(_entry_points().select(group=self.group), key=lambda point: point.name)
        return {point.name: point for point in points if point.name not in self._own}

    def __getitem__(self, name: str) -> T:
        """Import an object. Raises KeyError for an unknown name, EntryPointError for a faulty entry point."""
        path = self._own.get(name) or self._others[name].value
        module, _, attribute = path.partition(":")
        if name in self._own:
            found: T = getattr(import_module(module), attribute)
            return found
        point, kind = f"the entry point {name} = {path} in the group {self.group}", load_object(self._kind)
        try:
            other: T = load_object(path, "OBJECT")
        except ValueError as error:
            raise EntryPointError(f"{point} {error}") from error
        if not isinstance(other, kind):
            what = f"the class {other.__name__}" if isinstance(other, type) else f"of {type(other)}"
            raise EntryPointError(f"{point} must be an object of {self._kind}, not {what}")
        return other

    def is_external(self, name: str) -> bool:
        """True for the name of an object of another package."""
        return name in self._others

    def items(self) -> ItemsView[str, T]:
        """Return (name, object) pairs, without faulty entry points."""
        return {name: self[name] for name in self if name not in self.unusable}.items()

    def values(self) -> ValuesView[T]:
        """Return the objects, without faulty entry points."""
        return dict(self.items()).values()

    @cached_property
    def unusable(self) -> dict[str, EntryPointError]:
        """Name -> error, for each faulty entry point."""
        found = {}
        for name in self._others:
            try:
                self[name]
            except EntryPointError as error:
                found[name] = error
        return found

    def __iter__(self) -> Iterator[str]:
        yield from self._own
        yield from self._others

    def __len__(self) -> int:
        return len(self._own) + len(self._others)


@dataclass(frozen=True)
class Recipe:
    """Options of a published setting, for --recipe."""

    help: str
    """Help text: one sentence."""
    values: Mapping[str, object]
    """Dotted field of the config -> value."""


@dataclass(frozen=True)
class Command:
    """Command of `pbt-rl`. Its module is imported when the command runs."""

    name: str
    module: str
    """Module with `run(arguments) -> exit code`, or MODULE:FUNCTION."""
    arguments: str
    """Arguments, as printed in the list of commands."""
    help: str


FAMILIES: Registry[Any] = Registry(
    "pbt_rl.families",
    "pbt_rl.envs.family:Family",
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
"""Environment families: part of an environment id before the slash -> `Family` (`envs/family.py`)."""
ALGORITHMS: Registry[Any] = Registry(
    "pbt_rl.algorithms",
    "pbt_rl.algos.hypers:AlgorithmEntry",
    {
        "appo": "pbt_rl.algos.hypers:APPO",
        "a3c": "pbt_rl.algos.hypers:A3C",
        "fun": "pbt_rl.algos.hypers:FUN",
        "unreal": "pbt_rl.algos.hypers:UNREAL",
    },
)
"""Values of `--algo` -> `AlgorithmEntry` (`algos/hypers.py`). The order of this table determines the order in
which controllers sample hyperparameters."""
CONTROLLERS: Registry[Any] = Registry(
    "pbt_rl.controllers",
    "pbt_rl.controllers.entry:ControllerEntry",
    {
        "pbt": "pbt_rl.controllers.lookup:PBT",
        "mf-pbt": "pbt_rl.controllers.mf_pbt:MF_PBT",
        "schedule": "pbt_rl.controllers.schedule:SCHEDULE",
        "hypertrick": "pbt_rl.controllers.search.entries:HYPERTRICK",
        "successive-halving": "pbt_rl.controllers.search.entries:SUCCESSIVE_HALVING",
        "hyperband": "pbt_rl.controllers.search.entries:HYPERBAND",
        "asha": "pbt_rl.controllers.search.entries:ASHA",
        "random": "pbt_rl.controllers.search.entries:RANDOM",
    },
)
"""Values of `--controller` -> `ControllerEntry` (`controllers/entry.py`)."""
READY_RULES: Registry[Any] = Registry(
    "pbt_rl.ready",
    "pbt_rl.controllers.ready:ReadyRule",
    {
        "synchronous": "pbt_rl.controllers.ready:SYNCHRONOUS",
        "asynchronous": "pbt_rl.controllers.ready:ASYNCHRONOUS",
        "partially-synchronous": "pbt_rl.controllers.ready:PARTIALLY_SYNCHRONOUS",
        "timed": "pbt_rl.controllers.ready:TIMED",
    },
)
"""Values of `--pbt.ready` -> `ReadyRule` (`controllers/ready.py`)."""
EXPLOIT_RULES: Registry[Any] = Registry(
    "pbt_rl.exploit",
    "pbt_rl.controllers.exploit:ExploitRule",
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
"""Values of `--pbt.exploit` -> `ExploitRule` (`controllers/exploit.py`)."""
EXPLORE_RULES: Registry[Any] = Registry(
    "pbt_rl.explore",
    "pbt_rl.controllers.explore:ExploreRule",
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
"""Values of `--pbt.explore` -> `ExploreRule` (`controllers/explore.py`)."""
RULES: Mapping[str, Registry[Any]] = {
    "pbt.ready": READY_RULES,
    "pbt.exploit": EXPLOIT_RULES,
    "pbt.explore": EXPLORE_RULES,
}
"""Option that selects a rule -> registry of its rules."""
