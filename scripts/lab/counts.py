"""Count what a reader of a checkout meets: messages, readers, guards, lines of core and extras, pages, and four walks.

    python scripts/lab/counts.py CHECKOUT [--json FILE] [--beside FILE] [--no-walks]

    --json FILE      write all numbers and the names behind them
    --beside FILE    print a second column with the numbers of another checkout, as --json wrote them

The same rules for every checkout (each is the docstring of its function, or of counts_walks.py). It is read, and for
the walks run by its own .venv/bin/python. Nothing is imported here.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from counts_walks import walk_all

PRODUCT = ("algos", "envs", "pbt_rl")
FORMER_EXTRAS: dict[str, tuple[str, ...]] = {
    "agents": (
        *("envs/lab2d.py", "envs/pettingzoo", "envs/multi_agent.py", "pbt_rl/play/against.py"),
        *("pbt_rl/matchups/matchmaking.py", "pbt_rl/matchups/ratings.py", "pbt_rl/matchups/run.py"),
    ),
    "dmlab": ("envs/dmlab", "pbt_rl/cli/dmlab_cache.py"),
    "doom": ("envs/doom",),
    "envpool": ("envs/envpool",),
    "export": ("pbt_rl/export", "pbt_rl/cli/export.py"),
    "fun": ("algos/fun.py", "algos/fun_core.py"),
    "ipbt": ("pbt_rl/pbt/ipbt.py", "pbt_rl/pbt/stagnation.py"),
    "mf_pbt": ("pbt_rl/pbt/mf_pbt.py", "pbt_rl/pbt/exploit/groups.py"),
    "nodes": ("pbt_rl/nodes",),
    "pb2": tuple(
        f"pbt_rl/pbt/explore/{name}.py" for name in ("pb2", "pb2_mix", "bandit", "gaussian_process")
    ),
    "report": ("pbt_rl/report", "pbt_rl/cli/report.py"),
    "search": ("pbt_rl/pbt/search",),
    "set": ("pbt_rl/run/live.py", "pbt_rl/record/requests.py", "pbt_rl/cli/set.py"),
    "sweep": ("pbt_rl/run/sweep.py", "pbt_rl/cli/sweep.py", "pbt_rl/cli/job.py"),
    "trackers": ("pbt_rl/display/trackers", "pbt_rl/display/tracking.py"),
    "tune": ("pbt_rl/tune",),
    "unreal": ("algos/unreal.py", "algos/pixel_control.py", "algos/replay.py"),
    "video": ("pbt_rl/play/video.py", "envs/film.py"),
    "watch": ("pbt_rl/watch", "pbt_rl/cli/watch.py"),
}
"""Where the extras stood before they had folders of their own. Used for a checkout without any `extra.py`."""
WAYS: dict[str, tuple[str, str]] = {
    "from slot to slot on a device": ("algos/pack.py", r"def copy_member\("),
    "export and import by an exchange memory": ("wire/messages.py", r"^class ExportMember\b"),
    "remember and forget in a learner's heap": ("wire/messages.py", r"^class RememberMember\b"),
    "park and enter, in a learner's heap": ("wire/messages.py", r"^class SlotChange\b"),
    "staging for a checkpoint": ("wire/messages.py", r"^class StageMember\b"),
    "copies that outlive a node": ("run/copies.py", r"^class \w*Cop\w+"),
    "start memory": ("learner/setup.py", r"\bstart_fd\b"),
    "under a key in the store": ("wire/messages.py", r"^class Load\b"),
}
"""A way to move a member's whole state, and the definition by which it is told: end of a path, and what is in it."""
READS_JSON = re.compile(r"(^|_)from_(dict|json|metadata|record|fields)$")
REFLECTS = {"fields", "get_type_hints", "field_docs"}
OPTION_ROOMS = re.compile(
    r"pbt_rl/(options|config|api|recipes)|pbt_rl/(cli|given|options|record)/|pbt_rl/pbt/(hypers|tuning)"
)
GUARDS = re.compile(
    r"PR_SET_CHILD_SUBREAPER|PR_SET_PDEATHSIG|\bprctl\b|/children\b|\bPDEATHSIG\b|\bSUBREAPER\b"
)


