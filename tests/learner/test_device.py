"""The code for a GPU, on a pretend device: the same actions and weights as on the CPU."""

import contextlib

import numpy as np
import pytest
import torch

from tests.helpers.driven import FRAMES, GAUSSIAN, DrivenLearner
from tests.helpers.pretend import DEVICE, pretend_device

KINDS = {
    "loop": {"packing": "loop"},
    "vmap": {"packing": "vmap"},
    "images, loop": {"packing": "loop", "obs": FRAMES},
    "images, vmap, v-trace": {"packing": "vmap", "obs": FRAMES, "returns": "vtrace"},
    "images normalised": {"packing": "bmm", "obs": FRAMES, "normalize_images": True},
    "memory": {"packing": "vmap", "core": "gru"},
    "gae, kept advantages, rate by divergence": {
        "packing": "loop",
        "returns": "gae",
        "lr_schedule": "kl-adaptive",
        "mode": "sync",
        "lr_schedule_kl": 1e-4,
    },
    "observations normalised, linear rate": {
        "packing": "vmap",
        "normalize_observations": True,
        "lr_schedule": "linear",
        "train_for_frames": 2000,
    },
    "a3c": {"packing": "loop", "algo": "a3c"},
    "continuous actions, alone": {"packing": "vmap", "num_policies": 1, "action": GAUSSIAN},
    "turns": {"packing": "vmap", "num_policies": 4, "slots": 3},
    "sync": {"packing": "loop", "mode": "sync", "minibatches": 1},
}


def run(device, kind):
    """Learn, change members and learn on; returns actions, states, counts and statistics."""
    with DrivenLearner(device=device, **kind) as driven:
        slots = driven.plan.slots
        driven.batches(2)
        if slots > 1:
            applied = driven.edit(1, donor=0, learning_rate=1e-3, gamma=0.9)
            assert applied.donor_unchanged
        if "slots" in kind:
            driven.hand_over(2, leaves=2, enters=3)
        driven.batches(1)
        counts = driven.learner.shared.learning
        means = [counts.take_means(index) for index in range(len(driven.plan.members))]
        return driven.actions, [driven.state(p) for p in range(slots)], (counts.updates, counts.steps), means


SLOW = {"images, loop", "continuous actions, alone", "sync"}
"""Not in the default run: what they add is little."""


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(
            kind,
            id=name,
            marks=[pytest.mark.slow] * (name in SLOW),
        )
        for name, kind in KINDS.items()
    ],
)
def test_a_device_acts_and_learns_as_the_cpu_does(kind):
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


def test_the_pretend_device_counts_what_a_gpu_would_do():
    with pretend_device() as device:
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


def test_gradients_on_the_pretend_device_are_those_of_the_cpu():
    def gradient(device):
        x = torch.arange(3.0, device=device, requires_grad=True)
        (x.sin() * 2).sum().backward()
        return x.grad.cpu()

    with contextlib.ExitStack() as stack:
        expected = gradient("cpu")
        stack.enter_context(pretend_device())
        torch.testing.assert_close(gradient("pretend:0"), expected)
