"""The bench of the sampling share: it steps what it says, alone and through an actor, and leaves nothing behind."""

import importlib.util
import os
import sys
from pathlib import Path

import psutil
import pytest

from tests.helpers.dmlab_module import REAL
from tests.helpers.runs import command_of

SCRIPT = Path(__file__).parent.parent.parent / "scripts" / "lab" / "sampling_bench.py"
SPEC = importlib.util.spec_from_file_location("sampling_bench", SCRIPT)
bench = importlib.util.module_from_spec(SPEC)
sys.modules["sampling_bench"] = bench
SPEC.loader.exec_module(bench)
LAB = "dmlab/rooms_collect_good_objects"


@pytest.mark.parametrize("env", ["toy/identity", "sampling_bench:Drift"])
def test_both_ways_are_measured(env, monkeypatch):
    monkeypatch.setattr(bench, "WARM_UP_SECONDS", 0.1)
    monkeypatch.setenv("PYTHONPATH", f"{SCRIPT.parent}:{SCRIPT.parent.parent}")
    for measured in (bench.alone(env, 0.3), bench.sampled(env, 0.3)):
        rate, per_cpu_second = measured
        assert rate > 500
        assert per_cpu_second > rate / 4, "two busy processes at most, each on one core"
    assert not [child for child in psutil.Process().children() if "pbt_rl.actors.actor" in command_of(child)]


@pytest.mark.long
def test_lab_is_compared_with_the_module_as_it_is(monkeypatch, capsys, tmp_path):
    """In this process: the measurements themselves are as in processes of their own."""
    assert LAB in bench.FAMILIES
    monkeypatch.setattr(sys, "path", [*sys.path])
    paths = [str(SCRIPT.parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(bench, "WARM_UP_SECONDS", 0.1)
    measures = {"alone": bench.alone, "lab": bench.raw_lab, "sampled": bench.sampled}
    monkeypatch.setattr(bench, "_apart", lambda what, env, seconds: measures[what](env, seconds))
    figures = bench.compare((LAB,), 0.3, 1)[LAB]
    if not REAL:
        assert "is not installed" in capsys.readouterr().out
        del sys.modules["deepmind_lab"]
    assert figures["alone_frames_per_second"] > figures["sampled_frames_per_second"] / 2 > 10
