"""Make a bundle for a GPU machine without a package registry: the working tree, and its dependencies except torch.

    python scripts/gpu_bundle.py [--python 3.12] [--into dist]     # makes dist/gpu-bundle.tar.xz

On the GPU machine: tar xf gpu-bundle.tar.xz (or python3 -m tarfile -e gpu-bundle.tar.xz). Nothing has to be
installed. gpu-bundle/check.sh runs gpu_check.py, and gpu-bundle/run.sh runs pbt-rl, with the given options. The bundle
does not include torch, numpy, or the dependencies of torch and gymnax.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parent.parent
THERE = ("torch", "numpy")
MORE = ("gymnax==1.0.1", "six==1.17.0")
"""Packages that are included without their dependencies. (The GPU machine must have a matching JAX.)"""
MOST_MB = 56
"""Maximum size of the bundle. With a checkout (8 MB), the sum is below 64 MiB, the transfer limit of some machines."""
PLATFORMS = [f"manylinux{glibc}_x86_64" for glibc in ("_2_28", "_2_27", "_2_17", "2014")]
SCRIPT = """#!/bin/sh
# {about}
here="$(cd "$(dirname "$0")" && pwd)"
export PYTHONPATH="$here/tree:$here/packages"
# Compile once with all cores. Otherwise the first processes would all compile the same files.
[ -e "$here/compiled" ] || { python3 -m compileall -q -j 0 "$here" >/dev/null 2>&1; touch "$here/compiled"; }
exec python3 {what} "$@"
"""
SCRIPTS = {
    "check.sh": ("Options are those of gpu_check.py, such as --quick.", '"$here/tree/scripts/gpu_check.py"'),
    "run.sh": ("For example: run.sh train --env atari/pong --num-policies 8", "-m pbt_rl"),
}


def needed(names: list[str], version: str, besides: frozenset[str] = frozenset()) -> dict[str, str]:
    """Return name -> installed version of packages and their dependencies. besides: packages to skip."""
    found: dict[str, str] = {}
    waiting = list(names)
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in found or name in besides:
            continue
        package = metadata.distribution(name)
        found[name] = package.version
        for line in package.requires or ():
            wanted, _, condition = line.partition(";")
            if _holds(condition, version):
                waiting.append(re.split(r"[\s\[<>=!~(]", wanted.strip(), maxsplit=1)[0])
    return found


def _holds(condition: str, version: str) -> bool:
    """Return True if the condition of a requirement (a marker of PEP 508) holds on Linux for this Python version."""
    if not condition.strip():
        return True
    from packaging.markers import Marker  # noqa: PLC0415 - not a dependency of pbt_rl

    return bool(Marker(condition.strip()).evaluate({"python_version": version, "extra": ""}))


def _without_tests(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Return an entry of an archive, or None for tests of packages (17 MB for numba) and compiled files."""
    parts = Path(entry.name).parts[1:]
    dropped = "__pycache__" in parts or (parts[:1] == ("packages",) and "tests" in parts)
    return None if dropped else entry


def copy_tree(root: Path, target: Path) -> None:
    """Copy the committed and uncommitted files of a checkout. Files that git ignores are left out."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
    for name in listed.split("\0"):
        if name and os.path.lexists(root / name):  # not deleted
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, target / name, follow_symlinks=False)


def main() -> int:
    """Make the bundle. Return the exit code: 1 if the bundle is too large."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--python", default="3.12")
    parser.add_argument("--into", type=Path, default=ROOT / "dist")
    arguments = parser.parse_args()
    there = frozenset(needed([*THERE], arguments.python))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    own = [re.split("[^A-Za-z0-9_.-]", line)[0] for line in project["dependencies"]]
    packages = needed(own, arguments.python, there)
    arguments.into.mkdir(exist_ok=True)
    bundle = arguments.into / "gpu-bundle.tar.xz"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "gpu-bundle"
        (folder / "tree").mkdir(parents=True)
        platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:"]
        command += ["--python-version", arguments.python, *platforms, "--target", str(folder / "packages")]
        command += [*(f"{name}=={version}" for name, version in packages.items()), *MORE]
        subprocess.run(command, check=True)
        copy_tree(ROOT, folder / "tree")
        for script, (about, what) in SCRIPTS.items():
            (folder / script).write_text(SCRIPT.replace("{about}", about).replace("{what}", what))
            (folder / script).chmod(0o755)
        with tarfile.open(bundle, "w:xz", preset=6) as archive:
            archive.add(folder, folder.name, filter=_without_tests)
    size = bundle.stat().st_size / 1e6
    print(f"{bundle}: {len(packages)} packages, {size:.0f} MB")
    return 0 if size < MOST_MB else 1


if __name__ == "__main__":
    sys.exit(main())
