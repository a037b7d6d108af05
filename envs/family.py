"""Interface of an environment family.

A new family consists of a module with a `BACKEND`, and of a `Family` in the table of `pbt_rl/registry.py`. `Family`
describes the family without importing the module.
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
    """Options of an environment."""

    families: tuple[FamilyOptions, ...] = ()
    """Options of families. A family without an entry uses its defaults."""
    keywords: Mapping[str, Any] = field(default_factory=dict)
    """--env-option: keywords for the environment's factory, in families that support keywords."""
    last_action_reward: bool = False
    """True adds the last action and reward to the observations."""
    critic_only: tuple[str, ...] = ()
    """Critic-only observations besides the names in the environment's metadata (shaping.py)."""
    first_row: int = 0
    """Index of a vector env's first row among all rows of the run. DMLab assigns its rows to GPUs by this index. The
    user's factory gets the index as `env_index`, increased by 1 for each further environment.
    """

    def of(self, kind: type[T]) -> T:
        """Return the options whose class is `kind`, or the defaults of `kind`."""
        return next((options for options in self.families if isinstance(options, kind)), kind())

    def with_family(self, own: FamilyOptions) -> EnvOptions:
        """Return a copy in which the options of one family are replaced."""
        others = (options for options in self.families if type(options) is not type(own))
        return replace(self, families=(*others, own))


OUTSIDE = 10_000
"""`first_row` of the evaluations within a run is a positive multiple of this number."""


RawEnv = Closes
"""Environment without a wrapper of this project: a Gymnasium environment (single or vector) or a PettingZoo
environment.
"""


@dataclass(frozen=True)
class Backend:
    """Functions of a family. An argument `name` is NAME in `family/NAME`."""

    names: Callable[[], tuple[str, ...]]
    """() -> available names."""
    probe: Callable[[str, EnvOptions], EnvSpec]
    """(name, options) -> spec. The function closes every environment that it makes."""
    make_vector_env: Callable[[str, int, int, EnvOptions, ShapingSource], VectorEnv]
    """(name, rows, seed, options, shaping) -> vector env."""
    recipe: Callable[[str, EnvOptions], dict[str, object]] = lambda _name, _options: {}
    """(name, options) -> default options of a run: dotted name of a config field -> value."""
    recipe_of: Callable[[EnvSpec], dict[str, object]] | None = None
    """spec -> default options of a run. Only in families that must make an environment to get its spec."""
    make: Callable[[str, EnvOptions], RawEnv | None] | None = None
    """(name, options) -> one unwrapped environment. None if single environments cannot be made."""
    for_evaluation: Callable[[EnvOptions], EnvOptions] = lambda options: options
    """Options of a run -> options of its evaluation."""
    film: Callable[[str, int, int, EnvOptions, ShapingSource], tuple[VectorEnv, Any] | None] | None = None
    """(name, rows, seed, options, shaping) -> (vector env, source of the pictures of row 0). The source is an object
    with `render()`, or a number. If the source is a number, the pictures are the observation "obs", and the number is
    the emulator frames per second. The function returns None if there are no pictures.
    """
    shown: Callable[[str, EnvOptions], str] = lambda name, _options: name
    """(name, options) -> displayed name, which may depend on the options."""
    make_simulator: Callable[[str, int, int, str, EnvOptions], Any] | None = None
    """(name, rows, seed, device, options) -> `SimulatorEnv`, for device simulators."""
    unreproducible: Callable[[str], str] = lambda _name: ""
    """name -> reason why equal seeds give different steps in this environment. "" if no reason is known."""
    step_seconds: float = 30.0
    """Default timeout of `pbt-rl envs check`: of `probe`, and of each construction, reset and step of a vector env."""
    begins: str = "environments are made"
    """Activity before the first frames of a run, for progress messages."""


@dataclass(frozen=True)
class Family:
    """Description of an environment family, available without importing its module."""

    name: str
    title: str
    example: str
    requires: tuple[str, ...]
    """Import names of required packages."""
    install_hint: str
    module: str
    """Module with the attribute `BACKEND`, or `module:NAME` if the attribute is NAME. The path is absolute, or relative
    to this package.
    """
    takes_keywords: bool = False
    """True if the family supports --env-option."""
    options: Mapping[str, type[FamilyOptions]] = field(default_factory=dict)
    """Config group (such as `atari`) -> dataclass of the family's options."""
    short_names: Mapping[str, str] = field(default_factory=dict)
    """Short name -> id of an environment."""
    recipes: Mapping[str, Recipe] = field(default_factory=dict)
    """Name -> option values of a published setting."""
    on_device: bool = False
    """True if the environments are device simulators."""
    several_agents: bool = False
    """True if the family has environments with several agents. The options of matchups then apply."""

    @property
    def option_groups(self) -> tuple[str, ...]:
        """Return the config groups that apply to the family."""
        return (*self.options, *(("matchup",) if self.several_agents else ()))

    @property
    def missing(self) -> tuple[str, ...]:
        """Return the required packages that are not installed."""
        return tuple(package for package in self.requires if find_spec(package) is None)

    def names(self) -> tuple[str, ...]:
        """Return the available names, without `family/`. Empty if a package is missing."""
        return () if self.missing else self.load().names()

    def load(self) -> Backend:
        """Import the family's module and return its `Backend`."""
        return load_backend(self.module)


def load_backend(module: str) -> Backend:
    """Import a `Backend`. module: module with the attribute `BACKEND`, or `module:NAME`."""
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
    make_simulator: Callable[[str, int, int, str, EnvOptions], Any] | None = None,
) -> Backend:
    """Return the backend of a family of third-party environments, whose only options are --env-option.

    family: name of the family. "" for the user's own environments.
    probe: (name, keywords) -> spec. It runs in a fork of this process (`FirstProbe`).
    make_vector_env: (name, rows, seed, shaping, keywords) -> vector env.
    recipe: spec -> default options of a run.
    The other arguments are fields of `Backend`.
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
        make_simulator=make_simulator,
    )


@dataclass(frozen=True)
class Kind:
    """Adapter for one interface that environments of a user's factory may have instead of `gymnasium.Env`."""

    title: str
    """Name of the interface for error messages, such as "a gymnasium.Env"."""
    fits: Callable[[object], bool]
    """object -> True if the object has the interface."""
    describe: Callable[[str, Any], EnvSpec]
    """(id, environment) -> spec of a row. Raises EnvSetupError if the environment is unsuitable."""
    make_vector_env: Callable[[str, Callable[[], Any], int, int, ShapingSource], VectorEnv]
    """(id, function that makes one environment, rows, seed, shaping) -> vector env."""
    all_rows: bool = False
    """True if one environment has all rows (`num_envs`). Otherwise each environment has one row per agent."""
