"""The environments that there are: families, looked up by `family/name`, and the user's own, `module:factory`.

A family is imported when it is used.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Any

from pbt_rl.extras import discover, offered

from .atari import AtariOptions
from .base import LAST, EnvSetupError, EnvSpec, FamilyOptions, ShapingSource, Unit
from .critic import with_critic
from .family import Backend, EnvOptions, Family, Filming, RawEnv, load_backend, names
from .film import Camera
from .values import typed

__all__ = [
    "DEFAULTS",
    "FAMILIES",
    "EnvOptions",
    "Family",
    "FamilyOptions",
    "FamilyStatus",
    "evaluation_options",
    "families",
    "family_of",
    "film",
    "keywords",
    "make_raw",
    "make_unit",
    "plugins",
    "probe",
    "recipe",
]

DEFAULTS = EnvOptions()
CUSTOM = ".custom"
"""Module of the user's own environments. They have no family: NAME is the whole id."""


def keywords(env_option: Iterable[str]) -> dict[str, Any]:
    """Read `key=value` pairs; see `typed` for what a value may be."""
    found: dict[str, Any] = {}
    for pair in env_option:
        key, equals, text = pair.partition("=")
        if not equals or not key.isidentifier() or key in found:
            remedy = "it is given twice" if key in found else "write key=value, key as in Python"
            raise EnvSetupError(f"--env-option {pair:.200} cannot be used: {remedy}")
        found[key] = typed(text)
    return found


@dataclass(frozen=True)
class FamilyStatus:
    """A row of `pbt-rl envs`.

    names: environments that can be made here (without `family/`); empty if a package is missing.
    """

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
    """Describe an environment without keeping it. Raises EnvSetupError if it cannot be made."""
    backend, name = _find(env_id, options)
    spec = backend.probe(name, options)
    if options.last_action_reward and LAST not in spec.obs:
        spec = _adds_last().with_last(spec)
    return with_critic(spec, options.critic_only)


def make_unit(env_id: str, rows: int, seed: int, options: EnvOptions, shaping: ShapingSource) -> Unit:
    """Make one vector environment of R rows. Equal seeds give equal units, different seeds different ones."""
    backend, name = _find(env_id, options)
    return _seeing(backend.make_unit(name, rows, seed, options, shaping), options)


def make_resident(env_id: str, rows: int, seed: int, device: str, options: EnvOptions) -> Any:
    """Make the `ResidentEnv` of a spec that is `resident`: R rows on a device."""
    backend, name = _find(env_id, options)
    assert backend.make_resident is not None, f"{env_id} is not resident"
    return backend.make_resident(name, rows, seed, device, options)


def recipe(env_id: str, options: EnvOptions = DEFAULTS) -> dict[str, object]:
    """Return defaults of a run: dotted name of a config field -> value. The user's options win."""
    backend, name = _find(env_id, options)
    return backend.recipe(name, options)


def make_raw(env_id: str, options: EnvOptions) -> RawEnv | None:
    """Make one environment as its author wrote it; None for a family that has only an engine of many."""
    backend, name = _find(env_id, options)
    return None if backend.make is None else backend.make(name, options)


def evaluation_options(env_id: str, options: EnvOptions) -> EnvOptions:
    """Return the options with which a run's members are evaluated."""
    backend, _ = _find(env_id, options)
    return backend.for_evaluation(options)


def shown_name(env_id: str, options: EnvOptions) -> str:
    """Return the id of what is played under these options, which for an evaluation may be another level."""
    backend, name = _find(env_id, options)
    shown = backend.shown(name, options)
    return env_id if shown == name else f"{env_id.partition('/')[0]}/{shown}"


def unreproducible(env_id: str, options: EnvOptions) -> str:
    """Return why equal seeds give other steps, if that lies in the engine; "" if they give the same."""
    backend, name = _find(env_id, options)
    return backend.unreproducible(name)


def begins(env_id: str, options: EnvOptions) -> str:
    """Say what happens before the first frames of a run."""
    return _find(env_id, options)[0].begins


def film(
    env_id: str, rows: int, seed: int, options: EnvOptions, shaping: ShapingSource
) -> tuple[Unit, Camera] | None:
    """Make a unit with a camera on its row 0; None for a family without pictures."""
    backend, name = _find(env_id, options)
    make = _filming(env_id, backend)
    filmed = None if make is None else make(name, rows, seed, options, shaping)
    return None if filmed is None else (_seeing(filmed[0], options), filmed[1])


def has_pictures(env_id: str, options: EnvOptions) -> bool:
    """Return whether environments of its family can be filmed at all."""
    return _filming(env_id, _find(env_id, options)[0]) is not None


