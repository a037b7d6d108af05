"""What the host pays for optimiser steps that are recorded once and replayed, and for edits."""

import pytest

from tests.helpers.driven import DrivenLearner


@pytest.mark.parametrize("packing", ["loop", "vmap"])
@pytest.mark.usefixtures("recorder")
def test_a_replayed_step_is_one_call_and_waits_for_nothing(packing, device, monkeypatch):
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
