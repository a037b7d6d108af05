"""`scripts/rooms.py` and the contracts of import-linter: every rule complains about a tree that breaks it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import rooms  # noqa: E402


@pytest.fixture
def complaints(tmp_path):
    """Write files into a small tree that keeps all rules; return the complaints."""

    def write(files: dict[str, str]) -> list[str]:
        tree = {
            "algos/__init__.py": "",
            "envs/base.py": "open('x')",
            "pbt_rl/__init__.py": "",
            "pbt_rl/controllers/decisions.py": "class Stop: ...",
            "pbt_rl/controllers/changes.py": "from .decisions import Stop\nisinstance(1, Stop)",
            "pbt_rl/run/audit.py": "from pbt_rl.record import Stop\nisinstance(1, Stop)",
        }
        for path, text in (tree | files).items():
            file = tmp_path / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        (tmp_path / "pbt_rl" / "envs").symlink_to("../envs")
        return rooms.complaints(tmp_path)

    return write


def test_a_tree_that_keeps_the_rules_has_no_complaint(complaints):
    assert complaints({}) == []


WRONG = {
    "a file in a pure room": (
        {"pbt_rl/controllers/a.py": "from pathlib import Path\nPath('x').read_text()"},
        "pbt_rl/controllers/a.py:2 calls read_text",
    ),
    "a test for a decision": (
        {"pbt_rl/run/a.py": "from pbt_rl.controllers.decisions import Stop\nisinstance(1, (int, Stop))"},
        "pbt_rl/run/a.py:2 tests for a decision",
    ),
    "a match of a decision": (
        {"pbt_rl/run/a.py": "from pbt_rl.controllers import Stop\nmatch 1:\n    case Stop():\n        ..."},
        "pbt_rl/run/a.py:3 tests for a decision",
    ),
    "a long file": ({"envs/a.py": "x = 1\n" * 601}, "envs/a.py has 601 lines"),
}


@pytest.mark.parametrize("name", WRONG)
def test_each_rule_complains(complaints, name):
    files, complaint = WRONG[name]
    found = complaints(files)
    assert len(found) == 1
    assert complaint in found[0]


def test_a_crowded_top(complaints):
    found = complaints({f"pbt_rl/module_{i}.py": "" for i in range(rooms.MAX_TOP_MODULES)})
    assert len(found) == 1


PLANTED = {
    "envs/planted.py": "import pbt_rl.run.train",
    "algos/planted.py": "def late():\n    from pbt_rl.envs import base",
    "actors/planted.py": "import torch",
    "controllers/planted.py": "import pbt_rl.actors.child",
    "record/planted.py": "def late():\n    from pbt_rl.report import page",
    "run/planted.py": "from pbt_rl.run.nodes import fleet",
}


def test_an_import_against_the_layers_breaks_its_contract(tmp_path):
    lint = Path(sys.executable).with_name("lint-imports")
    shutil.copytree(
        ROOT / "pbt_rl", tmp_path / "pbt_rl", ignore=shutil.ignore_patterns("__pycache__", "*.html", "*.js")
    )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for path, text in PLANTED.items():
        (tmp_path / "pbt_rl" / path).write_text(text)
    found = subprocess.run([lint, "--no-cache"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert f"0 kept, {len(PLANTED)} broken" in found.stdout
