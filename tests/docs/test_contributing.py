"""Every example of CONTRIBUTING and of the pages on algorithms and rules works in a copy of the code."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys

import pytest

from tests.helpers.runs import HANG_SECONDS, ROOT

PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
TEXTS = (
    PAGE.split("## How to add")[1],
    *(
        (ROOT / "docs" / name).read_text(encoding="utf-8")
        for name in ("your-algorithm-or-rule.md", "reference/algorithm.md", "reference/rules.md")
    ),
)
SECTIONS = {
    title: body
    for text in TEXTS
    for title, body in re.findall(r"^##+ (.*?)\n(.*?)(?=^##|\Z)", text, re.DOTALL | re.MULTILINE)
    if "```bash" in body
}


def blocks(section, language):
    return re.findall(rf"^```{language}\n(.*?)^```", SECTIONS[section], re.DOTALL | re.MULTILINE)


def apply(diff, tree):
    """Replace the lines before by the lines after, which must stand in the file exactly once."""
    first, *lines = diff.splitlines(keepends=True)
    path = tree / first.split()[1]
    before = "".join(line[1:] for line in lines if line[0] in " -")
    after = "".join(line[1:] for line in lines if line[0] in " +")
    text = path.read_text()
    assert text.count(before) == 1, f"{path.relative_to(tree)} does not hold once:\n{before}"
    path.write_text(text.replace(before, after))


def copy_of_the_code(tree):
    for room in ("algos", "envs", "pbt_rl"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / room, tree / room, symlinks=True, ignore=ignored)
    return tree


@pytest.fixture
def run(tmp_path):
    """Returns a function that adds a section's blocks to a copy of the code and runs its command there."""

    def add_and_run(section, *more):
        tree = copy_of_the_code(tmp_path / "code")
        for text in blocks(section, "python"):
            name = re.match(r"# (\S+\.py)\n", text)[1]
            folder = tree if "/" in name else tmp_path
            (folder / name).write_text(text)
        for diff in blocks(section, "diff"):
            apply(diff, tree)
        (command,) = blocks(section, "bash")
        program, *arguments = shlex.split(command)
        assert program == "pbt-rl"
        done = subprocess.run(
            [sys.executable, "-m", "pbt_rl", *arguments, "--name", "x", "--no-figures", *more],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return tmp_path / "runs" / "x"

    return add_and_run


def events(folder, kind):
    lines = map(json.loads, (folder / "journal.jsonl").read_text().splitlines())
    return [event for event in lines if event["event"] == kind]


def shown_in_tensorboard(folder, tag):
    whole = re.compile(re.escape(tag.encode()) + rb"(?!\w)")
    return any(whole.search(path.read_bytes()) for path in folder.glob("events.out.*"))


def test_the_sections_are_those_that_are_tested():
    tested = {
        "An algorithm",
        "An exploit rule",
        "An explore rule",
        "Change a loss",
        "A statistic of a run",
        "An environment family",
        "An option",
    }
    assert set(SECTIONS) - {"A controller"} == tested


def test_the_page_is_short():
    assert len(PAGE.encode()) <= 12_000


@pytest.mark.long
def test_what_becomes_part_of_the_project_passes_its_checks(tmp_path):
    tree = copy_of_the_code(tmp_path / "code")
    shutil.copy(ROOT / "pyproject.toml", tree)
    changed = []
    for section in ("A statistic of a run", "An environment family", "An option"):
        for diff in blocks(section, "diff"):
            apply(diff, tree)
            changed.append(diff.split()[1])
        for text in blocks(section, "python"):
            name, code = re.match(r"# (\S+\.py)\n(.*)", text, re.DOTALL).groups()
            (tree / name).write_text(code)
            changed.append(name)
    for section in ("An exploit rule", "An explore rule"):  # moved into the project, with a docstring
        (text,) = blocks(section, "python")
        name, code = re.match(r"# (\S+\.py)\n(.*)", text, re.DOTALL).groups()
        (tree / "pbt_rl" / "controllers" / name).write_text(f'"""{section}, of a paper."""\n\n{code}')
        changed.append(f"pbt_rl/controllers/{name}")
    modules = [name.removesuffix(".py").replace("/", ".") for name in changed]
    modules = [name if name.startswith("pbt_rl.") else f"pbt_rl.{name}" for name in modules]
    for words in (
        ["ruff", "check", *changed],
        ["ruff", "format", "--check", *changed],
        ["mypy", *(word for name in modules for word in ("-m", name))],
    ):
        done = subprocess.run(
            [sys.executable, "-m", *words],
            cwd=tree,
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
def test_an_algorithm(run):
    folder = run("An algorithm")
    assert json.loads((folder / "config.json").read_text())["algo"] == "penalty:PENALTY"
    assert shown_in_tensorboard(folder / "policy_00", "learning/kl")
    assert not shown_in_tensorboard(folder / "policy_00", "learning/clip_fraction")
    assert json.loads((folder / "config.json").read_text())["hypers"]["beta"] == 2
    (first,) = events(folder, "initial")
    assert first["values"][0]["beta"] == 2
    assert shown_in_tensorboard(folder / "policy_00", "hypers/beta")
    written = [json.loads((folder / f"policy_{i:02d}.json").read_text())["hypers"]["beta"] for i in range(4)]
    changed = {
        d["values"]["beta"] for event in events(folder, "round") for d in event["decisions"] if "values" in d
    }
    assert len(changed) > 1, "PBT changes it"
    assert set(written) <= changed | {values["beta"] for values in first["values"]}


@pytest.mark.long
def test_an_exploit_rule(run):
    folder = run("An exploit rule")
    reasons = [d["reason"] for event in events(folder, "round") for d in event["decisions"]]
    assert any("median" in reason for reason in reasons)
    assert any(event["donor"] is not None for event in events(folder, "applied"))


@pytest.mark.long
def test_an_explore_rule(run):
    folder = run("An explore rule")
    (first,) = events(folder, "initial")[:1]
    rates = [values["learning_rate"] for values in first["values"]]
    assert len(set(rates)) == 4
    assert len({values["gamma"] for values in first["values"]}) == 1, "only tuned values move"


@pytest.mark.long
def test_a_changed_loss(run):
    folder = run("Change a loss")
    assert shown_in_tensorboard(folder / "policy_00", "learning/value_bias")


@pytest.mark.long
def test_a_statistic_of_a_run(run):
    folder = run("A statistic of a run")
    highest = json.loads((folder / "summary.json").read_text())["highest_generation"]
    assert highest == max(event["generation"] for event in events(folder, "applied"))
    assert shown_in_tensorboard(folder / "population", "pbt/highest_generation")


@pytest.mark.long
def test_an_environment_family(run):
    folder = run("An environment family")
    members = json.loads((folder / "summary.json").read_text())["members"]
    assert max(member["objective"] for member in members) > 6.5, "heads are learned: 8 of 10"


@pytest.mark.long
def test_an_option(run):
    folder = run("An option")
    assert json.loads((folder / "config.json").read_text())["pbt"]["quantile"] == 0.5
    assert any(event["donor"] is not None for event in events(folder, "applied"))
