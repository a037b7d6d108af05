"""Checks everything besides the tests: `python scripts/check.py` (or `make check`).

Prints one line per check, and the reasons of each that fails; then the exit code is 1.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import psutil
import rooms

ROOT = Path(__file__).resolve().parent.parent
PATIENCE_SECONDS = 600.0
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - this very folder
LOAD_AN_ACTOR = """
import sys
import pbt_rl.actors.actor
from pbt_rl.envs.registry import FAMILIES
names = [name for family in FAMILIES.values() for name in family.names()]
assert names, "no environment"
heavy = sorted({"torch", "tensorboardX", "rich", "tyro"} & sys.modules.keys())
sys.exit(f"an actor with its environments imports {', '.join(heavy)}" if heavy else 0)
"""


def main() -> int:
    """Run every check; return the exit code."""
    folders = (ROOT / "scripts" / name for name in ("", "examples", "lab"))
    scripts = sorted(str(path.relative_to(ROOT)) for folder in folders for path in folder.glob("*.py"))
    checks: dict[str, Callable[[], list[str]]] = {
        "ruff check": lambda: tool("ruff", "check", "."),
        "ruff format": lambda: tool("ruff", "format", "--check", "."),
        "mypy --strict pbt_rl": lambda: tool("mypy", "-p", "pbt_rl"),
        "mypy --strict scripts": lambda: tool("mypy", *scripts),
        "layers (import-linter)": layers,
        "pure rooms, sizes": lambda: rooms.complaints(ROOT),
        "actors import no torch": actor_imports,
        "a run leaves nothing behind": leftovers,
    }
    failed = 0
    for name, check in checks.items():
        began = time.monotonic()
        reasons = check()
        failed += bool(reasons)
        print(f"{'FAILED' if reasons else 'ok':6}  {name} ({time.monotonic() - began:.0f} s)", flush=True)
        for reason in reasons:
            print(f"        {reason}", flush=True)
    print(f"{len(checks) - failed} of {len(checks)} checks are green")
    return 1 if failed else 0


def run(command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command in the repository, its output collected in `stdout`. Raises TimeoutExpired if it hangs."""
    return subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )


def tool(module: str, *arguments: str) -> list[str]:
    """Run a Python tool; return its output if it fails."""
    result = run([sys.executable, "-m", module, *arguments])
    return result.stdout.splitlines() or [f"exit code {result.returncode}"] if result.returncode else []


def layers() -> list[str]:
    """Check the contracts of pyproject.toml; return the output if one is broken."""
    result = run([str(Path(sys.executable).with_name("lint-imports")), "--no-cache", "--no-logo"])
    return result.stdout.splitlines() if result.returncode else []


# -- imports ------------------------------------------------------------------------------------------------


def actor_imports() -> list[str]:
    """Load an actor and every family of environments in a fresh interpreter; return which heavy packages came along."""
    result = run([sys.executable, "-c", LOAD_AN_ACTOR])
    return result.stdout.splitlines() or ["it ended without any output"] if result.returncode else []


# -- a run --------------------------------------------------------------------------------------------------


def leftovers() -> list[str]:
    """Train for a moment with real processes; return what is left that was not there before."""
    mark = uuid.uuid4().hex
    before = shared_memory()
    with tempfile.TemporaryDirectory() as folder:
        job = ["--env", "toy/identity", "--num-policies", "2", "--train-for-frames", "2000"]
        command = [sys.executable, "-m", "pbt_rl", "train", *job, "--name", "check", "--out", folder]
        result = run(command, PBT_RL_CHECK=mark)
    reasons = [f"process {p.pid} still runs: {' '.join(p.cmdline())}" for p in marked_processes(mark)]
    new = {name: inode for name, inode in shared_memory().items() if name not in before}
    others = mapped_inodes()
    reasons += [f"{SHARED_MEMORY / name} is left" for name, inode in new.items() if inode not in others]
    if result.returncode:
        reasons += [f"the run ended with exit code {result.returncode}:", *result.stdout.splitlines()]
    return reasons


def marked_processes(mark: str) -> list[psutil.Process]:
    """Return the processes that inherited the mark in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("PBT_RL_CHECK") == mark:
                found.append(process)
        except psutil.Error:
            continue  # gone meanwhile, or another user's
    return found


def shared_memory() -> dict[str, int]:
    """Return name -> inode of everything in shared memory."""
    return {entry.name: entry.inode() for entry in os.scandir(SHARED_MEMORY)}


def mapped_inodes() -> set[int]:
    """Return the shared memory that a living process uses; a semaphore's mapping has another name than its file."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/maps"):
        try:
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue  # gone meanwhile, or another user's
        found |= {int(line.split()[4]) for line in lines if str(SHARED_MEMORY) in line}
    return found


if __name__ == "__main__":
    sys.exit(main())
