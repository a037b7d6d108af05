"""Import path of child processes. The last entry of the path is the working directory.

The working directory contains the user's own modules. It is last, because other users may be able to write to this
directory: a file such as torch.py there must not replace an installed module.
"""

from __future__ import annotations

import sys
from pathlib import Path

_PACKAGE_FOLDER = Path(__file__).absolute().parent.parent.parent
"""Folder that contains the imported `pbt_rl`."""


def working_directory_last() -> None:
    """Move the working directory from the start of `sys.path` to the end. If it is missing, append it."""
    here = _working_directory()
    if not sys.flags.safe_path and sys.path[:1] in ([""], [here]):
        del sys.path[0]
    if here and here not in sys.path:
        sys.path.append(here)


def interpreter_options() -> list[str]:
    """Return options of the interpreter that exclude the working directory from `sys.path`.

    Return no options if `pbt_rl` itself is imported from the working directory.
    """
    return [] if _working_directory() == str(_PACKAGE_FOLDER) else ["-P"]


def _working_directory() -> str:
    try:
        return str(Path.cwd())
    except FileNotFoundError:  # the folder was removed
        return ""
