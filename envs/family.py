"""Interface of an environment family: a description that needs no import, and the functions behind it.

A new family is one module with a `BACKEND`, and one `Family` in the table of `pbt_rl/registry.py`. `Kind`:
environments of a foreign interface, which a user's factory may return.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeVar

from pbt_rl.registry import Recipe

from .base import EnvSpec, FamilyOptions, ShapingSource, VectorEnv
from .first_trial import FirstProbe
from .time_limits import Closes

T = TypeVar("T", bound=FamilyOptions)


@dataclass(frozen=True)
class EnvOptions:
    """Options of environments."""

    families: tuple[FamilyOptions, ...] = ()
    """Options of families; a family that is absent here uses its defaults."""
    keywords: Mapping[str, Any] = field(default_factory=dict)
    """--env-option: keywords for the environment's factory, in families that support them."""
    last_action_reward: bool = False
    """Add the last action and reward to the observations of any environment."""
    critic_only: tuple[str, ...] = ()
    """Observations for the critic only, in addition to those that the environment declares (shaping.py)."""
    first_row: int = 0
    """Number of a vector env's first row among all rows of the run. Rows share devices by it, and factories get it
    as `env_index`.
    """

    def of(self, kind: type[T]) -> T:
        """Return the options of a family."""
        return next((options for options in self.families if isinstance(options, kind)), kind())

    def with_family(self, own: FamilyOptions) -> EnvOptions:
        """Return a copy with other options of a family."""
        others = (options for options in self.families if type(options) is not type(own))
        return replace(self, families=(*others, own))


OUTSIDE = 10_000
"""`first_row` of environments outside training."""


RawEnv = Closes
"""An unwrapped environment: of Gymnasium (single or vector), or of several agents."""


@dataclass(frozen=True)
class Backend:
    """Functions of a family. NAME is the part after the family in `family/name`."""

    names: Callable[[], tuple[str, ...]]
    """Lists the available names."""
    probe: Callable[[str, EnvOptions], EnvSpec]
    """(name, options) -> spec, without keeping an environment."""
    make_vector_env: Callable[[str, int, int, EnvOptions, ShapingSource], VectorEnv]
    """(name, rows, seed, options, shaping) -> vector env."""
    recipe: Callable[[str, EnvOptions], dict[str, object]] = lambda _name, _options: {}
    """(name, options) -> default options of a run: dotted name of a config field -> value."""
    recipe_of: Callable[[EnvSpec], dict[str, object]] | None = None
    """Default options by spec, for families that make an environment to describe it."""
    make: Callable[[str, EnvOptions], RawEnv | None] | None = None
    """Makes one unwrapped environment; None if there is only an engine of many."""
    for_evaluation: Callable[[EnvOptions], EnvOptions] = lambda options: options
    """Options of a run -> options of its evaluation."""
    film: Callable[[str, int, int, EnvOptions, ShapingSource], tuple[VectorEnv, Any] | None] | None = None
    """Same as `make_vector_env`, with a source of pictures of row 0: an object with `render()`, or the engine's frames
    per second if the policy's observation is a picture. None if there is nothing to film.
    """
    shown: Callable[[str, EnvOptions], str] = lambda name, _options: name
    """(name, options) -> name of the environment under these options, for display."""
    make_resident: Callable[[str, int, int, str, EnvOptions], Any] | None = None
    """(name, rows, seed, device, options) -> `ResidentEnv`, for specs that are `resident`."""
    unreproducible: Callable[[str], str] = lambda _name: ""
    """Reason why equal seeds do not give equal steps in NAME, if it lies outside this project; "" if they do."""
    step_seconds: float = 30.0
    """Timeout of a step or reset of a vector env, and of describing an environment."""
    begins: str = "environments are made"
    """Activity before the first frames of a run, for progress messages."""


@dataclass(frozen=True)
class Family:
    """Family of environments, described without importing it."""

    name: str
    title: str
    example: str
    requires: tuple[str, ...]
    """Required packages (import names)."""
    install_hint: str
    module: str
    """MODULE with a `BACKEND`, or MODULE:NAME, absolute or relative to this package; imported at first use."""
    takes_keywords: bool = False
    """True if the family supports --env-option."""
    options: Mapping[str, type[FamilyOptions]] = field(default_factory=dict)
    """Config group -> dataclass of the options of this family, such as `atari`."""
    short_names: Mapping[str, str] = field(default_factory=dict)
    """Short names -> ids of this family."""
    recipes: Mapping[str, Recipe] = field(default_factory=dict)
    """Published command lines by name."""
    on_device: bool = False
    """True if its environments are rows of tensors in the learner."""
    several_agents: bool = False
    """True if it has environments of several agents, to which the options of matchups then apply."""

    @property
    def option_groups(self) -> tuple[str, ...]:
        """Return the config groups of its environments."""
        return (*self.options, *(("matchup",) if self.several_agents else ()))

    @property
    def missing(self) -> tuple[str, ...]:
        """Return the required packages that are not installed."""
        return tuple(package for package in self.requires if find_spec(package) is None)

    def names(self) -> tuple[str, ...]:
        """List the available names, without `family/`; empty if a package is missing."""
        return () if self.missing else self.load().names()

    def load(self) -> Backend:
        """Import the family."""
        return load_backend(self.module)


def load_backend(module: str) -> Backend:
    """Import a `Backend`: MODULE with the attribute BACKEND, or MODULE:NAME."""
    path, _, name = module.partition(":")
    backend: Backend = getattr(import_module(path, __package__), name or "BACKEND")
    return backend


def keywords_backend(
    family: str,
    names: Callable[[], tuple[str, ...]],
    probe: Callable[[str, Mapping[str, Any]], EnvSpec],
    make_vector_env: Callable[[str, int, int, ShapingSource, Mapping[str, Any]], VectorEnv],
    recipe: Callable[[EnvSpec], dict[str, object]],
    make: Callable[[str, EnvOptions], RawEnv | None] | None = None,
    make_resident: Callable[[str, int, int, str, EnvOptions], Any] | None = None,
) -> Backend:
    """Make the backend of a family of third-party code whose only options are those of --env-option.

    family: its name; "" for environments without a family.
    """
    first = FirstProbe(f"{family}/" if family else "", probe)
    return Backend(
        names=names,
        probe=lambda name, options: first(name, options.keywords),
        make_vector_env=lambda name, rows, seed, options, shaping: make_vector_env(
            name, rows, seed, shaping, options.keywords
        ),
        recipe=lambda name, options: recipe(first.for_recipe(name, options.keywords)),
        recipe_of=recipe,
        make=make,
        make_resident=make_resident,
    )


@dataclass(frozen=True)
class Kind:
    """Adapter for environments of a foreign interface."""

    title: str
    """Name in the error that lists supported return types, such as "a gymnasium.Env"."""
    fits: Callable[[object], bool]
    """Checks whether an object is of this kind."""
    describe: Callable[[str, Any], EnvSpec]
    """(id, environment) -> spec of a row. Raises EnvSetupError."""
    make_vector_env: Callable[[str, Callable[[], Any], int, int, ShapingSource], VectorEnv]
    """(id, function that makes one environment, rows, seed, shaping) -> vector env."""
    all_rows: bool = False
    """True if one environment has all rows (its `num_envs`); else it has one row, or one for each agent."""
