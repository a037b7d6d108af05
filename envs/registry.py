"""Which environments there are: families, looked up by `family/name`, and the user's own, `module:factory`.

All of them are imported when they are used.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from .atari import AtariOptions
from .base import EnvSetupError, EnvSpec, ShapingSource, Unit
from .dmlab.options import DmlabOptions

if TYPE_CHECKING:
    from .custom import Made


@dataclass(frozen=True)
class EnvOptions:
    """Options of the families that have any."""

    atari: AtariOptions = field(default_factory=AtariOptions)
    dmlab: DmlabOptions = field(default_factory=DmlabOptions)
    keywords: Mapping[str, Any] = field(default_factory=dict)
    """--env-option: what the maker of an environment is called with, where a family takes that."""


DEFAULTS = EnvOptions()
SHORT_NAMES = {"dmlab30": "dmlab/dmlab30"}
"""Environments that have a name without a family, too."""


def keywords(env_option: Iterable[str]) -> dict[str, Any]:
    """Read `key=value` pairs; a value is JSON where it can be, else a string."""
    found: dict[str, Any] = {}
    for pair in env_option:
        key, equals, text = pair.partition("=")
        if not equals or not key.isidentifier() or key in found:
            remedy = "it is given twice" if key in found else "write key=value, key as in Python"
            raise EnvSetupError(f"--env-option {pair} cannot be used: {remedy}")
        try:
            found[key] = json.loads(text)
        except ValueError:
            found[key] = text
    return found


@dataclass(frozen=True)
class Backend:
    """What a family does, once imported. NAME is what follows the family in `family/name`."""

    names: Callable[[], tuple[str, ...]]
    probe: Callable[[str, EnvOptions], EnvSpec]
    make_unit: Callable[[str, int, int, EnvOptions, ShapingSource], Unit]
    recipe: Callable[[str, EnvOptions], dict[str, object]]
    make: Callable[[str, EnvOptions], Made] | None = None
    """Makes one environment as its author wrote it, for the checker; None where there is only an engine."""


@dataclass(frozen=True)
class Family:
    """One kind of environments.

    requires: packages (import names) without which nothing of the family runs. load: imports the family.
    takes_keywords: whether --env-option reaches it.
    """

    name: str
    title: str
    example: str
    requires: tuple[str, ...]
    install_hint: str
    load: Callable[[], Backend]
    takes_keywords: bool = False

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
    backend, name = _find(env_id, options)
    return backend.probe(name, options)


def make_unit(env_id: str, rows: int, seed: int, options: EnvOptions, shaping: ShapingSource) -> Unit:
    """Make one vector environment of R rows. Equal seeds give equal units, different seeds different ones."""
    backend, name = _find(env_id, options)
    return backend.make_unit(name, rows, seed, options, shaping)


def recipe(env_id: str, options: EnvOptions = DEFAULTS) -> dict[str, object]:
    """Defaults of a run on this environment: dotted name of a config field -> value. The user's own win."""
    backend, name = _find(env_id, options)
    return backend.recipe(name, options)


def make_raw(env_id: str, options: EnvOptions) -> Made | None:
    """Make one environment as its author wrote it; None for a family that has only an engine of many."""
    backend, name = _find(env_id, options)
    return None if backend.make is None else backend.make(name, options)


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


def plugins() -> tuple[str, ...]:
    """Names of the environments that installed packages offer under the entry points `pbt_rl.envs`."""
    return tuple(sorted(point.name for point in entry_points(group="pbt_rl.envs")))


def _find(env_id: str, options: EnvOptions) -> tuple[Backend, str]:
    key, slash, name = SHORT_NAMES.get(env_id, env_id).partition("/")
    if key not in FAMILIES and (":" in key or key in plugins()):
        return _load_own(), env_id
    if not slash or not name or key not in FAMILIES:
        close = difflib.get_close_matches(key, FAMILIES)
        hint = f" Did you mean {close[0]}/{name or 'NAME'}?" if close else ""
        known = ", ".join(f"{family}/NAME" for family in FAMILIES)
        raise EnvSetupError(
            f"{env_id!r} names no environment: write {known} (family/name), or module:factory for your own."
            f"{hint} `pbt-rl envs` lists them all"
        )
    family = FAMILIES[key]
    if family.missing:
        raise EnvSetupError(f"{env_id} needs the package {', '.join(family.missing)}: {family.install_hint}")
    if options.keywords and not family.takes_keywords:
        raise EnvSetupError(
            f"--env-option {next(iter(options.keywords))}=... cannot be used: it is for {_takers()} and "
            f"environments of your own, not for {key}/"
        )
    return family.load(), name


def _takers() -> str:
    return ", ".join(f"{family.name}/" for family in FAMILIES.values() if family.takes_keywords)


def _load_atari() -> Backend:
    from . import ale, atari  # noqa: PLC0415 - families are imported when used

    return Backend(
        names=ale.names,
        probe=lambda name, options: ale.probe(name, options.atari),
        make_unit=lambda name, rows, seed, options, shaping: ale.AtariUnit(
            name, rows, seed, options.atari, shaping
        ),
        recipe=lambda name, _options: atari.recipe(name),
    )


