"""Import path of child processes: the working directory is its last entry.

The working directory contains the user's own modules. It may be a folder of another user, so a file such as torch.py
in it must not replace an installed module.
"""

from __future__ import annotations

import sys
from pathlib import Path

_PACKAGE_FOLDER = Path(__file__).absolute().parent.parent.parent
"""Folder that contains the imported `pbt_rl`."""


def working_directory_last() -> None:
    """Move the working directory to the end of `sys.path`. `python -m` and `python -c` put it at the start."""
    here = _working_directory()
    if not sys.flags.safe_path and sys.path[:1] in ([""], [here]):
        del sys.path[0]
    if here and here not in sys.path:
        sys.path.append(here)


def interpreter_options() -> list[str]:
    """Return options of the interpreter that exclude the working directory from `sys.path`.

    The options are empty if `pbt_rl` is not installed but imported from the working directory.
    """
    return [] if _working_directory() == str(_PACKAGE_FOLDER) else ["-P"]


def _working_directory() -> str:
    try:
        return str(Path.cwd())
    except FileNotFoundError:  # the folder was removed
        return ""
