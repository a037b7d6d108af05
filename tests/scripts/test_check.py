"""`scripts/check.py` and the contracts of import-linter: every rule complains about a tree that breaks it."""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import check  # noqa: E402


def test_long_files_and_a_crowded_top_are_told(tmp_path):
    for folder in ("algos", "envs", "pbt_rl"):
        (tmp_path / folder).mkdir()
    (tmp_path / "pbt_rl" / "envs").symlink_to("../envs")
    (tmp_path / "envs" / "a.py").write_text("x = 1\n" * 600)
    assert check.sizes(tmp_path) == []
    (tmp_path / "envs" / "a.py").write_text("x = 1\n" * 601)
    for number in range(check.MAX_TOP_MODULES + 1):
        (tmp_path / "pbt_rl" / f"module_{number}.py").touch()
    found = check.sizes(tmp_path)
    assert len(found) == 2
    assert found[0].startswith("envs/a.py has 601 lines")


PLANTED = {
    "arrows point down": {
        "envs/planted.py": "import pbt_rl.run.train",
        "algos/planted.py": "def late():\n    from pbt_rl.envs import base",
        "record/planted.py": "def late():\n    from pbt_rl.report import page",
        "actors/planted.py": "import pbt_rl.config",
        "plan/planted.py": "import pbt_rl.unlisted",
        "unlisted.py": "import pbt_rl.cli.main",
        "options/planted.py": "import pbt_rl.config",
        "report/planted.py": "import pbt_rl.cli",
    },
    "what decides, and what steps environments, loads no torch": {"processes/planted.py": "import torch"},
    "decisions need no process and no file": {"controllers/planted.py": "from pathlib import Path"},
    "nodes are reached where --nodes asks for them": {
        "run/planted.py": "from pbt_rl.run.nodes import node_fleet"
    },
}


def test_an_import_against_the_layers_breaks_its_contract(tmp_path):
    lint = Path(sys.executable).with_name("lint-imports")
    shutil.copytree(
        ROOT / "pbt_rl", tmp_path / "pbt_rl", ignore=shutil.ignore_patterns("__pycache__", "*.html", "*.js")
    )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for files in PLANTED.values():
        for path, text in files.items():
            (tmp_path / "pbt_rl" / path).write_text(text)
    found = subprocess.run(
        [lint, "--no-cache", "--no-logo"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert found.returncode == 1
    for contract, files in PLANTED.items():
        assert f"{contract} BROKEN" in found.stdout
        for path in files:
            planted = f"pbt_rl.{path.removesuffix('.py').replace('/', '.')}"
            assert planted in found.stdout, f"{planted} breaks {contract}, unseen"


def test_phrases_that_a_reader_stumbles_over_are_found(tmp_path):
    (tmp_path / "algos").mkdir()
    (tmp_path / "algos" / "one.py").write_text(
        '"""What a policy knows of its own."""\n# a turn is no step, and nobody reads it\nTHERE = "there is no step"\n'
    )
    for name in ("README.md", "CONTRIBUTING.md"):
        (tmp_path / name).write_text("for every member\n")
    found = check.prose(tmp_path)
    assert [reason.split(" ")[0] for reason in found] == ["algos/one.py:1:"] * 3 + ["algos/one.py:2:"] * 2
