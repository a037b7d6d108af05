"""Names and files in backticks, in pages, docstrings and comments: those that look like ours exist."""

import ast
import re
import sys
from collections import defaultdict
from importlib.util import find_spec
from itertools import pairwise
from operator import attrgetter
from pathlib import Path

from pbt_rl import registry
from pbt_rl.config import Config

ROOT = Path(__file__).parents[2]
SOURCES = [
    path for folder in ("pbt_rl", "algos", "envs", "scripts") for path in (ROOT / folder).rglob("*.py")
]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
QUOTED = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
FILE = re.compile(r"[\w.-]+(/[\w.-]+)*\.(py|md|toml)")
NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
DATA = re.compile(r"\.(cff|csv|html|ini|json|jsonl|log|lua|onnx|pt|safetensors|sh|txt|wad|yml)$")
"""How files of a run and of engines end."""
FOREIGN = {
    *("pbt.py", "benchmark.md", "docs/benchmark/ppo_continuous_action.md", "dmlab30.py"),
    *(
        "orion.algo.pbt.pbt.LineageNode",
        "PPO.__init__",
        "Box.sample",
        "envpool.make",
        "AutoresetMode.SAME_STEP",
    ),
}
"""Files and names of other projects."""
FOREIGN_NAMES = {"N", "WORLD", "init", "nn", "table", "a", "env", "net", "paths", "written"}
"""First parts of others: Lab2D's observations, torch.nn, settings of engines, examples, arguments of a user's code."""
OF_ENVIRONMENTS = {"shaping", "sim", "obs", "weapon", "camera"}
"""First parts of the names of observations and shaping terms, which environments choose."""
GROUPS = {one.group for one in vars(registry).values() if isinstance(one, registry.Registry)} | {
    "pbt_rl.commands"
}
OPTIONS = Config("toy/identity")


def parts_of(body):
    """Names that a module or a class defines, imports, or sets as attributes anywhere."""
    found = set()
    for node in ast.walk(body):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.arg(arg=name):
                found.add(name)
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                found.add(name)
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                found |= {one.asname or one.name for one in names}
    return found


def index():
    """Module, package or class -> its parts."""
    table = defaultdict(set)
    for path in SOURCES:
        tree = ast.parse(path.read_text())
        place = path.parent if path.stem == "__init__" else path
        table[place.stem] |= parts_of(tree)
        table[place.parent.name].add(place.stem)
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                table[node.name] |= parts_of(node).union(*(table[ast.unparse(base)] for base in node.bases))
    for folder in ("envs", "algos"):
        table["pbt_rl"].add(folder)
    return table


OURS = index()


def texts():
    """File, and each of its texts: of a page every paragraph, of a module every string alone and every comment."""
    for path in PAGES:
        yield from ((path, text) for text in re.split(r"\n\n|\n(?=[|-] )", path.read_text()))
    for path in SOURCES:
        source = path.read_text()
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                yield path, str(node.value.value)
        yield from ((path, comment) for comment in re.findall(r"#.*", source))


def file_exists(page, name):
    if "/" not in name:
        return any(
            path.name == name for path in (*SOURCES, *PAGES, *(ROOT / "tests").rglob("*.py"), ROOT / name)
        )
    return any((folder / name).exists() for folder in (ROOT, ROOT / "pbt_rl", *page.parents))


def name_exists(page, name):
    """Whether a dotted name is ours, or looks as if it were of others."""
    first, *_ = parts = name.split(".")
    if (
        first in FOREIGN_NAMES | OF_ENVIRONMENTS
        or name in GROUPS
        or all(part in OURS.get(owner, ()) for owner, part in pairwise(parts))
    ):
        return True
    if first in OURS or hasattr(OPTIONS, first):
        try:
            attrgetter(name)(OPTIONS)
        except AttributeError:
            return False
        return True
    variable = page.suffix == ".md" or first in parts_of(ast.parse(page.read_text()))
    return variable or first in sys.stdlib_module_names or find_spec(first) is not None


def test_what_stands_in_backticks_exists():
    missing = set()
    for page, text in texts():
        for quoted in QUOTED.findall(text):
            called = quoted.removesuffix("()")
            files = [word for word in quoted.split() if FILE.fullmatch(word)]
            if quoted in FOREIGN or "at commit" in text:
                continue
            missing |= {(page, word) for word in files if not file_exists(page, word)}
            if not files and NAME.fullmatch(called) and not DATA.search(called):
                missing |= {(page, quoted)} if not name_exists(page, called) else set()
    assert not missing, "\n".join(sorted(f"{page.relative_to(ROOT)}: {quoted}" for page, quoted in missing))
