"""Change one line of the mathematics at a time, and see whether a test fails.

    python scripts/lab/mutants.py                 # all: some minutes on one core
    python scripts/lab/mutants.py --only vtrace   # those whose name contains this
    python scripts/lab/mutants.py --list

Each mutant is made in a copy of the repository, and the tests that it names run there, until the first fails. Survivors
are printed, and the exit code is 1 if there are any. Exit code 2: a mutant's text is not in its file any more, or not
once; give it the new one, in scripts/lab/mutants_list.py.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mutants_list import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 900
ENVIRONMENT = {"PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1", "NUMBA_DISABLE_JIT": "1"}
"""Compiling the kernels costs more than the tests: they run as the Python that they are written in."""


def stale(mutants: tuple[Mutant, ...]) -> list[str]:
    """Return what is wrong with the mutants whose text is not exactly once in its file."""
    problems = []
    for mutant in mutants:
        path = ROOT / mutant.path
        count = path.read_text().count(mutant.text) if path.is_file() else 0
        if count != 1:
            problems.append(f"{mutant.name}: the text is {count} times in {mutant.path}: {mutant.text!r}")
        problems += [
            f"{mutant.name}: there is no {test}" for test in mutant.tests if not (ROOT / test).exists()
        ]
    return problems


def survives(mutant: Mutant, copy: Path) -> bool:
    """Make a mutant in the copy and run its tests; the copy is as before afterwards."""
    path = copy / mutant.path
    original = path.read_text()
    path.write_text(original.replace(mutant.text, mutant.instead))
    try:
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *mutant.tests]
        done = subprocess.run(
            command,
            cwd=copy,
            env=os.environ
            | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False  # what never ends is noticed, too
    finally:
        path.write_text(original)
    if done.returncode not in (0, 1):
        raise RuntimeError(
            f"{mutant.name}: the tests could not run:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
    return done.returncode == 0


def main() -> int:
    """Try the selected mutants."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="part of a mutant's name")
    parser.add_argument("--list", action="store_true", help="print their names")
    arguments = parser.parse_args()
    chosen = tuple(m for m in MUTANTS if arguments.only in m.name)
    if not chosen:
        parser.error(f"--only {arguments.only}: no mutant has that in its name; see --list")
    if problems := stale(chosen):
        print("\n".join(problems), file=sys.stderr)
        return 2
    if arguments.list:
        print("\n".join(f"{m.name}  ({m.path})" for m in chosen))
        return 0
    survivors = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Path(folder) / "copy"
        ignored = shutil.ignore_patterns(".git", ".venv", "runs", "__pycache__", ".mypy_cache", ".ruff_cache")
        shutil.copytree(ROOT, copy, symlinks=True, ignore=ignored)
        for number, mutant in enumerate(chosen, start=1):
            began = time.monotonic()
            alive = survives(mutant, copy)
            survivors += [mutant.name] * alive
            verdict = "SURVIVES" if alive else "dies"
            print(
                f"{number:3d}/{len(chosen)}  {mutant.name}: {verdict} ({time.monotonic() - began:.0f} s)",
                flush=True,
            )
    print(f"\n{len(chosen) - len(survivors)} of {len(chosen)} mutants die")
    for name in survivors:
        print(f"survivor: {name}")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
