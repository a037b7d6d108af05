"""Find what is added to a room: its extras, and objects of the user's own.

An extra is a sub-package with a module `extra.py`, which declares what it adds:

    algos/NAME/extra.py     ALGORITHMS    ways to learn, with their hypers and options
    envs/NAME/extra.py      FAMILIES      families of environments, with their options
    pbt_rl/NAME/extra.py    COMMANDS      commands of `pbt-rl`

The registry of a room reads those names. Nothing else knows an extra: a copy of the code without its folder works.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import Any


def discover(package: str) -> list[ModuleType]:
    """Import the modules `package.FOLDER.extra` that there are, in order of name.

    A folder without that module is not imported. An extra is passed over if one that it stands on is not there: its
    `NEEDS` names the packages of those. Folders are looked for once in a process.
    """
    found = [import_module(f"{package}.{name}.extra") for name in _folders(import_module(package))]
    return [extra for extra in found if all(map(_is_there, getattr(extra, "NEEDS", ())))]


@cache
def _folders(package: ModuleType) -> tuple[str, ...]:
    """Return the names of the extras in a package."""
    return tuple(
        sorted(
            {
                module.name
                for place in package.__path__
                for module in iter_modules([place])
                if module.ispkg
                and module.name.isidentifier()
                and Path(place, module.name, "extra.py").is_file()
            }
        )
    )


@cache
def _is_there(package: str) -> bool:
    return find_spec(package) is not None


def offered(package: str, name: str) -> list[Any]:
    """Return what the extras of a package declare under a name; those that do not are left out."""
    return [getattr(extra, name) for extra in discover(package) if hasattr(extra, name)]


def load_object(path: str, name: str = "name") -> Any:
    """Return what `module:object` names. name: what the object is called in the message.

    Raises ValueError, whose text follows what was to be loaded: "cannot be loaded: ...".
    """
    module, _, attribute = path.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except Exception as error:  # the module is the user's, and may raise anything
        raise ValueError(f"cannot be loaded: {error!r}. Write module:{name}, as Python imports it") from error


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
    """Has `run(arguments) -> exit code`."""
    arguments: str
    """Behind its name, in the list of commands."""
    help: str
