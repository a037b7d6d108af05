"""The code for a GPU, on a pretend device: call by call as the CPU, and recorded bit for bit as call by call."""

import numpy as np
import pytest
import torch

from pbt_rl.learner.cuda import recording
from tests.helpers.driven import FRAMES, GAUSSIAN, DrivenLearner
from tests.helpers.pretend import DEVICE, PretendRecorder, pretend_device

IMAGES = {"obs": FRAMES, "num_policies": 2, "envs_per_vector_env": 8}
KINDS = {
    "loop": {"packing": "loop"},
    "vmap, gae, rate by divergence, uneven parts": {
        "packing": "vmap",
        "returns": "gae",
        "lr_schedule": "kl-adaptive",
        "mode": "sync",
        "lr_schedule_kl": 1e-4,
        "minibatches": 3,
        "batch": 60,
        "rollout": 5,
    },
    "memory, linear rate, normalised": {
        "packing": "vmap",
        "core": "gru",
        "lr_schedule": "linear",
        "train_for_frames": 2000,
        "normalize_observations": True,
    },
    "images, v-trace": {"packing": "vmap", "returns": "vtrace", **IMAGES},
    "images on streams": {"packing": "streams", **IMAGES},
    "images normalised": {"packing": "bmm", "normalize_images": True, **IMAGES},
    "bent into bounds": {
        "env": "gym/Pendulum-v1",
        "packing": "vmap",
        "action": GAUSSIAN,
        "action_bounds": "tanh",
    },
    "continuous, alone": {"packing": "vmap", "num_policies": 1, "action": GAUSSIAN},
    "a3c": {"packing": "vmap", "algo": "a3c"},
    "turns": {"packing": "vmap", "num_policies": 4, "slots": 3},
    "unreal": {
        "env": "toy/treasure",
        "packing": "loop",
        "algo": "unreal",
        **IMAGES,
        "envs_per_vector_env": 4,
    },
    "fun": {"packing": "vmap", "algo": "fun", "num_policies": 2, "envs_per_vector_env": 4, "rollout": 12},
}
LONG = {"continuous, alone", "unreal", "fun"}
EACH = [pytest.param(k, id=name, marks=[pytest.mark.long] * (name in LONG)) for name, k in KINDS.items()]


def run(where, kind, recorder=None):
    """Learn, change values, weights and a slot's member, and learn on: actions, states, counts, statistics."""
    with DrivenLearner(device=where, **kind) as driven:
        driven.batches(2)
        recorded = [] if recorder is None else list(recorder.recorded)
        driven.edit(0, "keep", gamma=0.5, entropy_coef=0.3, unroll=4.0, learning_rate=3e-3)
        slots = driven.plan.slots
        if slots > 1:
            assert driven.edit(1, donor=0, learning_rate=1e-2).donor_unchanged
            driven.hand_over(slots - 1, leaves=slots - 1, enters=3 if "slots" in kind else None)
        driven.batches(1)
        if recorder is not None:
            assert recorded, "nothing was recorded"
            assert recorder.recorded == recorded, "a change of a member records nothing anew"
        counts = driven.learner.shared.learning
        means = [counts.take_means(index) for index in range(len(driven.plan.members))]
        return driven.actions, [driven.state(p) for p in range(slots)], (counts.updates, counts.steps), means


@pytest.mark.parametrize("kind", EACH)
def test_a_device_acts_and_learns_as_the_cpu_does_and_replays_the_same_bits(kind, monkeypatch):
    actions, states, counts, means = run("cpu", kind)
    with pretend_device():
        theirs, their_states, their_counts, their_means = run("pretend:0", kind)
    assert len(actions) > 10
    for mine, other in zip(actions, theirs, strict=True):
        np.testing.assert_allclose(other, mine, rtol=0, atol=1e-5 if "action" in kind else 0)
    for mine, other in zip(states, their_states, strict=True):
        for name, part in mine.items():
            torch.testing.assert_close(other[name], part, rtol=1e-5, atol=1e-5, msg=name)
    assert their_counts == counts
    for mine, other in zip(means, their_means, strict=True):
        assert other == pytest.approx(mine, rel=1e-3, abs=1e-4)
    with pretend_device() as device:
        recorder = PretendRecorder(device)
        monkeypatch.setitem(recording.RECORDERS, "pretend", lambda _: recorder)
        again, replayed, _, replayed_means = run("pretend:0", kind, recorder)
    for mine, other in zip(theirs, again, strict=True):
        np.testing.assert_array_equal(other, mine)
    for mine, other in zip(their_states, replayed, strict=True):
        assert all(torch.equal(part, other[name]) for name, part in mine.items())
    assert replayed_means == their_means


def test_the_pretend_device_counts_what_a_gpu_would_do(device):
    x = torch.zeros(4, device=DEVICE)
    device.counts.reset()
    y = (x + 1).view(2, 2)
    assert device.counts.totals == {"launch": 1, "upload": 0, "download": 0, "sync": 0}
    assert float(y.sum()) == 4.0
    y.copy_(torch.ones(2, 2), non_blocking=True)
    assert device.counts.totals == {"launch": 2, "upload": 1, "download": 1, "sync": 1}
    y.copy_(torch.ones(2, 2))
    assert device.counts.total("sync") == 2
    with pytest.raises(RuntimeError, match="one device"):
        y + torch.ones(2, 2)
