"""The bench: every stage can be measured alone."""

import importlib
import sys

import pytest
import torch

from tests.helpers.fake_actor import ENVS, Bench
from tests.helpers.runs import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
bench = importlib.import_module("bench")
sys.path.remove(str(ROOT / "scripts"))


@pytest.mark.parametrize("stage", bench.STAGES)
def test_a_stage_is_measured_alone(stage):
    threads = torch.get_num_threads()
    microseconds = bench.measure_stage(stage, "gym/CartPole-v1", 2, 0.3)
    torch.set_num_threads(threads)
    assert 0.5 < microseconds < 5000


def test_inference_is_measured_with_a_unit_of_every_actor():
    with Bench(units=4, on_policy=False, spare=4) as stand:
        step = bench.inference_turn(stand.sampler, stand.shared, 2)
        assert [step() for _ in range(10)] == [2 * 2 * ENVS] * 10, "two of four units; also as rollouts end"
        assert [unit.taken for unit in stand.sampler.units] == [2, 0, 2, 0]
