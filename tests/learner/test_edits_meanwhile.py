"""Edits in the midst of an optimiser step, by the main thread: what of the step counts, and what does not."""

import threading

import pytest
import torch

from pbt_rl.algos import update
from tests.helpers.driven import DrivenLearner
from tests.helpers.packs import same_bits

CHANGED = {"gamma": 0.9, "entropy_coef": 0.2, "clip_ratio": 0.3, "learning_rate": 1e-3}


@pytest.fixture
def driven():
    with DrivenLearner(packing="loop", epochs=2, minibatches=1) as driven:
        driven.batches(1)
        driven.fill()
        yield driven


def edit_in_step(driven, monkeypatch, edited, donor, in_step_of, weights="copy"):
    """Learn from a batch; between forward and backward of a slot's first step, edit another way in another thread.

    Returns the ack and the states right after it.
    """
    learner, found, present = driven.learner, [], []
    loss, backward = update._loss, torch.Tensor.backward

    def noted(group, *arguments):
        present[:] = group.slots
        return loss(group, *arguments)

    def interrupted(total):
        if present == [in_step_of] and not found:
            command = driven.message(edited, 1, weights, donor, driven.values | CHANGED)
            learner.trainer.commands.append(lambda: found.append(driven.carry_out(command)))
            thread = threading.Thread(target=learner.trainer.run_commands_meanwhile)
            thread.start()
            thread.join(20)
            assert found, "the edit waited for the step"
            found.append([driven.state(p) for p in range(3)])
        backward(total)

    monkeypatch.setattr(update, "_loss", noted)
    monkeypatch.setattr(torch.Tensor, "backward", interrupted)
    learner.trainer.learn()
    return found


@pytest.mark.parametrize("in_step_of", [0, 1, 2], ids=["donor", "edited", "another"])
def test_a_step_of_other_weights_comes_to_nothing_and_the_others_go_on(driven, monkeypatch, in_step_of):
    before, updates = driven.learner.shared.pack.weights_version.copy(), 2
    ack, states = edit_in_step(driven, monkeypatch, 1, 0, in_step_of)
    after = [driven.state(p) for p in range(3)]
    assert ack.donor_unchanged
    assert same_bits(states[1], states[0]), "a copy"
    assert same_bits(after[1], states[1]), "which has learned nothing from the batch of the weights before"
    assert not same_bits(after[2], states[2])
    assert same_bits(after[0], states[0]) == (in_step_of > 0), "the donor's steps come first"
    stepped = 2 if in_step_of == 2 else 0
    assert (driven.learner.shared.pack.weights_version - before).tolist() == [2, stepped, 2]
    steps = [float(s["optimizer_steps"]) for s in after]
    assert steps[0] == steps[2] == 2 * updates
    assert driven.learner.shared.learning.take_broken(1) in (None, False)
    serving = driven.learner.pack.weights.serving[1]
    torch.testing.assert_close(serving, after[1]["param"][: len(serving)])
    driven.batches(4)
    assert not same_bits(driven.state(1), after[1]), (
        "it learns from what it acts itself, once that makes a batch"
    )


def test_a_value_changed_in_a_step_acts_from_its_end_on(driven, monkeypatch):
    ack, states = edit_in_step(driven, monkeypatch, 1, None, 1, "keep")
    assert ack.in_loss["gamma"] == pytest.approx(0.9)
    assert not same_bits(driven.state(1), states[1]), "its steps count"
    assert driven.learner.shared.pack.weights_version.tolist() == [4, 4, 4]


def test_all_policies_at_once_are_edited_between_steps():
    with DrivenLearner(packing="vmap") as together:
        assert not together.learner.trainer.editable_meanwhile
        assert not together.learner._edits_itself
    with DrivenLearner(packing="loop", mode="sync") as sync:
        assert not sync.learner._edits_itself


@pytest.mark.parametrize("broken", [False, True])
def test_a_step_that_ended_before_its_member_was_replaced_is_not_the_copys(monkeypatch, broken):
    with DrivenLearner(packing="loop", epochs=1, minibatches=1) as driven:
        driven.batches(1)
        driven.fill()
        learner, found = driven.learner, []
        learning, write = learner.shared.learning, update.StepLog.write
        learning.take_broken(1)
        if broken:
            learner.pack.state["param"][1] = torch.nan

        def written_then_edited(self, step, span, stats):
            write(self, step, span, stats)
            if span.start == 1 and not found:
                command = driven.message(1, 1, "copy", 0, driven.values)
                learner.trainer.commands.append(lambda: found.append(driven.carry_out(command)))
                thread = threading.Thread(target=learner.trainer.run_commands_meanwhile)
                thread.start()
                thread.join(20)

        monkeypatch.setattr(update.StepLog, "write", written_then_edited)
        learner.trainer.learn()
        assert found
        assert learning.take_broken(1) is None
