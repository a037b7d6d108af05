"""Versions of what affects a result, for the journal's first event."""

from __future__ import annotations

import platform
import subprocess
from importlib import metadata
from pathlib import Path

import pbt_rl

PACKAGES = ("torch", "numpy", "numba", "gymnasium", "ale-py", "safetensors")
"""Packages whose versions affect a result."""


def versions() -> dict[str, str]:
    """Return the versions of this package, of Python and of the installed packages that affect a result."""
    found = {"pbt_rl": pbt_rl.__version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def git_version() -> str | None:
    """Return the commit of this source tree, with "-dirty" if files differ from it; None outside of one."""
    root = Path(pbt_rl.__file__).resolve().parent.parent
    if not (root / ".git").exists():  # an installed package must not report a repository around it
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()
