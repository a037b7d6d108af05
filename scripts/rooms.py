"""Rules for the rooms of the code, checked in its syntax trees: who may import whom, what is pure, how large files are.

Each rule is a function from the root of a source tree to its complaints. Imports inside functions and those under
TYPE_CHECKING count like all others: a circle that is only typed is still a circle for the reader.

A folder with an `extra.py` is an extra (`pbt_rl/extras.py`). No other file imports it, but for extras whose `NEEDS`
name it. An extra in `pbt_rl/` may import all rooms; one in a room keeps the rules of that room. `WITHOUT_TORCH = True`
in its `extra.py` keeps torch out of it.
"""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PRODUCT = ("algos", "envs", "pbt_rl")
MAX_LINES = 600
MAX_TOP_MODULES = 8
PACKAGE = "pbt_rl"

GROUND = frozenset({"extras"})
"""Rooms of the standard library alone, which every room may import."""
MAY_IMPORT: Mapping[str, frozenset[str]] = {
    "extras": frozenset(),
    "procs": frozenset(),
    "algos": frozenset(),
    "envs": frozenset({"procs"}),
    # A room's options (`ROOM/options.py`, and the helpers in `options.py`) form a room of their own: config composes
    # them, and stands below most of the rooms that they belong to.
    "errors": frozenset({"envs"}),
    "options": frozenset({"errors"}),
    "recipes": frozenset({"algos", "envs", "errors"}),
    "pbt": frozenset({"errors", "options"}),
    "config": frozenset({"algos", "envs", "errors", "options", "pbt"}),
    "plan": frozenset({"algos", "config", "errors", "options"}),
    "wire": frozenset({"envs", "errors", "pbt", "procs"}),
    "record": frozenset({"config", "errors", "options", "pbt", "wire"}),
    "display": frozenset({"config", "errors", "pbt", "procs", "record", "wire"}),
    "population": frozenset({"display", "errors", "options", "pbt", "wire"}),
    "learner": frozenset({"algos", "config", "envs", "errors", "pbt", "plan", "procs", "record", "wire"}),
    "play": frozenset(
        {"algos", "config", "envs", "errors", "learner", "pbt", "plan", "procs", "record", "wire"}
    ),
    "run": frozenset(
        {
            "config",
            "display",
            "envs",
            "errors",
            "learner",
            "options",
            "pbt",
            "plan",
            "play",
            "population",
            "procs",
            "record",
            "wire",
        }
    ),
    "cli": frozenset(
        {
            "config",
            "display",
            "envs",
            "errors",
            "options",
            "pbt",
            "plan",
            "play",
            "procs",
            "recipes",
            "record",
            "run",
        }
    ),
    "__main__": frozenset({"cli"}),
    # `pbt_rl/__init__.py`, the names for users.
    "api": frozenset({"config", "envs", "errors"}),
}
WITHOUT_TORCH = frozenset({"envs", "errors", "extras", "options", "pbt", "procs", "wire", "population"})
ABOVE_EXTRAS = frozenset({"__main__", "api"})
"""Rooms that no extra may import."""
PURE = frozenset({"pbt"})
IMPURE_MODULES = frozenset(
    {
        "ctypes",
        "mmap",
        "multiprocessing",
        "os",
        "shutil",
        "signal",
        "socket",
        "subprocess",
        "tempfile",
        "threading",
    }
)
IMPURE_CALLS = frozenset({"open", "read_text", "read_bytes", "write_text", "write_bytes", "mkdir", "unlink"})
DECISIONS = frozenset({"Continue", "Replace", "Mutate", "Restart", "Stop", "Evaluate"})
DECISION_MODULES = frozenset(
    {
        "pbt_rl.pbt.decisions",
        "pbt_rl.pbt.changes",
        "pbt_rl.run.control",  # evaluates controls when a controller evaluates its members
        "pbt_rl.pbt.history.noise",  # counts replacements
        "pbt_rl.audit.what_if",  # names decisions that differ
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
        """Name in MAY_IMPORT."""
        return room_of(self.name)


@dataclass(frozen=True)
class Import:
    """One imported module, with the place of the import."""

    line: int
    name: str


def complaints(root: Path) -> list[str]:
    """Apply all rules."""
    modules = read_modules(root)
    extras = find_extras(modules)
    return [
        *arrows(modules, extras),
        *named_extras(modules, extras),
        *circles(modules),
        *forbidden_modules(modules, extras),
        *impure_calls(modules),
        *decision_tests(modules),
        *long_files(modules),
        *crowded_top(modules),
    ]


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


def room_of(module: str) -> str:
    """Return the room of a module of the product."""
    parts = module.split(".")
    if len(parts) == 1:
        return "api"
    in_leaf = parts[1] in ("algos", "envs")
    return "options" if parts[-1] == "options" and parts[1] != "pbt" and not in_leaf else parts[1]


def imports(module: Module, modules: Mapping[str, Module]) -> Iterator[Import]:
    """Yield every import; `from package import name` is an import of the module `package.name` if there is one."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from (Import(node.lineno, name.name) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = _absolute(module, node)
            inner = [f"{source}.{name.name}" for name in node.names]
            imported = {name if name in modules else source for name in inner}
            yield from (Import(node.lineno, name) for name in sorted(imported))


def _absolute(module: Module, node: ast.ImportFrom) -> str:
    if node.level == 0:
        return node.module or ""
    package = module.name.split(".") if module.path.stem == "__init__" else module.name.split(".")[:-1]
    base = package[: len(package) - node.level + 1]
    return ".".join([*base, *([node.module] if node.module else [])])


@dataclass(frozen=True)
class Extra:
    """A folder with an `extra.py`. needs: other extras that it imports, by their packages."""

    package: str
    needs: tuple[str, ...] = ()
    without_torch: bool = False
    with_torch: bool = False

    @property
    def in_a_room(self) -> bool:
        """It lies in a room, whose rules it keeps."""
        return self.package.count(".") > 1


Extras = Mapping[str, Extra]
"""By package, such as `pbt_rl.report` or `pbt_rl.envs.dmlab`."""


def find_extras(modules: Mapping[str, Module]) -> dict[str, Extra]:
    """Return the extras of a tree, with what their `extra.py` say of them."""
    found = {}
    for name, module in modules.items():
        package, _, last = name.rpartition(".")
        if last == "extra":
            said = dict(_constants(module))
            found[package] = Extra(
                package,
                said.get("NEEDS", ()),
                said.get("WITHOUT_TORCH", False),
                said.get("WITH_TORCH", False),
            )
    return found


def _constants(module: Module) -> Iterator[tuple[str, Any]]:
    for node in module.tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            with contextlib.suppress(ValueError):
                yield node.targets[0].id, ast.literal_eval(node.value)


def extra_of(module: str, extras: Extras) -> Extra | None:
    """Return the extra that a module belongs to."""
    return next(
        (e for package, e in extras.items() if module == package or module.startswith(f"{package}.")), None
    )


def arrows(modules: Mapping[str, Module], extras: Extras) -> list[str]:
    """Imports between rooms that MAY_IMPORT does not allow, and imports of extras."""
    reasons = []
    for module in modules.values():
        own = extra_of(module.name, extras)
        free = own is not None and not own.in_a_room
        allowed = frozenset(MAY_IMPORT.keys() - ABOVE_EXTRAS) if free else MAY_IMPORT.get(module.room)
        if allowed is None:
            reasons.append(
                f"{module.path}: {module.room} is no room of scripts/rooms.py: give it a line there"
            )
            continue
        for one in imports(module, modules):
            top, where = one.name.split(".")[0], f"{module.path}:{one.line} imports {one.name}"
            if top in ("algos", "envs", "scripts", "tests"):
                reasons.append(f"{where}: write pbt_rl.envs and pbt_rl.algos; import no scripts and no tests")
            if top != PACKAGE or one.name == PACKAGE:  # the package alone: its version and its place
                continue
            other = extra_of(one.name, extras)
            if other is not None and other != own:
                if own is None or other.package not in own.needs:
                    reasons.append(f"{where}: {other.package} is an extra, which only itself may import")
                continue
            room = room_of(one.name)
            if other is None and room not in {module.room, *GROUND, *allowed}:
                reasons.append(f"{where}: {module.room} may not import {room}")
    return reasons


def named_extras(modules: Mapping[str, Module], extras: Extras) -> list[str]:
    """Strings of the core that hold the dotted name of an extra, docstrings among them."""
    if not extras:
        return []
    name = re.compile(rf"\b({'|'.join(re.escape(package) for package in extras)})\b")
    return [
        f"{module.path}:{node.lineno} names {found[1]}: let its extra.py declare what is needed"
        for module in modules.values()
        if extra_of(module.name, extras) is None
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and PACKAGE in node.value
        for found in name.finditer(node.value)
    ]


def circles(modules: Mapping[str, Module]) -> list[str]:
    """Modules that import each other in a circle, and rooms whose lines in MAY_IMPORT do."""
    graph = {
        name: {one.name for one in imports(module, modules)} & modules.keys() - {name, PACKAGE}
        for name, module in modules.items()
    }
    found = [f"modules import each other in a circle: {', '.join(group)}" for group in _circles(graph)]
    return found + [f"MAY_IMPORT has a circle: {', '.join(group)}" for group in _circles(MAY_IMPORT)]


def _circles(graph: Mapping[str, frozenset[str] | set[str]]) -> list[list[str]]:
    """Return the groups of two or more nodes that all reach each other."""
    reach = {node: _reachable(graph, node) for node in graph}
    groups = {
        frozenset(other for other in reach[node] if other in reach and node in reach[other]) for node in graph
    }
    return sorted(sorted(group) for group in groups if len(group) > 1)


def _reachable(graph: Mapping[str, frozenset[str] | set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            waiting += graph.get(node, ())
    return seen


def forbidden_modules(modules: Mapping[str, Module], extras: Extras) -> list[str]:
    """Imports of torch, of processes and of files in rooms that do without."""
    reasons = []
    for module in modules.values():
        extra = extra_of(module.name, extras)
        own = extra is not None and extra.with_torch
        without_torch = module.room in WITHOUT_TORCH and not own
        without_torch |= extra is not None and extra.without_torch
        for one in imports(module, modules):
            top, where = one.name.split(".")[0], f"{module.path}:{one.line} imports {one.name}"
            if without_torch and top == "torch":
                reasons.append(f"{where}: {module.room} does without torch")
            if module.room in PURE and top in IMPURE_MODULES:
                reasons.append(f"{where}: {module.room} is pure, without processes and files")
    return reasons


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
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "isinstance"
            ):
                tested = {part.id for part in ast.walk(node.args[1]) if isinstance(part, ast.Name)}
            elif isinstance(node, ast.MatchClass) and isinstance(node.cls, ast.Name):
                tested = {node.cls.id}
            if tested & DECISIONS and tested & DECISIONS & _decision_names(module):
                line = getattr(node, "lineno", 0)
                reasons.append(f"{module.path}:{line} tests for a decision: use pbt_rl.pbt.changes instead")
    return reasons


def _decision_names(module: Module) -> set[str]:
    """Names in a module that come from pbt: other classes may have the names of decisions."""
    return {
        name.name
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pbt_rl.pbt")
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
