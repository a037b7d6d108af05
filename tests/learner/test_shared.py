"""The state that sampler and trainer share: counts, slots, and one name per field from environment to loss."""

import dataclasses

import numpy as np
import pytest

from pbt_rl.algos.batch import Batch, Samples
from pbt_rl.algos.rollout import FIELDS, OUTCOMES
from pbt_rl.envs.base import StepArrays
from pbt_rl.learner.shared import LearningCounts, SharedState


def test_a_field_has_one_name_from_environment_to_loss():
    of_the_environment = {name for name, spec in FIELDS.items() if spec.source == "environment"}
    assert of_the_environment <= {f.name for f in dataclasses.fields(StepArrays)}
    for kind in (Batch, Samples):
        assert set(FIELDS) <= {f.name for f in dataclasses.fields(kind)}
    assert OUTCOMES == ("reward", "terminated", "truncated")


def test_a_slot_is_held_by_a_member_or_by_none():
    shared = SharedState.new((4, 7, 9), (4, 7))
    before = shared.pack.member
    shared.pack.hold(1, 2, members=3)
    shared.pack.hold(0, None, members=3)
    assert shared.pack.member.tolist() == [3, 2]
    assert before.tolist() == [0, 1], "whoever reads at the same time keeps a whole state"
    assert shared.pack.slot_members[0] is None
    assert (shared.pack.slot_members[1].member, shared.pack.slot_members[1].generation_of) == (2, {})


def test_what_is_noted_is_taken_once_and_in_order():
    shared = SharedState.new((4, 7), (4, 7))
    shared.note_exchanged_weights(1)
    assert (list(shared.state_resets), shared.pack.lineage_version.tolist()) == ([1], [0, 1])
    shared = SharedState.new((4,), (4,))
    shared.sampling.note(["episode"], ["game"])
    assert shared.sampling.take() == (["episode"], ["game"])
    assert shared.sampling.take() == ([], [])


def steps(**values):
    """Statistics of optimiser steps, name -> values; `active` unless it is given."""
    arrays = {name: np.array(x, np.float32) for name, x in values.items()}
    return {"active": np.ones_like(arrays["grad_norm"])} | arrays


def test_means_are_of_the_steps_since_the_last_report_whatever_their_names():
    counts = LearningCounts.new(2)
    counts.note_steps(0, steps(grad_norm=[1.0, 3.0], anything=[2.0, 6.0]))
    counts.note_steps(0, steps(grad_norm=[float("inf")], anything=[1e9]))
    counts.note_steps(0, steps(grad_norm=[0.0, 5.0], anything=[7.0, 1.0], active=[0, 1]))
    counts.add(0, "lag", [5.0])
    assert counts.take_means(0) == {"grad_norm": 3.0, "anything": 3.0, "lag": 5.0}
    assert counts.take_means(0) == counts.take_means(1) == {}


@pytest.mark.parametrize(
    ("norms", "active", "broken"),
    [
        ([], [], None),
        ([1.0, np.nan], [1, 1], False),
        ([np.nan, np.inf], [1, 1], True),
        ([0.0, np.nan], [0, 1], True),
        ([0.0], [0], None),
    ],
)
def test_a_member_is_broken_if_every_step_was_left_out(norms, active, broken):
    counts = LearningCounts.new(1)
    counts.note_steps(0, steps(grad_norm=norms, active=active))
    assert counts.take_broken(0) is broken
    assert counts.take_broken(0) is None
