"""Run all checks except the tests: `python scripts/check.py` (or `make check`).

The script prints one line per check, and the reasons of each failure. The exit code is 1 after a failure.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import storm_checks

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_SECONDS = 600.0
MAX_LINES, MAX_TOP_MODULES = 600, 5
"""Maximum number of lines per file, and of modules directly in `pbt_rl`."""
PROSE = {
    r"(?<![Tt]here )\bis no (?!longer)": "is not a ...",
    r"\b[Nn]obody\b": "name the subject: no member, no process",
    r"\bfor ever\b(?!y)": "forever",
    r"\bso many\b": "a number, or `n`",
    r"(?<!turn )\bin turns\b": "round-robin, in turn",
    r"\b(?:module|table|page|file|rule|option|line|name)s? says?\b": "contains, lists, states",
    r"\bis (?:told|asked) ": "receives, is passed",
    r'"""What ': "a noun phrase, or an imperative verb",
    r'"""Whether ': "True if ..., or Check whether ...",
    r'"""Return (?:what|how|which|whether) ': "Return the ...",
    r"\bas such\b": "leave it out",
    r"\bknows (?:nothing|what|of|how)\b": "contains, receives",
    r"\b(?:random play|fresh games?)\b": "random policy, evaluation episodes",
    r"\bof (?:the user's|its|their) own\b": "custom, or your",
}
"""Pattern of words to avoid -> suggestion (CONTRIBUTING.md, Style), in code, documents and messages."""
LOAD_AN_ACTOR = """
import sys
import pbt_rl.actors.actor
from pbt_rl.envs.lookup import FAMILIES
names = [name for family in FAMILIES.values() for name in family.names()]
assert names, "no environment"
heavy = sorted({"torch", "tensorboardX", "rich"} & sys.modules.keys())
sys.exit(f"an actor with its environments imports {', '.join(heavy)}" if heavy else 0)
"""


def main() -> int:
    """Run all checks. Return the exit code."""
    folders = (ROOT / "scripts" / name for name in ("", "examples", "lab"))
    scripts = sorted(str(path.relative_to(ROOT)) for folder in folders for path in folder.glob("*.py"))
    checks: dict[str, Callable[[], list[str]]] = {
        "ruff check": lambda: tool("ruff", "check", "."),
        "ruff format": lambda: tool("ruff", "format", "--check", "."),
        "mypy --strict pbt_rl": lambda: tool("mypy", "-p", "pbt_rl"),
        "mypy --strict scripts": lambda: tool("mypy", *scripts),
        "layers (import-linter)": layers,
        "sizes": lambda: sizes(ROOT),
        "prose": lambda: prose(ROOT),
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
    """Run a command in the repository. `stdout` of the result includes stderr. Raises TimeoutExpired if it hangs."""
    return subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=TIMEOUT_SECONDS,
    )


def tool(module: str, *arguments: str) -> list[str]:
    """Run a Python tool. Return its output if it fails. Otherwise return []."""
    result = run([sys.executable, "-m", module, *arguments])
    return result.stdout.splitlines() or [f"exit code {result.returncode}"] if result.returncode else []


def layers() -> list[str]:
    """Check the import contracts of pyproject.toml. Return the output if a contract is broken."""
    result = run([str(Path(sys.executable).with_name("lint-imports")), "--no-cache", "--no-logo"])
    return result.stdout.splitlines() if result.returncode else []


def sizes(root: Path) -> list[str]:
    """Return a line for each file that is too long, and a line if `pbt_rl` directly contains too many modules."""
    files = [path for folder in ("algos", "envs", "pbt_rl") for path in (root / folder).rglob("*.py")]
    lines = {path.relative_to(root): len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    reasons = [f"{path} has {n} lines: split it by topic" for path, n in lines.items() if n > MAX_LINES]
    top = [path for path in lines if path.parent == Path("pbt_rl")]
    return reasons + [f"pbt_rl/ has {len(top)} modules: move them into packages"] * (
        len(top) > MAX_TOP_MODULES
    )


def prose(root: Path) -> list[str]:
    """Return the lines of code and documents that match a pattern of PROSE."""
    folders = ("algos", "envs", "pbt_rl", "docs")
    files = [
        p for folder in folders for kind in ("*.py", "*.md", "*.js") for p in (root / folder).rglob(kind)
    ]
    reasons = []
    for path in sorted({p.resolve() for p in [*files, root / "README.md", root / "CONTRIBUTING.md"]}):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            reasons += [
                f"{path.relative_to(root)}:{number}: write {instead} instead of {found[0].strip()!r}"
                for pattern, instead in PROSE.items()
                if (found := re.search(pattern, line))
            ]
    return reasons


def actor_imports() -> list[str]:
    """Import the actor module and all environment families in a new interpreter.

    Return an error if this also imports torch, tensorboardX or rich.
    """
    result = run([sys.executable, "-c", LOAD_AN_ACTOR])
    return result.stdout.splitlines() or ["it ended without any output"] if result.returncode else []


def leftovers() -> list[str]:
    """Train briefly with processes. Return the processes and the shared memory that remain after the run."""
    mark = uuid.uuid4().hex
    before = storm_checks.shared_memory()
    with tempfile.TemporaryDirectory() as folder:
        job = ["--env", "toy/identity", "--num-policies", "2", "--train-for-frames", "2000"]
        command = [sys.executable, "-m", "pbt_rl", "train", *job, "--name", "check", "--out", folder]
        result = run(command, **{storm_checks.MARK: mark})
    still = storm_checks.processes(mark)
    reasons = [f"process {pid} still runs: {' '.join(line)}" for pid, line in still.items()]
    left = storm_checks.unmapped(storm_checks.shared_memory() - before)
    reasons += [f"{storm_checks.SHARED_MEMORY / name} is left" for name in left]
    if result.returncode:
        reasons += [f"the run ended with exit code {result.returncode}:", *result.stdout.splitlines()]
    return reasons


if __name__ == "__main__":
    sys.exit(main())
