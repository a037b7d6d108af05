"""Turns that are recorded once and replayed: every step in its place, and what the host pays."""

import numpy as np
import pytest
import torch

from tests.helpers.driven import FRAMES, DrivenLearner

UNITS = {"actors": 4, "envs_per_unit": 6, "batch": 48}


def turn(driven, units):
    """Let these units take a step and be served."""
    for number in units:
        assert driven.actors[number].advance()
    assert driven.learner.sampler.serve()


def give_back(driven):
    """Let full rollouts be filled again."""
    shared = driven.learner.shared
    while shared.full:
        shared.free.append(shared.full.popleft())


@pytest.mark.parametrize(
    "obs", [pytest.param({}, marks=pytest.mark.long), {"obs": FRAMES}], ids=["vectors", "images"]
)
def test_every_step_is_in_its_place_however_many_units_a_turn_has(recorder, obs):
    with DrivenLearner(device="pretend:0", packing="vmap", **UNITS, **obs) as driven:
        sampler = driven.learner.sampler
        seen = [[] for _ in sampler.units]
        turn(driven, range(4))
        for units in [[2], [0, 3], [1, 2, 3], [0, 1, 2, 3], [3]] * 3:
            for number in units:
                assert driven.actors[number].advance()
                seen[number].append(driven.actors[number]._box.step.obs["obs"].copy())
            driven.learner.sampler.serve()
            for number in units:
                unit = sampler.units[number]
                at = unit.t - 1 + unit.rollout.layouts["obs"].history
                kept = unit.rollout.obs["obs"].cpu().numpy()[at]
                np.testing.assert_array_equal(kept, seen[number][-1])
                drawn = unit.rollout.action.cpu().numpy()[unit.t - 1]
                np.testing.assert_array_equal(unit.box.action, drawn)
                assert torch.isfinite(unit.rollout.value.cpu()[: unit.t]).all()
                assert torch.isfinite(unit.rollout.log_prob.cpu()[: unit.t]).all()
            while driven.learner.shared.full:
                full = driven.learner.shared.full.popleft()
                assert torch.isfinite(full.value.cpu()).all()
                driven.learner.shared.free.append(full)
    assert len(recorder.recorded) == 4, "of one, two and four units, and an optimiser step, all at the start"


def test_a_turn_is_a_few_calls_and_one_wait(recorder, device):
    with DrivenLearner(device="pretend:0", packing="loop", core="gru", **UNITS) as driven:
        for _ in range(4):
            for units in ([0], [0, 1], range(4)):
                turn(driven, units)
                give_back(driven)
        costs = {}
        for units in ([2], [2, 3], [1, 2, 3], range(4)):
            t = [unit.t for unit in driven.learner.sampler.units]
            device.counts.reset()
            turn(driven, units)
            calls = sum(device.counts.total(kind) for kind in ("launch", "upload", "download"))
            costs[tuple(units)] = calls
            assert device.counts.total("sync") == 1, device.counts.listing("sync")
            assert calls <= 12 + 3 * len(units), t
        assert costs[(2,)] <= 4


@pytest.mark.usefixtures("recorder")
def test_every_turn_takes_what_was_published_before_it():
    with DrivenLearner(device="pretend:0", packing="vmap", **UNITS) as driven:
        pack, taken = driven.learner.pack, []
        pack.take_published = lambda: taken.append(None)
        for _ in range(5):
            turn(driven, [1, 2])
        assert driven.learner.sampler.replays.replayed == 4, "all but the first, in which the units begin"
    assert len(taken) == 5, "in replayed turns, too"
