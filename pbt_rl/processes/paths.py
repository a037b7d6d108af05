"""Import path of child processes: the working directory comes last.

The user's own modules are found there. A file such as torch.py must not replace an installed module, because the
working directory may be a folder of another user.
"""

from __future__ import annotations

import sys
from pathlib import Path

_PACKAGE_FOLDER = Path(__file__).absolute().parent.parent.parent
"""Folder that contains the imported `pbt_rl`."""


def working_directory_last() -> None:
    """Move the working directory to the end of `sys.path`. `python -m` and `python -c` put it first."""
    here = _working_directory()
    if not sys.flags.safe_path and sys.path[:1] in ([""], [here]):
        del sys.path[0]
    if here and here not in sys.path:
        sys.path.append(here)


def interpreter_options() -> list[str]:
    """Return interpreter options that exclude the working directory at start.

    They are empty if `pbt_rl` itself is imported from there without being installed.
    """
    return [] if _working_directory() == str(_PACKAGE_FOLDER) else ["-P"]


def _working_directory() -> str:
    try:
        return str(Path.cwd())
    except FileNotFoundError:  # it was removed
        return ""
