"""Rules for the code that no linter has, checked in its syntax trees: purity, tests for decisions, sizes of files.

Who may import whom stands in pyproject.toml (`import-linter`).

Each rule is a function from the root of a source tree to its complaints.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PRODUCT = ("algos", "envs", "pbt_rl")
MAX_LINES = 600
MAX_TOP_MODULES = 6
PACKAGE = "pbt_rl"

PURE = frozenset({"controllers"})
IMPURE_CALLS = frozenset({"open", "read_text", "read_bytes", "write_text", "write_bytes", "mkdir", "unlink"})
DECISIONS = frozenset({"Continue", "Replace", "Mutate", "Restart", "Stop", "Evaluate"})
DECISION_MODULES = frozenset(
    {
        "pbt_rl.controllers.decisions",
        "pbt_rl.controllers.changes",
        "pbt_rl.run.control",  # evaluates controls when a controller evaluates its members
        "pbt_rl.controllers.lineage",  # counts replacements
    }
)


@dataclass(frozen=True)
class Module:
    """One source file. name: as it is imported."""

    name: str
    path: Path
    """From the root."""
    tree: ast.Module
    lines: int

    @property
    def room(self) -> str:
        """First folder or module below `pbt_rl`."""
        return [*self.name.split("."), ""][1]


def complaints(root: Path) -> list[str]:
    """Apply all rules."""
    modules = read_modules(root)
    rules = (impure_calls, decision_tests, long_files, crowded_top)
    return [reason for rule in rules for reason in rule(modules)]


def read_modules(root: Path) -> dict[str, Module]:
    """Parse every file of the product; name -> module. Links inside pbt_rl lead to rooms that stand beside it."""
    found = {}
    for folder in PRODUCT:
        links = [link for link in (root / folder).iterdir() if link.is_symlink()]
        for path in sorted((root / folder).rglob("*.py")):
            if any(path.is_relative_to(link) for link in links):
                continue
            inside = path.relative_to(root)
            parts = inside.with_suffix("").parts if path.stem != "__init__" else inside.parent.parts
            name = ".".join(parts if folder == PACKAGE else (PACKAGE, *parts))
            text = path.read_text(encoding="utf-8")
            found[name] = Module(name, inside, ast.parse(text), len(text.splitlines()))
    return found


def impure_calls(modules: Mapping[str, Module]) -> list[str]:
    """Calls in pure rooms that open, read or write files."""
    reasons = []
    for module in modules.values():
        for node in ast.walk(module.tree) if module.room in PURE else ():
            if isinstance(node, ast.Call):
                called = node.func
                name = called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")
                if name in IMPURE_CALLS:
                    reasons.append(f"{module.path}:{node.lineno} calls {name}: {module.room} uses no files")
    return reasons


def decision_tests(modules: Mapping[str, Module]) -> list[str]:
    """Tests for the class of a decision outside of the module that gives decisions their meaning."""
    reasons = []
    for module in modules.values():
        if module.name in DECISION_MODULES:
            continue
        for node in ast.walk(module.tree):
            tested: set[str] = set()
            called = node.func if isinstance(node, ast.Call) else None
            if isinstance(node, ast.Call) and isinstance(called, ast.Name) and called.id == "isinstance":
                tested = {part.id for part in ast.walk(node.args[1]) if isinstance(part, ast.Name)}
            elif isinstance(node, ast.MatchClass) and isinstance(node.cls, ast.Name):
                tested = {node.cls.id}
            if tested & DECISIONS and tested & DECISIONS & _decision_names(module):
                line = getattr(node, "lineno", 0)
                reasons.append(
                    f"{module.path}:{line} tests for a decision: use pbt_rl.controllers.changes instead"
                )
    return reasons


def _decision_names(module: Module) -> set[str]:
    """Names in a module that come from pbt: other classes may have the names of decisions."""
    return {
        name.name
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pbt_rl.controllers")
        for name in node.names
    }


def long_files(modules: Mapping[str, Module]) -> list[str]:
    """Files that one sitting does not read."""
    return [
        f"{module.path} has {module.lines} lines, more than {MAX_LINES}: split it by idea"
        for module in modules.values()
        if module.lines > MAX_LINES
    ]


def crowded_top(modules: Mapping[str, Module]) -> list[str]:
    """Too many modules directly in the package."""
    top = [module for module in modules.values() if module.path.parent == Path(PACKAGE)]
    if len(top) <= MAX_TOP_MODULES:
        return []
    return [f"{PACKAGE}/ holds {len(top)} modules, more than {MAX_TOP_MODULES}: give each idea a room"]
