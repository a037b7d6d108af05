"""`scripts/lab/reproduce_agents.py` and the rows that `reproduce.py` keeps: what is there is not run again."""

import math
import sys
import time
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts" / "lab"
sys.path.insert(0, str(SCRIPTS))

import reproduce_agents  # noqa: E402
import reproduce_proof  # noqa: E402
import reproduce_rl  # noqa: E402
from reproduce_arms import EXPERIMENTS, Experiment  # noqa: E402
from reproduce_fresh import Fresh  # noqa: E402
from reproduce_judged import Judged, append_judged, picked, read_judged  # noqa: E402
from reproduce_runs import whole  # noqa: E402
from results_rows import append_rows  # noqa: E402

TINY = Experiment("x", 3000, 1, ("--env", "toy/identity"), {"one": (), "two": ()})
ONE_RUN = Judged(Fresh({0: 1.5, 1: 2.5}, 1), frozenset({0}), 300)


@pytest.mark.long
def test_a_run_that_was_stopped_goes_on_and_is_judged_at_each_tenth(tmp_path):
    assert not reproduce_agents.trained(TINY, "one", 0, tmp_path, time.monotonic())
    assert reproduce_agents.trained(TINY, "one", 0, tmp_path, math.inf)
    assert whole(tmp_path / "one-0")
    rows = reproduce_agents.judge(TINY, tmp_path / "one-0", "one", 0)
    assert len(rows) > 3
    assert [row[:2] for row in rows] == [("one", 0)] * len(rows)
    assert [row[2] for row in rows] == sorted({row[2] for row in rows})
    assert rows[-1][2:4] == (3000, 100)
    assert float(rows[-1][4]) > 2  # of 16; a random policy earns 4


def test_curves_are_read_as_they_were_written_and_compared_by_seed(tmp_path, capsys):
    path = tmp_path / "x.csv"
    for arm, seed, score in [("one", 0, 3), ("one", 1, 5), ("two", 1, 1), ("two", 0, 1)]:
        rows = [(arm, seed, 10, 20, 0), (arm, seed, 20, 100, score)]
        append_rows(path, reproduce_agents.COLUMNS, rows)
    curves = reproduce_agents.read_curves(path)
    assert curves["one"][1] == [(10, 0.0), (20, 5.0)]
    curves["one"][1].insert(1, (17, 100.0))  # where it was interrupted: no tenth
    reproduce_agents.table(curves, ["two", "one", "three"], 10)
    shown = capsys.readouterr().out
    assert "2 seeds: 4 (3, 5)" in shown
    assert "two - one: -3 +- 12.7" in shown  # 12.706 * sqrt(2) / sqrt(2)
    assert "mean at each tenth: 0.00, 4.00" in shown
    assert "2 seeds: 2 (1.5, 2.5)" in shown
    assert "two - one: -1.5 +- 6.35" in shown
    reproduce_agents.picture(tmp_path / "x.png", "x", curves)
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


def test_arms_have_folders_of_their_own():
    for experiment in EXPERIMENTS.values():
        names = {reproduce_agents.folder_name(arm, seed) for arm in experiment.arms for seed in range(20)}
        assert len(names) == 20 * len(experiment.arms)
        assert not any(name.startswith("-") or set(name) & set(" ,/?") for name in names)


def test_a_kept_run_is_not_made_again(tmp_path, monkeypatch):
    append_judged(tmp_path / "x.csv", "a", 0, ONE_RUN)
    made = []

    def judged(_folder, name, _seed, *own):
        made.append((name, own))
        return Judged(Fresh({0: 7.0}, 0), frozenset(), 100)

    monkeypatch.setattr(reproduce_rl, "judged", judged)
    runs = reproduce_rl.populations("x", {"a": ("--a",), "b": ("--b",)}, 2, tmp_path)
    assert made == [("b-0", ("--b",)), ("a-1", ("--a",)), ("b-1", ("--b",))]
    assert runs["a"][0] == ONE_RUN == read_judged(tmp_path / "x.csv")["a", 0]
    assert picked(runs["a"]) == [2.5, 7.0]


def test_values_in_force_are_those_at_the_start_and_those_that_were_decided_in_time():
    events = [
        {"event": "initial", "frames": 0, "values": [{"x": 1.0}, {"x": 2.0}]},
        {"event": "round", "frames": 10, "decisions": [{"values": {"x": 3.0}}, {}]},
        {"event": "round", "frames": 20, "decisions": [{"values": {"x": 4.0}}]},
        {"event": "end", "frames": 25},
    ]
    certain, possible = reproduce_proof.in_force(events, last=15)
    assert certain["x"] == {1.0, 2.0, 3.0}
    assert possible["x"] == {1.0, 2.0, 3.0, 4.0}
