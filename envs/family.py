"""The interface of a family of environments: a line of the registry's table, and the functions behind it.

A new family is one module with a `BACKEND` and one `Family`: in `registry.py`, or in the `FAMILIES` of an `extra.py` in
a folder of its own. Of an id that names no environment it is said what it may have meant: names without their family or
misspelt, files. Extras also add kinds of environments that a factory of the user's own may return (`Kind`).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path, PurePath
from typing import Any, Protocol, TypeVar

from ..extras import Recipe, offered
from .base import EnvSpec, FamilyOptions, ShapingSource, Unit
from .film import Camera
from .first_trial import FirstProbe

T = TypeVar("T", bound=FamilyOptions)


@dataclass(frozen=True)
class EnvOptions:
    """Options that environments are made with."""

    families: tuple[FamilyOptions, ...] = ()
    """Options of families; a family that has none here takes its defaults."""
    keywords: Mapping[str, Any] = field(default_factory=dict)
    """--env-option: keywords for the maker of an environment, for families that take them."""
    last_action_reward: bool = False
    """Add the last action and reward to the observations of any environment (last.py)."""
    critic_only: tuple[str, ...] = ()
    """Observations that only the critic sees, besides those that the environment declares (critic.py)."""
    first_row: int = 0
    """Number of a unit's first row among those of all units of the run: rows share out devices by it."""

    def of(self, kind: type[T]) -> T:
        """Return the options of a family."""
        return next((options for options in self.families if isinstance(options, kind)), kind())

    def with_family(self, own: FamilyOptions) -> EnvOptions:
        """Return the same with other options of a family."""
        others = (options for options in self.families if type(options) is not type(own))
        return replace(self, families=(*others, own))


class RawEnv(Protocol):
    """An environment as its author wrote it: of Gymnasium (single or vector), or of several agents."""

    def close(self) -> None:
        """Release the environment."""


def _no_recipe(_name: str, _options: EnvOptions) -> dict[str, object]:
    return {}


def _same_name(name: str, _options: EnvOptions) -> str:
    return name


def _nothing_between(_name: str, _options: EnvOptions) -> str:
    return ""


def _reproducible(_name: str) -> str:
    return ""


MADE = "environments are made"


def _as_trained(options: EnvOptions) -> EnvOptions:
    return options


@dataclass(frozen=True)
class Backend:
    """The functions of a family. NAME is the part of the id behind the family in `family/name`."""

    names: Callable[[], tuple[str, ...]]
    """Lists what can be made here."""
    probe: Callable[[str, EnvOptions], EnvSpec]
    """(name, options) -> spec, without keeping an environment."""
    make_unit: Callable[[str, int, int, EnvOptions, ShapingSource], Unit]
    """(name, rows, seed, options, shaping) -> unit."""
    recipe: Callable[[str, EnvOptions], dict[str, object]] = _no_recipe
    """(name, options) -> defaults of a run: dotted name of a config field -> value."""
    make: Callable[[str, EnvOptions], RawEnv | None] | None = None
    """Makes one environment as its author wrote it; None if there is only an engine of many."""
    for_evaluation: Callable[[EnvOptions], EnvOptions] = _as_trained
    """Options of a run -> options of its evaluation."""
    film: Callable[[str, int, int, EnvOptions, ShapingSource], tuple[Unit, Camera] | None] | None = None
    """Does as `make_unit`, with a camera on row 0; None if there are no pictures."""
    shown: Callable[[str, EnvOptions], str] = _same_name
    """(name, options) -> name of what is played under these options, for people."""
    played: Callable[[str, EnvOptions], str] = _nothing_between
    """(name, options) -> what lies between the engine and a policy, for those who play it elsewhere; "" if nothing."""
    make_resident: Callable[[str, int, int, str, EnvOptions], Any] | None = None
    """(name, rows, seed, device, options) -> `ResidentEnv`, for specs that are `resident`."""
    unreproducible: Callable[[str], str] = _reproducible
    """Why equal seeds do not give equal steps in NAME, through no fault of anybody here; "" if they do."""
    begins: str = MADE
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
    """Module with the family's `BACKEND`, absolute or relative to this package; imported when it is used."""
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

    def load(self) -> Backend:
        """Import the family."""
        return load_backend(self.module)


def load_backend(module: str) -> Backend:
    """Import a module's `BACKEND`."""
    backend: Backend = import_module(module, __package__).BACKEND
    return backend


