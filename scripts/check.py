"""Everything that is checked besides the tests: `python scripts/check.py` (or `make check`).

Prints a line a check; where one fails, its reasons, and the exit code is 1.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("algos", "envs", "pbt_rl")
LEAVES = ("algos", "envs")
WITHOUT_TORCH = ("envs", "pbt_rl/pbt")
PATIENCE_SECONDS = 600.0
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - this very folder
LOAD_AN_ACTOR = """
import sys
import pbt_rl.wire.actor
from pbt_rl.envs.registry import families
names = [family.name for family in families()]
assert names, "no family"
heavy = sorted({"torch", "tensorboardX", "rich", "tyro"} & sys.modules.keys())
sys.exit(f"an actor with its environments imports {', '.join(heavy)}" if heavy else 0)
"""


def main() -> int:
    """Run every check; returns the exit code."""
    folders = (ROOT / "scripts", ROOT / "scripts" / "examples")
    scripts = sorted(str(path.relative_to(ROOT)) for folder in folders for path in folder.glob("*.py"))
    checks: dict[str, Callable[[], list[str]]] = {
        "ruff check": lambda: tool("ruff", "check", "."),
        "ruff format": lambda: tool("ruff", "format", "--check", "."),
        "mypy --strict pbt_rl": lambda: tool("mypy", "-p", "pbt_rl"),
        "mypy --strict scripts": lambda: tool("mypy", *scripts),
        "imports go one way": import_direction,
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
    """What a tool says, if it fails."""
    result = run([sys.executable, "-m", module, *arguments])
    return result.stdout.splitlines() or [f"exit code {result.returncode}"] if result.returncode else []


# -- imports ------------------------------------------------------------------------------------------------


def import_direction() -> list[str]:
    """Who imports what it must not: scripts -> pbt_rl -> {algos, envs}, and the two leaves import neither."""
    return [reason for room in ROOMS for path in python_files(room) for reason in wrong_imports(path)]


def python_files(room: str) -> list[Path]:
    """Files of a room; the links in pbt_rl lead to rooms of their own."""
    links = [link for link in (ROOT / room).iterdir() if link.is_symlink()]
    files = (ROOT / room).rglob("*.py")
    return sorted(path for path in files if not any(path.is_relative_to(link) for link in links))


def wrong_imports(path: Path) -> list[str]:
    """Reasons why a file's imports are wrong."""
    inside = path.relative_to(ROOT)
    leaf = inside.parts[0] in LEAVES
    no_torch = any(inside.is_relative_to(place) for place in WITHOUT_TORCH)
    reasons = []
    for line, module, level in imports(ast.parse(path.read_text(encoding="utf-8"))):
        top = module.split(".", maxsplit=1)[0] if level == 0 else ""
        where = f"{inside}:{line} imports {'.' * level}{module}"
        if top in ("scripts", "tests", "algos", "envs"):
            reasons.append(f"{where}: write pbt_rl.envs and pbt_rl.algos; import no scripts and no tests")
        if leaf and (top == "pbt_rl" or level >= len(inside.parts)):
            reasons.append(f"{where}: {inside.parts[0]} is a leaf and imports only from itself")
        if no_torch and top == "torch":
            reasons.append(f"{where}: actors and controllers live without torch")
    return reasons


def imports(tree: ast.AST) -> Iterator[tuple[int, str, int]]:
    """(line, module, level) of every import; level counts the leading dots."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield node.lineno, name.name, 0
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, node.module or "", node.level


def actor_imports() -> list[str]:
    """Load an actor and every family of environments in a fresh interpreter, and look at what came along."""
    result = run([sys.executable, "-c", LOAD_AN_ACTOR])
    return result.stdout.splitlines() or ["it ended without a word"] if result.returncode else []


# -- a run --------------------------------------------------------------------------------------------------


def leftovers() -> list[str]:
    """Train for a moment with real processes; what is there afterwards that was not there before."""
    mark = uuid.uuid4().hex
    before = shared_memory()
    with tempfile.TemporaryDirectory() as folder:
        job = ["--env", "toy/identity", "--num-policies", "2", "--train-for-frames", "2000"]
        command = [sys.executable, "-m", "pbt_rl.cli", "train", *job, "--name", "check", "--out", folder]
        result = run(command, PBT_RL_CHECK=mark)
    reasons = [f"process {p.pid} still runs: {' '.join(p.cmdline())}" for p in marked_processes(mark)]
    new = {name: inode for name, inode in shared_memory().items() if name not in before}
    others = mapped_inodes()
    reasons += [f"{SHARED_MEMORY / name} is left" for name, inode in new.items() if inode not in others]
    if result.returncode:
        reasons += [f"the run ended with exit code {result.returncode}:", *result.stdout.splitlines()]
    return reasons


def marked_processes(mark: str) -> list[psutil.Process]:
    """Processes that inherited the mark in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("PBT_RL_CHECK") == mark:
                found.append(process)
        except psutil.Error:
            continue  # gone meanwhile, or another user's
    return found


def shared_memory() -> dict[str, int]:
    """Name -> inode of what lies in shared memory."""
    return {entry.name: entry.inode() for entry in os.scandir(SHARED_MEMORY)}


def mapped_inodes() -> set[int]:
    """Shared memory that a living process uses; a semaphore's mapping has another name than its file."""
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
