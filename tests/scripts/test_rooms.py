"""`scripts/rooms.py`: every rule complains about a tree that breaks it, and about no other."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "scripts"))

import rooms


@pytest.fixture
def complaints(tmp_path):
    """Write files into a small tree that keeps all rules; return the complaints."""

    def write(**files: str) -> list[str]:
        tree = {
            "algos/__init__.py": "",
            "envs/base.py": "from pbt_rl.envs import spaces",
            "envs/spaces.py": "import numpy",
            "pbt_rl/__init__.py": "__version__ = '1'",
            "pbt_rl/errors.py": "from pbt_rl.envs.base import EnvSetupError",
            "pbt_rl/config.py": "from pbt_rl.matchups.options import X",
            "pbt_rl/matchups/options.py": "from pbt_rl.errors import require",
            "pbt_rl/pbt/decisions.py": "isinstance(1, Stop)",
            "pbt_rl/pbt/rules.py": "from .decisions import Stop\nfrom pathlib import Path\n",
            "pbt_rl/page/extra.py": "NEEDS = ('pbt_rl.figures',)\nWITHOUT_TORCH = True",
            "pbt_rl/page/draw.py": "from pbt_rl.run import audit\nfrom pbt_rl.figures import lines",
            "pbt_rl/figures/extra.py": "FIGURES = 1",
            "pbt_rl/figures/lines.py": "import torch",
            "envs/doom/extra.py": "from .duel import Duel",
            "envs/doom/duel.py": "from ..base import EnvSpec",
            "pbt_rl/run/audit.py": "import pbt_rl\nimport torch\nopen('x')\nfrom pbt_rl.pbt import decisions",
        }
        for path, text in (tree | {k: v for k, v in files.items() if "/" in k}).items():
            file = tmp_path / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        (tmp_path / "pbt_rl" / "envs").symlink_to("../envs")
        return rooms.complaints(tmp_path)

    return write


def test_a_tree_that_keeps_the_rules_has_no_complaint(complaints):
    assert complaints() == []


LONG = "x = 1\n" * 601
WRONG = {
    "an arrow up": (
        {"pbt_rl/pbt/a.py": "def f():\n    from pbt_rl.run.audit import audit"},
        "pbt_rl/pbt/a.py:2 imports pbt_rl.run.audit: pbt may not import run",
    ),
    "an arrow up, by type only": (
        {"pbt_rl/wire/a.py": "if TYPE_CHECKING:\n    from pbt_rl.run import audit"},
        "pbt_rl/wire/a.py:2 imports pbt_rl.run.audit: wire may not import run",
    ),
    "a relative arrow up": (
        {"pbt_rl/wire/a.py": "from ..run import audit"},
        "pbt_rl/wire/a.py:1 imports pbt_rl.run.audit: wire may not import run",
    ),
    "a leaf that imports": (
        {"envs/a.py": "from pbt_rl.errors import require"},
        "envs/a.py:1 imports pbt_rl.errors: envs may not import errors",
    ),
    "leaves that meet": (
        {"algos/a.py": "import pbt_rl.envs.base"},
        "algos/a.py:1 imports pbt_rl.envs.base: algos may not import envs",
    ),
    "a leaf by its folder": (
        {"pbt_rl/run/a.py": "from algos.pack import Pack"},
        "pbt_rl/run/a.py:1 imports algos.pack: write pbt_rl.envs and pbt_rl.algos; import no scripts and no tests",
    ),
    "options of a room are below it": (
        {"pbt_rl/wire/options.py": "from pbt_rl.pbt.rules import X"},
        "pbt_rl/wire/options.py:1 imports pbt_rl.pbt.rules: options may not import pbt",
    ),
    "a new room": (
        {"pbt_rl/zoo/a.py": ""},
        "pbt_rl/zoo/a.py: zoo is no room of scripts/rooms.py: give it a line there",
    ),
    "a core file that imports an extra": (
        {"pbt_rl/run/a.py": "def f():\n    from pbt_rl.page.draw import page"},
        "pbt_rl/run/a.py:2 imports pbt_rl.page.draw: pbt_rl.page is an extra, which only itself may import",
    ),
    "a core file that imports an extra of its own room": (
        {"envs/a.py": "from .doom.duel import Duel"},
        "envs/a.py:1 imports pbt_rl.envs.doom.duel: pbt_rl.envs.doom is an extra, which only itself may import",
    ),
    "a core file that names an extra": (
        {"pbt_rl/run/a.py": "import_module('pbt_rl.page.draw')"},
        "pbt_rl/run/a.py:1 names pbt_rl.page: let its extra.py declare what is needed",
    ),
    "an extra that imports one that it does not name": (
        {"pbt_rl/figures/a.py": "from pbt_rl.page import draw"},
        "pbt_rl/figures/a.py:1 imports pbt_rl.page.draw: pbt_rl.page is an extra, which only itself may import",
    ),
    "an extra in a room that imports another room": (
        {"envs/doom/a.py": "from pbt_rl.run import audit"},
        "envs/doom/a.py:1 imports pbt_rl.run.audit: envs may not import run",
    ),
    "an extra that imports the names for users": (
        {"pbt_rl/page/a.py": "import pbt_rl.__main__", "pbt_rl/__main__.py": ""},
        "pbt_rl/page/a.py:1 imports pbt_rl.__main__: page may not import __main__",
    ),
    "torch in an extra that says it has none": (
        {"pbt_rl/page/a.py": "import torch"},
        "pbt_rl/page/a.py:1 imports torch: page does without torch",
    ),
    "a circle in a room": (
        {
            "pbt_rl/pbt/a.py": "import pbt_rl.pbt.b",
            "pbt_rl/pbt/b.py": "def f():\n    from pbt_rl.pbt import a",
        },
        "modules import each other in a circle: pbt_rl.pbt.a, pbt_rl.pbt.b",
    ),
    "torch where it must not be": (
        {"pbt_rl/wire/a.py": "from torch import nn"},
        "pbt_rl/wire/a.py:1 imports torch: wire does without torch",
    ),
    "a process in pbt": (
        {"pbt_rl/pbt/a.py": "from multiprocessing.connection import Pipe"},
        "pbt_rl/pbt/a.py:1 imports multiprocessing.connection: pbt is pure, without processes and files",
    ),
    "a file in pbt": (
        {"pbt_rl/pbt/a.py": "path.read_text()"},
        "pbt_rl/pbt/a.py:1 calls read_text: pbt uses no files",
    ),
    "a test for a decision": (
        {"pbt_rl/run/a.py": "from pbt_rl.pbt.decisions import Stop\nisinstance(x, int | Stop)"},
        "pbt_rl/run/a.py:2 tests for a decision: use pbt_rl.pbt.changes instead",
    ),
    "a match on a decision": (
        {
            "pbt_rl/run/a.py": "from pbt_rl.pbt.decisions import Stop\nmatch x:\n    case Stop():\n        pass"
        },
        "pbt_rl/run/a.py:3 tests for a decision: use pbt_rl.pbt.changes instead",
    ),
    "a long file": (
        {"envs/a.py": LONG},
        "envs/a.py has 601 lines, more than 600: split it by idea",
    ),
}


@pytest.mark.parametrize(("files", "complaint"), WRONG.values(), ids=WRONG)
def test_each_rule_complains(complaints, files, complaint):
    assert complaints(**files) == [complaint]


def test_a_crowded_top(complaints, monkeypatch):
    monkeypatch.setattr(rooms, "MAX_TOP_MODULES", 2)
    assert complaints() == ["pbt_rl/ holds 3 modules, more than 2: give each idea a room"]


def test_other_classes_may_have_the_names_of_decisions(complaints):
    assert complaints(**{"pbt_rl/run/a.py": "from x import Stop\nisinstance(x, Stop)"}) == []


def test_the_table_of_rooms_must_have_no_circle(complaints, monkeypatch):
    monkeypatch.setattr(rooms, "MAY_IMPORT", rooms.MAY_IMPORT | {"errors": frozenset({"envs", "config"})})
    (circle,) = complaints()
    assert circle.startswith("MAY_IMPORT has a circle: config, errors, options, pbt")
