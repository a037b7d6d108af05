"""`make demo`: it ends once something was shown, and says so; options of the user's own reach both parts."""

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from pbt_rl.run.callbacks import Stop

SCRIPT = Path(__file__).parents[2] / "scripts" / "demo.py"
spec = importlib.util.spec_from_file_location("demo", SCRIPT)
demo = importlib.util.module_from_spec(spec)
sys.modules["demo"] = demo
spec.loader.exec_module(demo)

CARTPOLE = demo.PARTS[0]


def view(*objectives, complete=True):
    return SimpleNamespace(members=[SimpleNamespace(objective=one, complete=complete) for one in objectives])


def test_a_part_ends_once_a_member_is_far_enough_and_members_were_compared():
    watch = demo.Watch(CARTPOLE)
    assert watch.on_report(view(None, 500.0)) is None, "nothing was compared"
    for _ in range(demo.COMPARISONS):
        watch.on_decision(None, [])
    assert watch.on_report(view(None, None)) is None
    assert watch.on_report(view(400.0, 22.0)) is None
    assert watch.on_report(view(500.0, complete=False)) is None, "too few episodes"
    assert isinstance(watch.on_report(view(None, 500.0)), Stop)


@pytest.mark.parametrize("words", [["--name", "x"], ["--name=x"]])
def test_a_name_of_the_users_own_names_both_runs(words):
    names = [demo.named(part, [*words, "--seed", "3"]) for part in demo.PARTS]
    joined = [" ".join(one).replace("=", " ") for one in names]
    assert joined == ["--name x-cartpole --seed 3", "--name x --seed 3"]


@pytest.mark.long
def test_the_first_part_shows_replacements_and_ends_by_itself(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(demo, "PARTS", (replace(CARTPOLE, goal=60),))
    monkeypatch.setattr(sys, "argv", ["demo.py", "--out", str(tmp_path), "--no-figures", "--name", "x"])
    assert demo.main() == 0
    out = capsys.readouterr().out
    assert "replaced" in out
    assert f"tensorboard --logdir {tmp_path}" in out


def test_bad_options_end_with_one_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["demo.py", "--num-polices", "3"])
    assert demo.main() == 2
    assert "--num-polices" in capsys.readouterr().err
