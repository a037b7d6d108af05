"""A GPU's memory: what is estimated before a run against what a learner takes on the pretend device."""

import pytest

from pbt_rl.envs.base import ArraySpec
from pbt_rl.run.memory_check import pack_bytes
from tests.helpers.driven import DrivenLearner
from tests.helpers.pretend import DEVICE, PretendRecorder, pretend_device

recording = pytest.importorskip("pbt_rl.learner.cuda.recording")
streams = pytest.importorskip("pbt_rl.learner.cuda.streams")
PIXELS = {"obs": ArraySpec((84, 84), "uint8")}
LARGE = {"num_policies": 4, "hidden": 256, "layers": 2, "batch": 192}
IMAGES = {"obs": PIXELS, "num_policies": 2, "hidden": 128, "envs_per_unit": 8, "batch": 96}
KINDS = {
    "vmap": {"packing": "vmap", **LARGE},
    "loop": {"packing": "loop", **LARGE},
    "memory": {"packing": "vmap", "core": "gru", "core_size": 128, **LARGE},
    "images by products": {"packing": "bmm", **IMAGES},
    "images one by one": {"packing": "loop", **IMAGES},
    "replay": {"env": "toy/treasure", "packing": "loop", "algo": "unreal", **IMAGES, "batch": 48},
}
LONG = {"images one by one", "replay", "memory"}


@pytest.mark.parametrize(
    "kind", [pytest.param(k, id=name, marks=[pytest.mark.long] * (name in LONG)) for name, k in KINDS.items()]
)
def test_the_estimate_is_what_a_learner_takes_and_it_takes_it_at_its_start(kind, monkeypatch):
    from tests.helpers.order import Order, PretendStreams

    with pretend_device() as device:
        recorder = PretendRecorder(device)
        monkeypatch.setitem(recording.RECORDERS, DEVICE.type, lambda _: recorder)
        monkeypatch.setitem(streams.SEPARATE, DEVICE.type, lambda _: PretendStreams(Order()))
        with DrivenLearner(device=str(DEVICE), **kind) as driven:
            at_start = device.memory.most
            driven.batches(1)
            driven.edit(1, donor=0)
            setup = driven.learner._setup
            needed = pack_bytes(setup.config, setup.spec, setup.plan)
            estimated = needed.sampled + needed.weights + needed.update
            assert estimated == pytest.approx(device.memory.most, rel=0.2)
            assert device.memory.most <= 1.02 * at_start, "nothing later takes more than the start"