@dataclass
class Found:
    """A number, and the names behind it."""

    number: float
    names: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class File:
    """One Python file. path: from the checkout."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """Its syntax tree."""
        return ast.parse(self.text)

    @property
    def lines(self) -> int:
        """Its lines."""
        return self.text.count("\n")

    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        """Yield all functions, inner ones too."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node


def python_files(root: Path, folders: tuple[str, ...]) -> list[File]:
    """Return the Python files below folders of a checkout; links (pbt_rl/envs, pbt_rl/algos) are not followed."""
    found = []
    for folder in folders:
        for path in sorted((root / folder).rglob("*.py")):
            parents = [p for p in path.parents if p != root and root in p.parents]
            if not any(p.is_symlink() for p in parents):
                found.append(File(str(path.relative_to(root)), path.read_text(encoding="utf-8")))
    return found


def called(node: ast.AST) -> str:
    """Return the last name of what a call calls, else an empty text."""
    if not isinstance(node, ast.Call):
        return ""
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def messages(files: list[File]) -> dict[str, Found]:
    """The members of the unions ToLearner and FromLearner in wire/messages.py."""
    found = {}
    text = "".join(f.text for f in files if f.path.endswith("wire/messages.py"))
    for name in ("ToLearner", "FromLearner"):
        union = re.search(
            rf"^(?:type )?{name}\b[^=]*= *\(?([^)]*?)(?:\)|\n\S|\Z)", text, re.MULTILINE | re.DOTALL
        )
        names = re.findall(r"\w+", union.group(1)) if union else []
        found[f"messages {'to' if name[0] == 'T' else 'from'} a learner"] = Found(len(names), names)
    return found


def ways(files: list[File]) -> dict[str, Found]:
    """Ways to move a member's whole state: those of `WAYS` whose definition is there."""
    names = [
        way
        for way, (end, pattern) in WAYS.items()
        if any(f.path.endswith(end) and re.search(pattern, f.text, re.MULTILINE) for f in files)
    ]
    return {"ways to move a state": Found(len(names), names)}


def json_readers(files: list[File]) -> dict[str, Found]:
    """Files that call json.load or json.loads, define `*_from_dict` (`_json`, `_metadata`), or make `Fields`."""
    by_hand = []
    for file in files:
        calls = {called(n) for n in ast.walk(file.tree)}
        loads = re.search(r"\bjson\.loads?\b", file.text) is not None
        if loads or "Fields" in calls or any(READS_JSON.search(f.name) for f in file.functions()):
            by_hand.append(file.path)
    schemas = [
        f.path
        for f in files
        if re.search(r"\bmsgspec\.(json\.)?(decode|convert|Decoder)|json\.Decoder\(", f.text)
    ]
    return {
        "files that read JSON by hand": Found(len(by_hand), by_hand),
        "files that read JSON by a schema": Found(len(schemas), schemas),
    }


def reflections(files: list[File]) -> dict[str, Found]:
    """Functions that call `fields`, `get_type_hints` or `field_docs`: all, and those of the rooms of options."""
    every = [
        f"{file.path}:{function.name}"
        for file in files
        for function in file.functions()
        if any(called(node) in REFLECTS for node in ast.walk(function))
    ]
    options = [name for name in every if OPTION_ROOMS.match(name)]
    return {
        "functions that reflect over a dataclass": Found(len(every), every),
        "of them over options": Found(len(options), options),
    }


def guards(files: list[File]) -> dict[str, Found]:
    """Files that ask the kernel for a guard (prctl: subreaper, signal at the parent's death) or walk children."""
    found = []
    for file in files:
        calls = {called(node) for node in ast.walk(file.tree)}
        if GUARDS.search(file.text) or ("children" in calls and calls & {"kill", "killpg", "send_signal"}):
            found.append(file.path)
    return {"files with process guards": Found(len(found), found)}


