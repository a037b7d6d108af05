"""The bench of the sampling share: it steps what it says, alone and through an actor, and leaves nothing behind."""

import importlib.util
import sys
from pathlib import Path

import psutil
import pytest

SCRIPT = Path(__file__).parent.parent.parent / "scripts" / "sampling_bench.py"
SPEC = importlib.util.spec_from_file_location("sampling_bench", SCRIPT)
bench = importlib.util.module_from_spec(SPEC)
sys.modules["sampling_bench"] = bench
SPEC.loader.exec_module(bench)


@pytest.mark.parametrize("env", ["toy/identity", "sampling_bench:Drift"])
def test_both_ways_are_measured(env, monkeypatch):
    monkeypatch.setattr(bench, "WARM_UP_SECONDS", 0.1)
    monkeypatch.setenv("PYTHONPATH", f"{SCRIPT.parent}:{SCRIPT.parent.parent}")
    for measured in (bench.alone(env, 0.3), bench.sampled(env, 0.3)):
        rate, per_cpu_second = measured
        assert rate > 500
        assert per_cpu_second > rate / 4, "two busy processes at most, each on one core"
    assert not [child for child in psutil.Process().children() if "pbt_rl.wire.actor" in child.cmdline()]
