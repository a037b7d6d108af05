"""Where the user's own modules are found: in the working directory, behind everything that is installed.

A file that lies there under the name of an installed module, such as torch.py, must not take its place: the working
directory may be a folder that somebody else has filled.
"""

from __future__ import annotations

import sys
from pathlib import Path

_PACKAGE_FOLDER = Path(__file__).absolute().parent.parent.parent
"""Folder that `pbt_rl` was imported from (this file is pbt_rl/actors/paths.py)."""


def working_directory_last() -> None:
    """Let Python find modules in the working directory after all others. `python -m` and `python -c` put it first."""
    here = _working_directory()
    if not sys.flags.safe_path and sys.path[:1] in ([""], [here]):
        del sys.path[0]
    if here and here not in sys.path:
        sys.path.append(here)


def interpreter_options() -> list[str]:
    """Return options for a child: it does not search the working directory before it calls `working_directory_last`.

    Source code that is used from its own folder, uninstalled, can only be found there.
    """
    return [] if _working_directory() == str(_PACKAGE_FOLDER) else ["-P"]


def _working_directory() -> str:
    try:
        return str(Path.cwd())
    except FileNotFoundError:  # it was removed
        return ""
