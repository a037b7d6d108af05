"""Optimiser steps that are recorded once and replayed: the same bits as call by call, and what the host pays."""

import warnings

import pytest
import torch

from pbt_rl.learner.cuda import recording
from tests.helpers.driven import FRAMES, GAUSSIAN, DrivenLearner
from tests.helpers.pretend import PretendRecorder, pretend_device

KINDS = {
    "loop": {"packing": "loop"},
    "vmap, divergence, uneven parts": {
        "packing": "vmap",
        "returns": "gae",
        "lr_schedule": "kl-adaptive",
        "mode": "sync",
        "lr_schedule_kl": 1e-4,
        "minibatches": 3,
        "batch": 60,
        "rollout": 5,
        "normalize_observations": True,
    },
    "memory, linear rate, v-trace": {
        "packing": "vmap",
        "core": "gru",
        "lr_schedule": "linear",
        "train_for_frames": 2000,
    },
    "images": {"packing": "loop", "obs": FRAMES, "num_policies": 2, "envs_per_unit": 8},
    "images normalised": {
        "packing": "bmm",
        "obs": FRAMES,
        "num_policies": 2,
        "envs_per_unit": 8,
        "normalize_images": True,
    },
    "bent into bounds": {
        "env": "gym/Pendulum-v1",
        "packing": "vmap",
        "action": GAUSSIAN,
        "action_bounds": "tanh",
    },
    "a3c": {"packing": "vmap", "algo": "a3c"},
    "unreal": {
        "env": "toy/treasure",
        "packing": "loop",
        "algo": "unreal",
        "obs": FRAMES,
        "num_policies": 2,
        "envs_per_unit": 4,
    },
    "fun": {"packing": "vmap", "algo": "fun", "num_policies": 2, "envs_per_unit": 4, "rollout": 12},
}


@pytest.fixture
def device():
    with pretend_device() as device:
        yield device


def recorder_on(device, monkeypatch):
    recorder = PretendRecorder(device)
    monkeypatch.setitem(recording.RECORDERS, "pretend", lambda _: recorder)
    return recorder


def run(kind, recorder=None):
    """Learn; change values, weights and a slot's holder; learn on. Returns states and the statistics of members."""
    with DrivenLearner(device="pretend:0", epochs=2, **kind) as driven:
        driven.batches(3 if "algo" in kind else 2)  # three steps of each size at least
        recorded = [] if recorder is None else list(recorder.recorded)
        driven.edit(0, "keep", gamma=0.5, entropy_coef=0.3, unroll=4.0, learning_rate=3e-3)
        driven.batches(1)
        driven.edit(1, donor=0, learning_rate=1e-2)
        last = driven.plan.slots - 1
        driven.hand_over(last, leaves=last, enters=None)
        driven.batches(1)
        if recorder is not None:
            assert recorder.recorded == recorded, "a change of a member records nothing anew"
            assert recorded, "nothing was recorded"
        counts = driven.learner.shared.learning
        means = [counts.take_means(index) for index in range(driven.plan.slots)]
        return [driven.state(p) for p in range(driven.plan.slots)], means


SLOW = {"memory, linear rate, v-trace", "a3c", "unreal", "fun"}


@pytest.mark.parametrize(
    "kind",
    [pytest.param(k, id=name, marks=[pytest.mark.slow] * (name in SLOW)) for name, k in KINDS.items()],
)
def test_replayed_steps_give_the_same_bits_whatever_changes_meanwhile(kind, device, monkeypatch):
    states, means = run(kind)
    replayed, their_means = run(kind, recorder_on(device, monkeypatch))
    for mine, other in zip(states, replayed, strict=True):
        for name, part in mine.items():
            assert torch.equal(part, other[name]), name
    assert their_means == means


@pytest.mark.parametrize("packing", ["loop", "vmap"])
def test_a_replayed_step_is_one_call_and_waits_for_nothing(packing, device, monkeypatch):
    recorder_on(device, monkeypatch)
    with DrivenLearner(device="pretend:0", packing=packing, epochs=2) as driven:
        driven.batches(2)
        driven.fill()
        trainer, costs = driven.learner.trainer, []

        def publish(_slots):
            """In place of the pack's: what lies between two of these is a step."""
            costs.append(device.counts.totals)
            device.counts.reset()

        monkeypatch.setattr(driven.learner.pack, "publish", publish)
        device.counts.reset()
        trainer.learn()
    steps_of_a_slot = 2 * 2
    cost = {"launch": 1, "upload": 0, "download": 0, "sync": 0}
    later = [c for i, c in enumerate(costs) if i % steps_of_a_slot]
    assert later == [cost] * len(later)
    assert len(costs) == steps_of_a_slot * (3 if packing == "loop" else 1)
    assert all(c["sync"] == 0 for c in costs), "nor does the batch wait before it ends"


def test_a_step_that_cannot_be_recorded_goes_call_by_call(device, monkeypatch):
    class Waiting(torch.nn.Module):
        """An encoder that looks at a value."""

        size = 16

        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 16)

        def forward(self, obs):
            x = self.layer(obs["obs"][..., :4])
            return x if bool(x.sum() > 0) else x * 1.5

    monkeypatch.setattr("tests.helpers.toys.made_up_encoder", lambda _: Waiting(), raising=False)
    kind = {"packing": "loop", "encoder": "tests.helpers.toys:made_up_encoder"}
    states, _ = run(kind)
    recorder = recorder_on(device, monkeypatch)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with DrivenLearner(device="pretend:0", epochs=2, **kind) as driven:
            driven.batches(2)
            driven.edit(0, "keep", gamma=0.5, entropy_coef=0.3, unroll=4.0, learning_rate=3e-3)
            driven.batches(1)
            driven.edit(1, donor=0, learning_rate=1e-2)
            driven.hand_over(2, leaves=2, enters=None)
            driven.batches(1)
            other = [driven.state(p) for p in range(3)]
    assert recorder.recorded == []
    assert any("not recorded" in str(w.message) and "captur" in str(w.message) for w in said)
    for mine, theirs in zip(states, other, strict=True):
        assert all(torch.equal(part, theirs[name]) for name, part in mine.items())


@pytest.mark.parametrize("packing", ["loop", "vmap"])
def test_an_edit_waits_for_the_device_four_times_at_most(packing, device):
    with DrivenLearner(device="pretend:0", packing=packing) as driven:
        driven.batches(1)
        for weights, donor in (("copy", 0), ("fresh", None), ("keep", None)):
            device.counts.reset()
            assert driven.edit(1, weights, donor).donor_unchanged
            assert device.counts.total("sync") <= 4, device.counts.listing("sync")
        device.counts.reset()
        driven.hand_over(2, leaves=2, enters=None)
        driven.hand_over(2, leaves=None, enters=2)
        assert device.counts.total("sync") <= 4, device.counts.listing("sync")