def keywords_backend(
    family: str,
    names: Callable[[], tuple[str, ...]],
    probe: Callable[[str, Mapping[str, Any]], EnvSpec],
    make_unit: Callable[[str, int, int, ShapingSource, Mapping[str, Any]], Unit],
    recipe: Callable[[EnvSpec], dict[str, object]],
    make: Callable[[str, EnvOptions], RawEnv | None] | None = None,
    film: Callable[[str, int, int, EnvOptions, ShapingSource], tuple[Unit, Camera] | None] | None = None,
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
        make=make,
        film=film,
        make_resident=make_resident,
    )


ATARI_ID = re.compile(r"(?:ALE/)?([A-Za-z]+?)(?:-ram)?(?:NoFrameskip|Deterministic)?-v\d+")
OWN_ID = re.compile(r"[\w:.-]+-v\d+")
"""As Gymnasium has them, of whatever package."""


def meant(env_id: str, families: dict[str, Family]) -> str:
    """Return what to write instead, as the end of a sentence; "" if nothing is like it."""
    if ".py" in env_id:
        return _module(env_id)
    game = atari_game(env_id)
    if game:
        return f"write {game}"
    last = env_id.rpartition("/")[2]
    by_plain: dict[str, str] = {}
    # The newest version of what the first family has stays; a simulator on the device is named where nothing else is.
    order = [*families.items()]
    order.reverse()
    order.sort(key=lambda item: not item[1].on_device)
    for family, known in order:
        for name in () if known.missing else known.load().names():
            if name == last and not known.on_device:
                return f"write {family}/{name}"
            by_plain[_plain(name)] = f"{family}/{name}"
    close = difflib.get_close_matches(_plain(last), by_plain, n=2, cutoff=0.8)
    if close:
        return f"did you mean {' or '.join(by_plain[name] for name in close)}?"
    if OWN_ID.fullmatch(last):
        return f"write gym/{last}, or gym/MODULE:{last} if a module of yours registers it"
    return _dotted(env_id)


def atari_game(env_id: str) -> str:
    """Return `atari/GAME` for Gymnasium's id of a game, such as ALE/Pong-v5 or PongNoFrameskip-v4; "" for any other."""
    match = ATARI_ID.fullmatch(env_id)
    if match is None or find_spec("ale_py") is None:
        return ""
    snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", match[1]).lower()
    return f"atari/{snake}" if snake in load_backend(".ale").names() else ""


def _plain(name: str) -> str:
    """Return a name without its version and its spelling: HalfCheetah-v5 is halfcheetah."""
    return re.sub(r"[^a-z0-9]", "", re.sub(r"-v\d+$", "", name).lower())


def _module(env_id: str) -> str:
    path, _, name = env_id.partition(":")
    file, factory = PurePath(path), name or "make_env"
    if file.is_absolute() or ".." in file.parts:
        return f"write {file.stem}:{factory} and run from the folder {file.parent}"
    return f"write {'.'.join(file.with_suffix('').parts)}:{factory}, as Python imports it from the working directory"


def _dotted(env_id: str) -> str:
    """Return module:factory for `module.factory`, or a module alone, that lies in the working directory."""
    *parts, last = env_id.split(".")
    for module, factory in (("/".join(parts), last), ("/".join([*parts, last]), "make_env")):
        if module and (Path(f"{module}.py").is_file() or Path(module, "__init__.py").is_file()):
            return _module(f"{module}.py:{factory}")
    return ""


@dataclass(frozen=True)
class Kind:
    """What environments of a foreign interface are played by. An extra declares them as `KINDS` in its `extra.py`."""

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


def kinds() -> tuple[Kind, ...]:
    """Return the kinds of all extras that there are."""
    return tuple(kind for declared in offered(__package__ or "", "KINDS") for kind in declared)


@dataclass(frozen=True)
class Factory:
    """Factories of the user's own that are told by their parameters. An extra declares them as `FACTORIES`."""

    parameters: tuple[str, ...]
    """Names that it takes."""
    module: str
    """Has a `BACKEND` for them, by their whole id; imported when it is used."""


def backend_of_factory(takes: Callable[[str], bool]) -> Backend | None:
    """Return what makes environments by a factory with these parameters, if an extra does."""
    factories = (one for declared in offered(__package__ or "", "FACTORIES") for one in declared)
    return next((load_backend(one.module) for one in factories if all(map(takes, one.parameters))), None)
