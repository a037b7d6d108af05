"""Edits in the midst of a sampler's turn, between the forwards of two policies: which rows act by which weights."""

import numpy as np
import pytest
import torch

from pbt_rl.actors.messages import Acknowledgement, Load
from pbt_rl.algos.weights import Group
from tests.helpers.driven import DrivenLearner

BEFORE, AFTER = 0, 2
"""Slots whose policies are computed before and after the edit, which arrives while slot 1 is."""


@pytest.fixture
def driven():
    with DrivenLearner(packing="loop") as driven:
        for _ in range(2):
            batch(driven)
        yield driven


def batch(driven):
    """All vector envs deliver a step and are answered."""
    for actor in driven.actors:
        assert actor.advance()
    assert driven.learner.sampler.run_inference()


def turn_with(driven, monkeypatch, message, during=1):
    """Such a turn, in which a message arrives while a slot is computed; returns what was answered before slot 2 was."""
    serve, before_2 = Group.infer, []

    def noted(group, *inputs):
        if group.slots == (2,):
            before_2.extend(answers(driven))
        result = serve(group, *inputs)
        if group.slots == (during,):
            driven.ours.send(message)
        return result

    monkeypatch.setattr(Group, "infer", noted)
    batch(driven)
    monkeypatch.undo()
    return before_2


def answers(driven):
    """What the learner has sent."""
    found = []
    while driven.ours.poll():
        found.append(driven.ours.recv())
    return [message for message in found if isinstance(message, Acknowledgement)]


def values_by(driven, slot, vector_env, weights):
    """Value of a slot's newest rows in a vector env by these weights."""
    pack = driven.learner.pack
    kept = pack.export_member(slot)
    pack.import_member(slot, weights)
    obs = {name: x[vector_env.t - 1].unflatten(0, (3, -1)) for name, x in vector_env.rollout.obs.items()}
    first = torch.from_numpy(vector_env.rollout.first[vector_env.t - 1].reshape(3, -1))
    value = pack.act(obs, torch.zeros(*first.shape, pack.state_size), first)[1][slot]
    pack.import_member(slot, kept)
    return value


def recorded(vector_env, slot):
    return torch.as_tensor(vector_env.rollout.by_policy["value"][vector_env.t - 1][slot])


@pytest.mark.parametrize("edited", [BEFORE, AFTER], ids=["acted before", "acts after"])
def test_rows_act_by_the_weights_of_before_or_of_after_and_the_answer_does_not_wait(
    driven, monkeypatch, edited
):
    states = [driven.state(slot) for slot in range(3)]
    (ack,) = turn_with(driven, monkeypatch, driven.message(edited, 1, "copy", 1, driven.values))
    assert (ack.member, ack.donor, ack.donor_unchanged) == (edited, 1, True), "before slot 2 is computed"
    assert torch.equal(driven.state(edited)["param"], states[1]["param"])
    for vector_env in driven.learner.sampler.vector_envs:
        by_old, by_new = (values_by(driven, edited, vector_env, states[slot]) for slot in (edited, 1))
        assert not torch.equal(by_old, by_new)
        torch.testing.assert_close(recorded(vector_env, edited), by_new if edited == AFTER else by_old)
        for other in {BEFORE, 1, AFTER} - {edited}:
            expected = values_by(driven, other, vector_env, states[other])
            torch.testing.assert_close(recorded(vector_env, other), expected)


@pytest.mark.parametrize("edited", [BEFORE, AFTER], ids=["acted before", "acts after"])
def test_a_rollout_that_begins_in_the_turn_of_an_edit_is_of_the_weights_before(driven, monkeypatch, edited):
    vector_envs = driven.learner.sampler.vector_envs
    while vector_envs[0].t < 6:
        batch(driven)
    turn_with(driven, monkeypatch, driven.message(edited, 1, "copy", 1, driven.values))
    assert [vector_env.t for vector_env in vector_envs] == [1, 1], "rollouts began in it"
    epoch = driven.learner.shared.pack.lineage_version
    outdated = np.stack([vector_env.rollout.lineage_version for vector_env in vector_envs]) < epoch
    assert outdated[:, edited].all()
    assert outdated.sum() == 2, "of that slot alone"
    (first, second) = driven.learner.shared.full
    usable_PK = driven.learner.trainer._usable([first, second])
    assert usable_PK.sum(1).tolist() == [0 if slot == edited else 2 for slot in range(3)]
    began = [vector_env.rollouts for vector_env in vector_envs]
    for _ in range(20):
        for actor in driven.actors:
            actor.advance()
        driven.learner.sampler.run_inference()
        if driven.learner.trainer.has_batch:
            driven.learner.trainer.learn()
    assert all(vector_env.rollouts > before for vector_env, before in zip(vector_envs, began, strict=True))
    assert not (np.stack([vector_env.rollout.lineage_version for vector_env in vector_envs]) < epoch).any(), (
        "the next are of the new"
    )


def test_recurrent_state_of_the_old_weights_is_not_gone_on_with(monkeypatch):
    with DrivenLearner(packing="loop", core="gru") as driven:
        batch(driven)
        turn_with(driven, monkeypatch, driven.message(AFTER, 1, "copy", 1, driven.values))
        serve, begins = Group.infer, {}

        def noted(group, obs, state, first):
            begins[group.slots] = state.clone()
            return serve(group, obs, state, first)

        monkeypatch.setattr(Group, "infer", noted)
        batch(driven)
        assert not begins[(AFTER,)].any()
        assert begins[(BEFORE,)].any()


def test_a_slot_changes_hands_in_a_turn_and_its_step_counts_for_whoever_took_it(monkeypatch):
    with DrivenLearner(packing="loop", num_policies=3, slots=2) as driven:
        batch(driven)
        steps = driven.learner.shared.sampling.steps
        before = steps.copy()
        turn_with(driven, monkeypatch, Load(1, 2, 0, driven.values, initialised=(2, 0)), during=0)
        assert steps[1] > before[1]
        assert steps[2] == 0
        assert driven.learner.shared.pack.member.tolist() == [0, 2]


def test_a_turn_of_all_policies_at_once_and_of_sync_modes_is_not_looked_into():
    for options in ({"packing": "vmap"}, {"packing": "loop", "mode": "sync"}):
        with DrivenLearner(**options) as driven:
            assert driven.learner.sampler.between_policies() is None