def _called_with_keywords(module: Any, make: Callable[[str, EnvOptions], Made] | None = None) -> Backend:
    """A family whose module has `names`, `probe`, `make_unit` and `recipe`, and takes --env-option alone."""
    return Backend(
        names=module.names,
        probe=lambda name, options: module.probe(name, options.keywords),
        make_unit=lambda name, rows, seed, options, shaping: module.make_unit(
            name, rows, seed, shaping, options.keywords
        ),
        recipe=lambda name, options: module.recipe(module.probe(name, options.keywords)),
        make=make,
    )


def _load_gym() -> Backend:
    from . import gym as gymnasium_env  # noqa: PLC0415 - families are imported when used

    return _called_with_keywords(
        gymnasium_env, make=lambda name, options: gymnasium_env.maker(name, options.keywords)()
    )


def _load_toy() -> Backend:
    from . import toy  # noqa: PLC0415 - families are imported when used

    return Backend(
        names=toy.names,
        probe=lambda name, _options: toy.probe(name),
        make_unit=lambda name, rows, seed, _options, shaping: toy.make_unit(name, rows, seed, shaping),
        recipe=lambda name, _options: toy.recipe(name),
        make=lambda name, _options: toy.maker(name)(),
    )


def _load_lab2d() -> Backend:
    from . import lab2d  # noqa: PLC0415 - families are imported when used

    return _called_with_keywords(lab2d)


def _load_pettingzoo() -> Backend:
    from . import pettingzoo as pettingzoo_env  # noqa: PLC0415 - families are imported when used

    return _called_with_keywords(pettingzoo_env)


def _load_vizdoom() -> Backend:
    from .doom import unit as doom  # noqa: PLC0415 - families are imported when used

    return Backend(
        names=doom.names,
        probe=lambda name, _options: doom.probe(name),
        make_unit=lambda name, rows, seed, _options, shaping: doom.make_unit(name, rows, seed, shaping),
        recipe=lambda name, _options: doom.recipe(name),
    )


def _load_envpool() -> Backend:
    from . import envpool as envpool_env  # noqa: PLC0415 - families are imported when used

    return Backend(
        names=envpool_env.names,
        probe=lambda name, options: envpool_env.probe(name, options.atari, options.keywords),
        make_unit=lambda name, rows, seed, options, shaping: envpool_env.EnvPoolUnit(
            name, rows, seed, options.atari, shaping, options.keywords
        ),
        recipe=lambda name, options: envpool_env.recipe(name, options.atari, options.keywords),
    )


def _load_dmlab() -> Backend:
    from .dmlab import unit as dmlab  # noqa: PLC0415 - families are imported when used

    return Backend(
        names=dmlab.names,
        probe=lambda name, options: dmlab.probe(name, options.dmlab, options.keywords),
        make_unit=lambda name, rows, seed, options, shaping: dmlab.LabUnit(
            name, rows, seed, options.dmlab, options.keywords, shaping
        ),
        recipe=lambda name, _options: dmlab.recipe(name),
    )


def _load_own() -> Backend:
    """The user's own have no family: NAME is the whole id."""
    from . import custom as own  # noqa: PLC0415 - families are imported when used
    from . import gym as gymnasium_env  # noqa: PLC0415 - families are imported when used

    return Backend(
        names=tuple,
        probe=lambda name, options: own.probe(name, options.keywords),
        make_unit=lambda name, rows, seed, options, shaping: own.make_unit(
            name, rows, seed, shaping, options.keywords
        ),
        recipe=lambda name, options: gymnasium_env.recipe(own.probe(name, options.keywords)),
        make=lambda name, options: own.make(name, 1, options.keywords),
    )


FAMILIES = {
    family.name: family
    for family in (
        Family("atari", "Atari 2600 games", "atari/pong", ("ale_py",), "pip install ale-py", _load_atari),
        Family(
            "dmlab2d",
            "DeepMind Lab2D levels",
            "dmlab2d/commons_harvest",
            ("dmlab2d",),
            "pip install 'pbt-rl[dmlab2d]'",
            _load_lab2d,
            takes_keywords=True,
        ),
        Family(
            "gym",
            "Gymnasium environments",
            "gym/CartPole-v1",
            ("gymnasium",),
            "pip install gymnasium, with extras such as 'gymnasium[mujoco]' for more",
            _load_gym,
            takes_keywords=True,
        ),
        Family(
            "toy", "toys with known answers", "toy/memory", ("gymnasium",), "pip install gymnasium", _load_toy
        ),
        Family(
            "pettingzoo",
            "PettingZoo: environments of several agents",
            "pettingzoo/classic/connect_four_v3",
            ("pettingzoo",),
            "pip install 'pbt-rl[pettingzoo]'",
            _load_pettingzoo,
            takes_keywords=True,
        ),
        Family(
            "vizdoom",
            "Doom scenarios",
            "vizdoom/basic",
            ("vizdoom",),
            "pip install 'pbt-rl[vizdoom]'",
            _load_vizdoom,
        ),
        Family(
            "envpool",
            "EnvPool's native vectors",
            "envpool/Pong-v5",
            ("envpool",),
            "pip install 'pbt-rl[envpool]'",
            _load_envpool,
            takes_keywords=True,
        ),
        Family(
            "dmlab",
            "DeepMind Lab",
            "dmlab/dmlab30",
            ("deepmind_lab",),
            "it is on no registry; build the module deepmind_lab as https://github.com/google-deepmind/lab says "
            "(python/pip_package), and install that or put it on PYTHONPATH",
            _load_dmlab,
            takes_keywords=True,
        ),
    )
}
