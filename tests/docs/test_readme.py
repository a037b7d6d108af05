"""The README's examples run as they are printed, and its commands and options exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch

from pbt_rl.algos.models import make_model
from pbt_rl.cli.train import parse_train
from pbt_rl.envs.base import private_step_arrays
from pbt_rl.envs.registry import EnvOptions, make_unit, probe

ROOT = Path(__file__).resolve().parent.parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture
def examples(tmp_path, monkeypatch):
    """The Python blocks, written to the files that their first lines name, in the working directory."""
    for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL):
        name = re.match(r"# (\w+)\.py", block)[1]
        (tmp_path / f"{name}.py").write_text(block)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    gymnasium.registry.pop("Walk-v0", None)
    for name in ("my_env", "my_net"):
        sys.modules.pop(name, None)


def test_the_reward_shaping_example_is_a_tunable_environment(examples):
    spec = probe("gym/my_env:Walk-v0", EnvOptions())
    assert spec.shaping == {"step_cost": 0.1}
    asked = []

    def shaping(row):
        asked.append(row)
        return 7, {"step_cost": 0.25 * (row + 1)}

    unit = make_unit("gym/my_env:Walk-v0", 2, 0, EnvOptions(), shaping)
    step = private_step_arrays(spec, 2)
    unit.reset(step)
    right_left = np.array([[1], [0]], np.int32)
    for _ in range(5):
        unit.step(right_left, step)
    assert asked == [0, 1]
    assert step.reward.tolist() == [0.75, -0.5], "each row has the values of its policy"
    assert step.terminated.tolist() == [True, False]
    assert step.shaping_version[0] == 7
    for _ in range(15):
        unit.step(right_left, step)
    unit.close()
    assert step.truncated[1]
    assert step.objective[1] == 0


def test_the_arrived_episode_counts_as_its_true_objective(examples):
    spec = probe("gym/my_env:Walk-v0", EnvOptions())
    unit = make_unit("gym/my_env:Walk-v0", 1, 0, EnvOptions(), lambda _row: (0, spec.shaping))
    step = private_step_arrays(spec, 1)
    unit.reset(step)
    for _ in range(5):
        unit.step(np.ones((1, 1), np.int32), step)
    unit.close()
    assert step.objective[0] == 1
    assert step.raw_return[0] == pytest.approx(0.5)


def test_the_encoder_example_makes_a_network(examples):
    net = make_model({"obs": ((4,), "float32")}, 2, encoder="my_net:small")
    params, value, _ = net(
        {"obs": torch.zeros(3, 5, 4)}, torch.zeros(5, 0), torch.zeros(3, 5, dtype=torch.bool)
    )
    assert params.shape == (3, 5, 2)
    assert value.shape == (3, 5)


def test_the_examples_name_the_command_that_uses_them():
    comments = re.findall(r"^# my_\w+\.py:   pbt-rl train (.*)$", README, re.MULTILINE)
    assert comments == ["--env gym/my_env:Walk-v0", "--env gym/CartPole-v1 --model.encoder my_net:small"]


def test_the_python_example_trains_and_plays(examples, tmp_path):
    text = (tmp_path / "cartpole.py").read_text()
    shorter = 'train_for_frames=3000, mode="serial", figures=False'
    (tmp_path / "cartpole.py").write_text(text.replace("train_for_frames=100_000", shorter))
    done = subprocess.run(
        [sys.executable, "cartpole.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"frames: \d+", done.stdout.splitlines()[-1])


def commands():
    return [line.split("#")[0].split() for line in README.splitlines() if line.startswith("pbt-rl train ")]


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_the_quick_start_commands_are_understood(command):
    config, _ = parse_train(command[2:])
    assert config.env == command[command.index("--env") + 1]


def test_the_options_of_the_table_exist(capsys):
    with pytest.raises(SystemExit):
        parse_train(["--env", "toy/identity", "--help-all"])
    known = set(re.findall(r"--[a-z][a-z.-]*", capsys.readouterr().out))
    table = [line.split("|")[1] for line in README.splitlines() if line.startswith("| `--")]
    named = {option for cell in table for option in re.findall(r"--[a-z][a-z.-]*", cell)}
    assert len(named) > 10
    assert not {option for option in named if not any(k.startswith(option) for k in known)}


def test_files_that_are_named_exist():
    folders = re.findall(r"`([a-z_/]+/)`", README.split("| folder | holds |")[1].split("\n\n")[0])
    assert {"envs/", "algos/", "pbt_rl/wire/", "pbt_rl/tune/"} <= set(folders)
    for name in folders:
        assert (ROOT / name).is_dir(), name


LINKING = ("README.md", "CONTRIBUTING.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")))


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


def test_the_table_of_rooms_is_the_one_that_is_checked():
    sys.path.insert(0, str(ROOT / "scripts"))
    import rooms

    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\| `(\w+)` \| [^|]* \| ([^|]*) \|$", text, re.MULTILINE)
    shown = {room: {*allowed.split(", ")} - {"nothing"} for room, allowed in lines}
    assert shown == {room: {*allowed} for room, allowed in rooms.MAY_IMPORT.items()}
