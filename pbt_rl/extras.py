"""Find the extras of a room: sub-packages with a module `extra.py`, which declares what they add to it.

    algos/NAME/extra.py     ALGORITHMS    ways to learn, with their hypers and options
    envs/NAME/extra.py      FAMILIES      families of environments, with their options
    pbt_rl/NAME/extra.py    COMMANDS      commands of `pbt-rl`

The registry of a room reads those names. Nothing else knows an extra: a copy of the code without its folder works.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType


def discover(package: str) -> list[ModuleType]:
    """Import the modules `package.FOLDER.extra` that there are, in order of name.

    A folder without that module is not imported.
    """
    folders = {
        name
        for place in import_module(package).__path__
        for name in _folders(Path(place))
        if name.isidentifier()
    }
    return [import_module(f"{package}.{name}.extra") for name in sorted(folders)]


def _folders(place: Path) -> list[str]:
    return [
        module.name
        for module in iter_modules([str(place)])
        if module.ispkg and (place / module.name / "extra.py").is_file()
    ]
