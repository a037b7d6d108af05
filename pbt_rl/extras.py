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
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import Any


def discover(package: str) -> list[ModuleType]:
    """Import the modules `package.FOLDER.extra` that there are, in order of name.

    A folder without that module is not imported. An extra is passed over if one that it stands on is not there: its
    `NEEDS` names the packages of those.
    """
    folders = {
        name
        for place in import_module(package).__path__
        for name in _folders(Path(place))
        if name.isidentifier()
    }
    found = [import_module(f"{package}.{name}.extra") for name in sorted(folders)]
    return [extra for extra in found if all(find_spec(needed) for needed in getattr(extra, "NEEDS", ()))]


def _folders(place: Path) -> list[str]:
    return [
        module.name
        for module in iter_modules([str(place)])
        if module.ispkg and (place / module.name / "extra.py").is_file()
    ]


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
