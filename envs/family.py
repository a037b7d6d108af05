"""The interface of a family of environments: what is known of it before it is imported, and the functions behind it.

A new family is one module with a `BACKEND`, and one `Family` in the table of `pbt_rl/registry.py`. `Kind`: environments
of a foreign interface, which a factory of the user's own may return.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeVar

from pbt_rl.registry import Recipe

from .base import EnvSpec, FamilyOptions, ShapingSource, Unit
from .first_trial import FirstProbe
from .time_limits import Closes

T = TypeVar("T", bound=FamilyOptions)


@dataclass(frozen=True)
class EnvOptions:
    """Options that environments are made with."""

    families: tuple[FamilyOptions, ...] = ()
    """Options of families; a family that has none here takes its defaults."""
    keywords: Mapping[str, Any] = field(default_factory=dict)
    """--env-option: keywords for the maker of an environment, for families that take them."""
    last_action_reward: bool = False
    """Add the last action and reward to the observations of any environment."""
    critic_only: tuple[str, ...] = ()
    """Observations that only the critic sees, besides those that the environment declares (shaping.py)."""
    first_row: int = 0
    """Number of a unit's first row among those of all units of the run: rows share out devices by it, and factories
    are told it as `env_index`."""

    def of(self, kind: type[T]) -> T:
        """Return the options of a family."""
        return next((options for options in self.families if isinstance(options, kind)), kind())

    def with_family(self, own: FamilyOptions) -> EnvOptions:
        """Return the same with other options of a family."""
        others = (options for options in self.families if type(options) is not type(own))
        return replace(self, families=(*others, own))


OUTSIDE = 10_000
"""`first_row` of games that are played beside the training."""


RawEnv = Closes
"""An environment as its author wrote it: of Gymnasium (single or vector), or of several agents."""


@dataclass(frozen=True)
class Backend:
    """The functions of a family. NAME is the part of the id behind the family in `family/name`."""

    names: Callable[[], tuple[str, ...]]
    """Lists what can be made here."""
    probe: Callable[[str, EnvOptions], EnvSpec]
    """(name, options) -> spec, without keeping an environment."""
    make_unit: Callable[[str, int, int, EnvOptions, ShapingSource], Unit]
    """(name, rows, seed, options, shaping) -> unit."""
    recipe: Callable[[str, EnvOptions], dict[str, object]] = lambda _name, _options: {}
    """(name, options) -> defaults of a run: dotted name of a config field -> value."""
    recipe_of: Callable[[EnvSpec], dict[str, object]] | None = None
    """The same of a spec that is known, for those that make an environment for it."""
    make: Callable[[str, EnvOptions], RawEnv | None] | None = None
    """Makes one environment as its author wrote it; None if there is only an engine of many."""
    for_evaluation: Callable[[EnvOptions], EnvOptions] = lambda options: options
    """Options of a run -> options of its evaluation."""
    film: Callable[[str, int, int, EnvOptions, ShapingSource], tuple[Unit, Any] | None] | None = None
    """Does as `make_unit`, with what shows row 0: an object whose `render()` does, or the engine's frames per second
    if the policy sees a picture. None if there is nothing to film."""
    shown: Callable[[str, EnvOptions], str] = lambda name, _options: name
    """(name, options) -> name of what is played under these options, for people."""
    make_resident: Callable[[str, int, int, str, EnvOptions], Any] | None = None
    """(name, rows, seed, device, options) -> `ResidentEnv`, for specs that are `resident`."""
    unreproducible: Callable[[str], str] = lambda _name: ""
    """Why equal seeds do not give equal steps in NAME, through no fault of anybody here; "" if they do."""
    step_seconds: float = 30.0
    """A step or reset of a unit that takes longer hangs; so does what describes it."""
    begins: str = "environments are made"
    """What happens before the first frames of a run, for people who wait for them."""


@dataclass(frozen=True)
class Family:
    """A kind of environments, described without importing it."""

    name: str
    title: str
    example: str
    requires: tuple[str, ...]
    """Packages (import names) without which nothing of the family runs."""
    install_hint: str
    module: str
    """MODULE with a `BACKEND`, or MODULE:NAME, absolute or relative to this package; imported when it is used."""
    takes_keywords: bool = False
    """Whether --env-option reaches it."""
    options: Mapping[str, type[FamilyOptions]] = field(default_factory=dict)
    """Group of the config -> its dataclass, of the options of this family, such as `atari`."""
    short_names: Mapping[str, str] = field(default_factory=dict)
    """Names that stand for an id of this family."""
    recipes: Mapping[str, Recipe] = field(default_factory=dict)
    """Published command lines by name."""
    on_device: bool = False
    """Whether its environments are rows of tensors in the learner."""
    several_agents: bool = False
    """Whether there are environments of several agents: then the options of matchups belong to it, too."""

    @property
    def option_groups(self) -> tuple[str, ...]:
        """Groups of the config that its environments read."""
        return (*self.options, *(("matchup",) if self.several_agents else ()))

    @property
    def missing(self) -> tuple[str, ...]:
        """Required packages that are not installed."""
        return tuple(package for package in self.requires if find_spec(package) is None)

    def names(self) -> tuple[str, ...]:
        """List what can be made here, without `family/`; nothing if a package is missing."""
        return () if self.missing else self.load().names()

    def load(self) -> Backend:
        """Import the family."""
        return load_backend(self.module)


def load_backend(module: str) -> Backend:
    """Import a `Backend`: MODULE, where it is named BACKEND, or MODULE:NAME."""
    path, _, name = module.partition(":")
    backend: Backend = getattr(import_module(path, __package__), name or "BACKEND")
    return backend


def keywords_backend(
    family: str,
    names: Callable[[], tuple[str, ...]],
    probe: Callable[[str, Mapping[str, Any]], EnvSpec],
    make_unit: Callable[[str, int, int, ShapingSource, Mapping[str, Any]], Unit],
    recipe: Callable[[EnvSpec], dict[str, object]],
    make: Callable[[str, EnvOptions], RawEnv | None] | None = None,
    make_resident: Callable[[str, int, int, str, EnvOptions], Any] | None = None,
) -> Backend:
    """Make the backend of a family whose only options are those of --env-option, and whose code is not ours.

    family: its name; "" for environments that have none.
    """
    first = FirstProbe(f"{family}/" if family else "", probe)
    return Backend(
        names=names,
        probe=lambda name, options: first(name, options.keywords),
        make_unit=lambda name, rows, seed, options, shaping: make_unit(
            name, rows, seed, shaping, options.keywords
        ),
        recipe=lambda name, options: recipe(first.for_recipe(name, options.keywords)),
        recipe_of=recipe,
        make=make,
        make_resident=make_resident,
    )


@dataclass(frozen=True)
class Kind:
    """What environments of a foreign interface are played by."""

    title: str
    """For an error that lists what a factory may return, such as "a gymnasium.Env"."""
    fits: Callable[[object], bool]
    """Whether an object is one of these."""
    describe: Callable[[str, Any], EnvSpec]
    """(id, environment) -> spec of a row. Raises EnvSetupError."""
    make_unit: Callable[[str, Callable[[], Any], int, int, ShapingSource], Unit]
    """(id, what makes one environment, rows, seed, shaping) -> unit."""
    all_rows: bool = False
    """Whether one of them is all rows of a unit, as many as its `num_envs`; else one of them or one table of them."""
