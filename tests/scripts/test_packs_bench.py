"""The table of populations: when a run is measured, and what is not measured twice."""

import importlib
import json
import sys
from types import SimpleNamespace

import pytest

from tests.helpers.runs import ROOT


@pytest.fixture
def packs(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts" / "lab"))
    return importlib.import_module("packs_bench")


def follow(packs, monkeypatch, actors_mib, seconds=10.0):
    """Show a watcher a report a second, of 100 frames/s from second 3 on; returns (second of the end, figures)."""
    now = 0.0
    monkeypatch.setattr(packs.time, "time", lambda: now)
    monkeypatch.setattr(
        packs, "megabytes", lambda _pid: {"all": 900.0, "learner": 500.0, "actor": actors_mib(now)}
    )
    watcher = packs.Watcher(seconds, began=0.0)
    for second in range(400):
        now = float(second)
        frames = max(0, 100 * (second - 2))
        members = [SimpleNamespace(frames=frames // 4), SimpleNamespace(frames=3 * frames // 4)]
        view = SimpleNamespace(frames=frames, members=members, discarded_rollouts=2)
        if watcher.see(view) is not None:
            last = SimpleNamespace(frames=10**9, members=members, discarded_rollouts=9)
            assert watcher.see(last) is None, "the processes have ended"
            return second, watcher.figures
    raise AssertionError("it never ends")


def test_a_run_is_measured_from_the_moment_when_its_actors_grow_no_more(packs, monkeypatch):
    end, figures = follow(packs, monkeypatch, lambda now: min(10 * now, 200.0))
    assert figures["first frames s"] == 3
    assert 20 <= figures["whole s"] <= 20 + packs.STILL_SECONDS
    assert end == figures["whole s"] + 10
    assert figures["frames/s"] == pytest.approx(100)
    assert (figures["memory MiB"], figures["learner MiB"], figures["discarded"]) == (900, 500, 2)
    assert figures["even"] == pytest.approx(1 / 3, abs=0.01)


def test_a_run_that_never_stands_still_ends_without_a_speed(packs, monkeypatch):
    end, figures = follow(packs, monkeypatch, lambda now: 10 * now)
    assert end == packs.LONGEST_SECONDS + 1
    assert "frames/s" not in figures
    assert figures["memory MiB"] == 900


def test_what_the_file_holds_is_not_measured_again(packs, monkeypatch, tmp_path, capsys):
    measured = []

    def measure(env, policies, seconds):
        measured.append((env, policies, seconds))
        if len(measured) == 2:
            raise RuntimeError("the machine was needed")
        return {"frames/s": 1234.0, "even": 0.97}

    monkeypatch.setattr(packs, "measure", measure)
    file = tmp_path / "packs.json"
    monkeypatch.setattr(sys, "argv", ["packs_bench.py", "--policies", "4,40", "--json", str(file)])
    with pytest.raises(RuntimeError):
        packs.main()
    packs.main()
    assert [policies for _, policies, _ in measured] == [4, 40, 40]
    assert json.loads(file.read_text()).keys() == {"4", "40"}
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[0] for line in lines[-2:]] == ["| 4", "| 40"]
    assert "1,234" in lines[-1]