def _filming(env_id: str, backend: Backend) -> Filming | None:
    """Return what makes a unit with a camera: the family's own, or an extra's for that family."""
    family = family_of(env_id)
    name = "" if family is None else family.name
    modules = (known[name] for known in offered(__package__ or "", "FILMED") if name in known)
    return backend.film or next((import_module(module).film for module in modules), None)


def _seeing(unit: Unit, options: EnvOptions) -> Unit:
    """Let a unit give what the options add to the observations of any environment."""
    added: Unit = (
        _adds_last().LastUnit(unit) if options.last_action_reward and LAST not in unit.spec.obs else unit
    )
    return added


def _adds_last() -> Any:
    """Return the module that adds LAST to the observations. Raises EnvSetupError if there is none."""
    for module in offered(__package__ or "", "LAST_SEEN"):
        return import_module(module)
    raise EnvSetupError("--model.last-action-reward cannot be used: the extra that adds them is not there")


def families() -> tuple[FamilyStatus, ...]:
    """List what is available here, family by family."""
    rows = []
    for family in FAMILIES.values():
        missing = family.missing
        found = () if missing else family.load().names()
        rows.append(
            FamilyStatus(family.name, family.title, family.example, missing, family.install_hint, found)
        )
    return tuple(rows)


def plugins() -> tuple[str, ...]:
    """Return the names of environments that installed packages offer as entry points `pbt_rl.envs`."""
    return tuple(sorted(point.name for point in entry_points(group="pbt_rl.envs")))


def family_of(env_id: str) -> Family | None:
    """Look up the family of an id; None for the user's own environments. Raises EnvSetupError if it has none."""
    key, slash, name = _full(env_id).partition("/")
    if key not in FAMILIES and (":" in key or key in plugins()):
        return None
    if slash and name and key in FAMILIES:
        return FAMILIES[key]
    close = sorted(difflib.get_close_matches(key, FAMILIES), key=lambda family: FAMILIES[family].on_device)
    near = f"did you mean {close[0]}/{name or 'NAME'}?" if close else ""
    others = names()
    meant = "" if others is None or (near and (slash or key in FAMILIES)) else others.meant(env_id, FAMILIES)
    hint = meant or near
    if not hint:
        known = ", ".join(f"{family}/NAME" for family in FAMILIES)
        hint = f"write {known} (family/name), or module:factory for your own."
    raise EnvSetupError(
        f"{env_id!r} names no environment: {hint}{'' if hint[-1] in '?.' else '.'} `pbt-rl envs` lists them all"
    )


def _find(env_id: str, options: EnvOptions) -> tuple[Backend, str]:
    family = family_of(env_id)
    if family is None:
        return load_backend(CUSTOM), env_id
    if family.missing:
        raise EnvSetupError(f"{env_id} needs the package {', '.join(family.missing)}: {family.install_hint}")
    if options.keywords and not family.takes_keywords:
        raise EnvSetupError(
            f"--env-option {next(iter(options.keywords))}=... cannot be used: it is for {_takers()} and "
            f"environments of your own, not for {family.name}/"
        )
    return family.load(), _full(env_id).partition("/")[2]


def _full(env_id: str) -> str:
    """Return `family/name` for an id that may be short, or begin with the package that registers it."""
    full = SHORT_NAMES.get(env_id, env_id)
    head = full.partition("/")[0]
    others = names()
    known = head in FAMILIES or ":" in full or head in plugins() or find_spec("gymnasium") is None
    if known or others is None:
        return full
    found = others.named_by(full)
    return f"gym/{found}" if found else full


def _takers() -> str:
    return ", ".join(f"{family.name}/" for family in FAMILIES.values() if family.takes_keywords)


FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Family(
            "atari",
            "Atari 2600 games",
            "atari/pong",
            ("ale_py",),
            "pip install ale-py",
            ".ale",
            options={"atari": AtariOptions},
        ),
        Family(
            "gym",
            "Gymnasium environments",
            "gym/CartPole-v1",
            ("gymnasium",),
            "pip install gymnasium, with extras such as 'gymnasium[mujoco]' for more",
            ".gym",
            takes_keywords=True,
        ),
        Family(
            "toy", "toys with known answers", "toy/memory", ("gymnasium",), "pip install gymnasium", ".toy"
        ),
        *(family for extra in discover(__package__) for family in extra.FAMILIES),
    )
}
SHORT_NAMES = {short: env for family in FAMILIES.values() for short, env in family.short_names.items()}
"""Environments that can also be named without their family."""
