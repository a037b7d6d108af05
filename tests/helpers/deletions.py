"""Copies of the code without some of its extras, and what is wrong with them.

An extra is a folder with an `extra.py`, which says in constants (literals, read without importing it):

    ASKED = ["train --env lab/x --show"]     command lines that ask for it, and end at once where it is there
    NEEDS = ("pbt_rl.report",)               other extras that it imports: where they are removed, so is this one
    TESTS = ["tests/envs/test_lab.py"]       its tests, besides those in tests/ under its own path
"""

import ast
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
CODE = ("algos", "envs", "pbt_rl", "scripts", "pyproject.toml")
ALL = (
    *CODE,
    "tests",
    "docs",
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "LICENSE",
    "Makefile",
    "constraints.txt",
)
ROOMS = ("algos", "envs", "pbt_rl")
TRAIN = (
    "train --env gym/CartPole-v1 --mode serial --num-policies 4 --actors 1 --envs-per-unit 2 --name x --seed 1 "
    "--train-for-frames 3000 --pbt.start-frames 500 --pbt.period-frames 500 --pbt.min-episodes 1 --devices cpu "
    "--pbt.replace-gap 0 --learner.batch 128"
)
ANSWER_SECONDS = 60.0
IMPORT_ALL = """
import importlib, sys
from pathlib import Path
import pbt_rl
assert Path(pbt_rl.__file__).is_relative_to(Path.cwd()), "another copy is imported"
for room in ("algos", "envs", "pbt_rl"):
    for path in sorted(Path(room).rglob("*.py")):
        parts = path.with_suffix("").parts if room == "pbt_rl" else ("pbt_rl", *path.with_suffix("").parts)
        name = ".".join(parts).removesuffix(".__init__")
        if name.endswith(".__main__") or not path.exists():
            continue
        try:
            importlib.import_module(name)
        except (Exception, SystemExit) as error:
            print(f"{name}: {type(error).__name__}: {error}".splitlines()[0])
"""
ALONE = '''\
"""Only what lies here is imported: an editable install of another checkout would stand in for what is gone."""

import sys

sys.meta_path[:] = [
    finder for finder in sys.meta_path if "__editable__" not in getattr(finder, "__module__", "")
]
'''
CHECK_ROOMS = """
import sys
from pathlib import Path
sys.path.insert(0, "scripts")
import rooms
print("\\n".join(rooms.complaints(Path("."))))
"""


@dataclass(frozen=True)
class Extra:
    """folder: from the root, such as `pbt_rl/watch`."""

    folder: str
    asked: tuple[str, ...]
    needs: tuple[str, ...]
    tests: tuple[str, ...]


def extras(root=ROOT):
    """Return the extras of a tree by folder."""
    found = {}
    for room in ROOMS:
        for path in sorted((root / room).rglob("extra.py")):
            if not any(parent.is_symlink() for parent in path.parents if parent != root):
                said = constants(path)
                folder = str(path.parent.relative_to(root))
                tests = [f"tests/{folder}", f"tests/{folder.removeprefix('pbt_rl/')}", *said.get("TESTS", ())]
                found[folder] = Extra(
                    folder,
                    tuple(said.get("ASKED", ())),
                    tuple(folder_of(module) for module in said.get("NEEDS", ())),
                    tuple(tests),
                )
    return found


def constants(path):
    """Return name -> value of the constants of a module that are written as literals."""
    found = {}
    for node in ast.parse(path.read_text()).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(targets[0], ast.Name):
            try:
                found[targets[0].id] = ast.literal_eval(node.value)
            except (ValueError, TypeError):
                continue
    return found


def folder_of(module):
    """Return the folder of an extra from its module: `pbt_rl.envs.lab` is `envs/lab`."""
    folder = module.replace(".", "/")
    inner = folder.removeprefix("pbt_rl/")
    return inner if inner.startswith(("envs/", "algos/")) else folder


def copy(target, root=ROOT, names=CODE):
    """Copy the code into a new folder. Links stay links: pbt_rl/envs is the copied envs."""
    target.mkdir()
    ignored = shutil.ignore_patterns("__pycache__", "*.pyc", ".*_cache")
    for name in names:
        path = root / name
        if path.is_dir():
            shutil.copytree(path, target / name, symlinks=True, ignore=ignored)
        elif path.exists():
            shutil.copy(path, target / name)
    (target / "sitecustomize.py").write_text(ALONE)
    return target


def remove(tree, folders):
    """Remove extras with their tests, and those that need them. Returns the folders that are gone."""
    known, gone = extras(tree), set(folders)
    while more := {e.folder for e in known.values() if gone & set(e.needs)} - gone:
        gone |= more
    for folder in gone:
        for path in (folder, *known[folder].tests):
            shutil.rmtree(tree / path) if (tree / path).is_dir() else (tree / path).unlink(missing_ok=True)
    return gone


def python(tree, *words, seconds=240):
    """Run this interpreter in a copy, with the copy's code. Raises TimeoutExpired; what it started is then ended."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "COLUMNS": "100"}
    with subprocess.Popen(
        [sys.executable, *words],
        cwd=tree,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as child:
        try:
            out, err = child.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(child.args, child.returncode, out, err)


def complaints_of_rooms(tree):
    """Return what the copy's own scripts/rooms.py complains of."""
    done = python(tree, "-c", CHECK_ROOMS)
    return [line for line in done.stdout.splitlines() if line] + done.stderr.splitlines()[-1:]


def unimportable(tree):
    """Return a line for each module of the copy that cannot be imported."""
    done = python(tree, "-c", IMPORT_ALL)
    return done.stdout.splitlines() + done.stderr.splitlines()[-1:] * bool(done.returncode)


def untrained(tree):
    """Train CartPole for some seconds; return what went wrong."""
    done = python(tree, "-m", "pbt_rl", *TRAIN.split())
    if done.returncode:
        return [f"train: exit code {done.returncode}: {done.stderr[-500:]}"]
    journal = (tree / "runs" / "x" / "journal.jsonl").read_text()
    return [] if '"replace"' in journal else ["train: nobody was replaced"]


def answer(tree, command):
    """Return exit code and error lines of a command of `pbt-rl`."""
    done = python(tree, "-m", "pbt_rl", *command.split(), seconds=ANSWER_SECONDS)
    return done.returncode, [line for line in done.stderr.splitlines() if line.strip()]


def badly_refused(whole, tree, command):
    """Return what is wrong with the answer to a command that asks for an extra that is not there.

    whole: a copy with all extras, which must not answer the same.
    """
    code, lines = answer(tree, command)
    if code != 2:
        return [f"`{command}`: exit code {code}, not 2: {lines[-3:]}"]
    if len(lines) != 1:
        return [f"`{command}`: {len(lines)} lines, not one: {lines[:5]}"]
    words = {
        part.strip("-") for word in command.split() for part in (word, *word.split("="), word.split("/")[0])
    }
    if not any(word in lines[0] for word in words - {"train", ""}):
        return [f"`{command}`: the line names nothing of it: {lines[0]}"]
    try:
        same = answer(whole, command) == (code, lines)
    except subprocess.TimeoutExpired:
        return [f"`{command}`: with the extra there it does not end"]
    return [f"`{command}`: with the extra there the answer is the same: {lines[0]}"] if same else []
