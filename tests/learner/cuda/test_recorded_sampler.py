"""Turns that are recorded once and replayed: every step in its place, and what the host pays."""

import numpy as np
import pytest
import torch

from tests.helpers.driven import FRAMES, DrivenLearner

VECTOR_ENVS = {"actors": 4, "envs_per_vector_env": 6, "batch": 48}


def batch(driven, vector_envs):
    """Let these vector envs take a step and be served."""
    for number in vector_envs:
        assert driven.actors[number].advance()
    assert driven.learner.sampler.run_inference()


def give_back(driven):
    """Let full rollouts be filled again."""
    shared = driven.learner.shared
    while shared.full:
        shared.free.append(shared.full.popleft())


@pytest.mark.parametrize(
    "obs", [pytest.param({}, marks=pytest.mark.long), {"obs": FRAMES}], ids=["vectors", "images"]
)
def test_every_step_is_in_its_place_however_many_vector_envs_a_turn_has(recorder, obs):
    with DrivenLearner(device="pretend:0", packing="vmap", **VECTOR_ENVS, **obs) as driven:
        sampler = driven.learner.sampler
        seen = [[] for _ in sampler.vector_envs]
        batch(driven, range(4))
        for vector_envs in [[2], [0, 3], [1, 2, 3], [0, 1, 2, 3], [3]] * 3:
            for number in vector_envs:
                assert driven.actors[number].advance()
                seen[number].append(driven.actors[number]._box.step.obs["obs"].copy())
            driven.learner.sampler.run_inference()
            for number in vector_envs:
                vector_env = sampler.vector_envs[number]
                at = vector_env.t - 1 + vector_env.rollout.layouts["obs"].history
                kept = vector_env.rollout.obs["obs"].cpu().numpy()[at]
                np.testing.assert_array_equal(kept, seen[number][-1])
                drawn = vector_env.rollout.action.cpu().numpy()[vector_env.t - 1]
                np.testing.assert_array_equal(vector_env.box.action, drawn)
                assert torch.isfinite(vector_env.rollout.value.cpu()[: vector_env.t]).all()
                assert torch.isfinite(vector_env.rollout.log_prob.cpu()[: vector_env.t]).all()
            while driven.learner.shared.full:
                full = driven.learner.shared.full.popleft()
                assert torch.isfinite(full.value.cpu()).all()
                driven.learner.shared.free.append(full)
    assert len(recorder.recorded) == 4, (
        "of one, two and four vector envs, and an optimiser step, all at the start"
    )


def test_a_turn_is_a_few_calls_and_one_wait(recorder, device):
    with DrivenLearner(device="pretend:0", packing="loop", core="gru", **VECTOR_ENVS) as driven:
        for _ in range(4):
            for vector_envs in ([0], [0, 1], range(4)):
                batch(driven, vector_envs)
                give_back(driven)
        costs = {}
        for vector_envs in ([2], [2, 3], [1, 2, 3], range(4)):
            t = [vector_env.t for vector_env in driven.learner.sampler.vector_envs]
            device.counts.reset()
            batch(driven, vector_envs)
            calls = sum(device.counts.total(kind) for kind in ("launch", "upload", "download"))
            costs[tuple(vector_envs)] = calls
            assert device.counts.total("sync") == 1, device.counts.listing("sync")
            assert calls <= 12 + 3 * len(vector_envs), t
        assert costs[(2,)] <= 4


@pytest.mark.usefixtures("recorder")
def test_every_turn_takes_what_was_published_before_it():
    with DrivenLearner(device="pretend:0", packing="vmap", **VECTOR_ENVS) as driven:
        pack, taken = driven.learner.pack, []
        pack.take_published = lambda: taken.append(None)
        for _ in range(5):
            batch(driven, [1, 2])
        assert driven.learner.sampler.replays.replayed == 4, (
            "all but the first, in which the vector envs begin"
        )
    assert len(taken) == 5, "in replayed turns, too"
