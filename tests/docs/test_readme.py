"""The README's environment runs as it is printed; every page links to what is there."""

from __future__ import annotations

import json
import re
import shlex
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from pbt_rl.envs.base import private_step_arrays
from pbt_rl.envs.lookup import EnvOptions, make_vector_env, probe
from tests.helpers.runs import start

ROOT = Path(__file__).resolve().parent.parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture
def walk(tmp_path, monkeypatch):
    """The environment, written to the file that its first line names, in the working directory."""
    (block,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert block.startswith("# walk.py\n")
    assert len([line for line in block.splitlines() if line]) <= 25
    (tmp_path / "walk.py").write_text(block)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "walk", raising=False)
    yield tmp_path
    sys.modules.pop("walk", None)


def test_the_page_is_short():
    assert len(README.encode()) <= 9_000


def test_the_environment_is_tunable(walk):
    spec = probe("walk:Walk", EnvOptions())
    assert spec.shaping == {"step_cost": 0.1}
    asked = []

    def shaping(row):
        asked.append(row)
        return 7, {"step_cost": 0.25 * (row + 1)}

    vector_env = make_vector_env("walk:Walk", 2, 0, EnvOptions(), shaping)
    step = private_step_arrays(spec, 2)
    vector_env.reset(step)
    right_left = np.array([[1], [0]], np.int32)
    for _ in range(5):
        vector_env.step(right_left, step)
    assert asked == [0, 1]
    assert step.reward.tolist() == [0.75, -0.5], "each row has the values of its policy"
    assert step.terminated.tolist() == [True, False]
    assert (step.objective[0], step.raw_return[0]) == (1, pytest.approx(-0.25))
    assert step.shaping_version[0] == 7
    for _ in range(15):
        vector_env.step(right_left, step)
    vector_env.close()
    assert step.truncated[1]
    assert step.objective[1] == 0


@pytest.mark.long
def test_the_commands_beside_the_environment_run(walk):
    (block,) = re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
    check, train = (shlex.split(line) for line in block.replace("\\\n", " ").splitlines())
    run = start(walk, *check[1:])
    assert run.wait() == 0, run.out + run.err
    assert "MISTAKE" not in run.out
    run = start(walk, *train[1:], "--no-figures", "--train-for-frames", "30000")
    assert run.wait() == 0, run.out + run.err
    first = {
        json.loads(path.read_text())["shaping"]["step_cost"] for path in walk.glob("runs/walk/policy_*.json")
    }
    assert len(first) > 1, "members have prices of their own"


LINKING = (
    "README.md",
    "CONTRIBUTING.md",
    *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md"))),
)


@pytest.mark.parametrize("page", LINKING)
def test_links_lead_to_files_and_headings(page):
    folder, text = (ROOT / page).parent, (ROOT / page).read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)]+)\)", text):
        if "://" in link:
            continue
        name, _, heading = link.partition("#")
        target = folder / name if name else ROOT / page
        assert target.exists(), link
        if heading:
            assert heading in anchors(target.read_text(encoding="utf-8")), link


def anchors(text):
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_packages_of_the_architecture_are_the_layers_that_are_checked():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = text.partition("## Packages")[2].partition("\n## ")[0]
    rows = [set(re.findall(r"`(\w+)`", row[1])) for row in re.findall(r"^(\|)([^|]+)\|", table, re.MULTILINE)]
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    [layers] = [contract["layers"] for contract in contracts if contract["type"] == "layers"]
    assert [row for row in rows if row] == [set(layer.split(" | ")) for layer in layers]


def test_the_pages_that_code_and_messages_name_are_there():
    named = {
        page
        for folder in ("pbt_rl", "envs", "algos", "scripts", "tests")
        for path in (ROOT / folder).rglob("*.py")
        for page in re.findall(r"docs/[a-z/-]+\.md", path.read_text(encoding="utf-8"))
    }
    assert len(named) > 10
    assert not [page for page in named if not (ROOT / page).is_file()]