def parts(root: Path, files: list[File]) -> dict[str, str]:
    """Return path -> `core` or the extra's name: the innermost folder with an `extra.py`, else FORMER_EXTRAS."""
    folders = {
        str(Path(f.path).parent): Path(f.path).parent.name for f in files if f.path.endswith("/extra.py")
    }
    if not folders:
        folders = {path: name for name, paths in FORMER_EXTRAS.items() for path in paths}
        if missing := [path for path in folders if not (root / path).exists()]:
            raise ValueError(f"{root} has no extra.py, and no {missing[0]}")
    found = {}
    for file in files:
        inside = [p for p in (file.path, *map(str, Path(file.path).parents)) if p in folders]
        found[file.path] = folders[inside[0]] if inside else "core"
    return found


def sizes(root: Path, files: list[File]) -> dict[str, Found]:
    """Lines and files of the core and of each extra."""
    part = parts(root, files)
    found = {
        "lines of the product": Found(sum(f.lines for f in files)),
        "files of the product": Found(len(files)),
    }
    for name in ("core", *sorted(set(part.values()) - {"core"})):
        own = [f for f in files if part[f.path] == name]
        found[f"lines of {name}"] = Found(sum(f.lines for f in own))
        found[f"files of {name}"] = Found(len(own), [f.path for f in own if name != "core"])
    return found


def pages(root: Path) -> dict[str, Found]:
    """Size of each page in KB (1,000 bytes): at the top, in docs/ and docs/lab/."""
    places = [*sorted(root.glob("*.md")), *sorted((root / "docs").glob("*.md"))]
    places += sorted((root / "docs").rglob("lab/*.md"))
    found = {f"KB {p.relative_to(root)}": Found(round(p.stat().st_size / 1000, 1)) for p in places}
    return {**found, "KB of all pages": Found(round(sum(f.number for f in found.values()), 1))}


def tests(root: Path) -> dict[str, Found]:
    """Uses of monkeypatch, and reads or writes of a private attribute of something else than self, in tests/."""
    patches = private = lines = 0
    for file in python_files(root, ("tests",)):
        lines += file.lines
        for node in ast.walk(file.tree):
            if isinstance(node, ast.Attribute):
                patches += isinstance(node.value, ast.Name) and node.value.id == "monkeypatch"
                own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
                private += node.attr.startswith("_") and not node.attr.startswith("__") and not own
    numbers = {
        "lines of tests": lines,
        "monkeypatches in tests": patches,
        "private attributes in tests": private,
    }
    return {name: Found(number) for name, number in numbers.items()}


RULES: tuple[Callable[[list[File]], dict[str, Found]], ...] = (
    messages,
    ways,
    json_readers,
    reflections,
    guards,
)


def count(root: Path, *, walks: bool) -> dict[str, Found]:
    """Return all numbers of a checkout, by name."""
    files = python_files(root, PRODUCT)
    found: dict[str, Found] = {}
    for rule in RULES:
        found |= rule(files)
    if walks:
        for name, paths in walk_all(root).items():
            found[name] = Found(len(paths), paths)
    return found | sizes(root, files) | tests(root) | pages(root)


def table(found: dict[str, Found], beside: dict[str, Any]) -> list[str]:
    """Return the lines of the table."""
    names = [*found, *(name for name in beside if name not in found)]
    width = max(map(len, names))
    lines = []
    for name in names:
        columns = [beside[name]["number"] if name in beside else None] if beside else []
        columns.append(found[name].number if name in found else None)
        lines.append(f"{name:{width}}" + "".join(f"{'-' if n is None else f'{n:,}':>12}" for n in columns))
    return lines


def main(words: list[str] | None = None) -> int:
    """Read the command line, count, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", type=lambda text: Path(text).resolve())
    parser.add_argument("--json", type=Path, help="write the numbers and names to this file")
    parser.add_argument("--beside", type=Path, help="numbers of another checkout, in the first column")
    parser.add_argument(
        "--no-walks", action="store_true", help="leave out the walks, which train for some seconds"
    )
    args = parser.parse_args(words)
    found = count(args.checkout, walks=not args.no_walks)
    beside = json.loads(args.beside.read_text()) if args.beside else {}
    print("\n".join(table(found, beside)))
    if args.json:
        args.json.write_text(json.dumps({k: vars(v) for k, v in found.items()}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
