"""The bench: every stage can be measured alone."""

import importlib.util
import sys

import pytest
import torch

from tests.helpers.runs import ROOT

SPEC = importlib.util.spec_from_file_location("bench", ROOT / "scripts" / "bench.py")
bench = importlib.util.module_from_spec(SPEC)
sys.modules["bench"] = bench
SPEC.loader.exec_module(bench)


@pytest.mark.parametrize("stage", bench.STAGES)
def test_a_stage_is_measured_alone(stage):
    threads = torch.get_num_threads()
    microseconds = bench.measure_stage(stage, "gym/CartPole-v1", 2, 0.3)
    torch.set_num_threads(threads)
    assert 0.5 < microseconds < 5000
