"""Which environments there are: families, looked up by `family/name`, imported when they are used."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec

from .atari import AtariOptions
from .base import EnvSetupError, EnvSpec, ShapingSource, Unit


@dataclass(frozen=True)
class EnvOptions:
    """Options of the families that have any."""

    atari: AtariOptions = field(default_factory=AtariOptions)


@dataclass(frozen=True)
class Backend:
    """What a family does, once imported. NAME is what follows the family in `family/name`."""

    names: Callable[[], tuple[str, ...]]
    probe: Callable[[str, EnvOptions], EnvSpec]
    make_unit: Callable[[str, int, int, EnvOptions, ShapingSource], Unit]
    recipe: Callable[[str], dict[str, object]]


@dataclass(frozen=True)
class Family:
    """One kind of environments.

    requires: packages (import names) without which nothing of the family runs. load: imports the family.
    """

    name: str
    title: str
    example: str
    requires: tuple[str, ...]
    install_hint: str
    load: Callable[[], Backend]

    @property
    def missing(self) -> tuple[str, ...]:
        """Required packages that are not installed."""
        return tuple(package for package in self.requires if find_spec(package) is None)


@dataclass(frozen=True)
class FamilyStatus:
    """A row of `pbt-rl envs`. names: what can be made here (without `family/`); empty if any is missing."""

    name: str
    title: str
    example: str
    missing: tuple[str, ...]
    install_hint: str
    names: tuple[str, ...]

    @property
    def available(self) -> bool:
        """Whether all required packages are installed."""
        return not self.missing


def probe(env_id: str, options: EnvOptions) -> EnvSpec:
    """Describe an environment without keeping it. Raises EnvSetupError where it cannot be made."""
    backend, name = _find(env_id)
    return backend.probe(name, options)


def make_unit(env_id: str, rows: int, seed: int, options: EnvOptions, shaping: ShapingSource) -> Unit:
    """Make one vector environment of R rows. Equal seeds give equal units, different seeds different ones."""
    backend, name = _find(env_id)
    return backend.make_unit(name, rows, seed, options, shaping)


def recipe(env_id: str) -> dict[str, object]:
    """Defaults of a run on this environment: dotted name of a config field -> value. The user's own win."""
    backend, name = _find(env_id)
    return backend.recipe(name)


def families() -> tuple[FamilyStatus, ...]:
    """Say what is available here, family by family."""
    rows = []
    for family in FAMILIES.values():
        missing = family.missing
        found = () if missing else family.load().names()
        rows.append(
            FamilyStatus(family.name, family.title, family.example, missing, family.install_hint, found)
        )
    return tuple(rows)


def _find(env_id: str) -> tuple[Backend, str]:
    key, slash, name = env_id.partition("/")
    if not slash or not name or key not in FAMILIES:
        close = difflib.get_close_matches(key, FAMILIES)
        hint = f" Did you mean {close[0]}/{name or 'NAME'}?" if close else ""
        known = ", ".join(f"{family}/NAME" for family in FAMILIES)
        raise EnvSetupError(
            f"{env_id!r} names no environment: write {known}.{hint} `pbt-rl envs` lists them all"
        )
    family = FAMILIES[key]
    if family.missing:
        raise EnvSetupError(f"{env_id} needs the package {', '.join(family.missing)}: {family.install_hint}")
    return family.load(), name


def _load_atari() -> Backend:
    from . import atari  # noqa: PLC0415 - families are imported when used

    return Backend(
        names=atari.names,
        probe=lambda name, options: atari.probe(name, options.atari),
        make_unit=lambda name, rows, seed, options, shaping: atari.AtariUnit(
            name, rows, seed, options.atari, shaping
        ),
        recipe=atari.recipe,
    )


def _load_gym() -> Backend:
    from . import gymnasium_env  # noqa: PLC0415 - families are imported when used

    return Backend(
        names=gymnasium_env.names,
        probe=lambda name, _options: gymnasium_env.probe(name),
        make_unit=lambda name, rows, seed, _options, shaping: gymnasium_env.make_unit(
            name, rows, seed, shaping
        ),
        recipe=gymnasium_env.recipe,
    )


def _load_toy() -> Backend:
    from . import toy  # noqa: PLC0415 - families are imported when used

    return Backend(
        names=toy.names,
        probe=lambda name, _options: toy.probe(name),
        make_unit=lambda name, rows, seed, _options, shaping: toy.make_unit(name, rows, seed, shaping),
        recipe=toy.recipe,
    )


FAMILIES = {
    family.name: family
    for family in (
        Family("atari", "Atari 2600 games", "atari/pong", ("ale_py",), "pip install ale-py", _load_atari),
        Family(
            "gym",
            "Gymnasium environments",
            "gym/CartPole-v1",
            ("gymnasium",),
            "pip install gymnasium, with extras such as 'gymnasium[mujoco]' for more",
            _load_gym,
        ),
        Family(
            "toy", "toys with known answers", "toy/memory", ("gymnasium",), "pip install gymnasium", _load_toy
        ),
    )
}
