"""Edits and batches of one pack: what is applied, what is discarded, what stays."""

import threading
from dataclasses import replace

import numpy as np
import pytest
import torch

from pbt_rl.algos.parts import Parts
from tests.helpers.fake_actor import ENVS, VALUES, Bench, Stand

MEMBERS = (4, 7, 9)
CHANGED = {name: value * 0.9 for name, value in VALUES.items()} | {"unroll": 4.0}


@pytest.fixture
def stand():
    with Bench(policies=3, members=MEMBERS, core="gru", spare=2) as bench:
        stand = Stand(bench)
        stand.learn()
        yield stand


def edit(stand, member=7, weights="copy", donor=4, generation=1, **more):
    return stand.edit(member, weights, donor, generation, **(CHANGED | more))


def test_a_copy_takes_all_of_the_donor_and_proves_it(stand):
    donor, other = stand.state(0), stand.state(2)
    applied = edit(stand)
    assert not stand.changed(0, donor)
    assert not stand.changed(1, donor)
    assert not stand.changed(2, other)
    assert (applied.member, applied.donor, applied.generation) == (7, 4, 1)
    assert applied.donor_unchanged
    assert applied.in_environment == {"bait": 0.25}
    assert stand.shaping.read(1) == (1, {"bait": 0.25})
    in_use = applied.in_optimizer | applied.in_loss
    assert set(applied.in_optimizer) == {"learning_rate", "max_grad_norm", "adam_beta1", "adam_beta2"}
    assert in_use == {name: float(np.float32(value)) for name, value in CHANGED.items()}
    for name, column in stand.bench.pack.hypers.items():
        assert column.tolist() == pytest.approx([VALUES[name], CHANGED[name], VALUES[name]])


def test_a_donor_that_changed_would_be_noticed(stand, monkeypatch):
    def careless(_source: int, _target: int) -> None:
        stand.bench.pack.state["square"][0, 3] += 1e-6

    monkeypatch.setattr(stand.bench.pack, "copy_member", careless)
    assert not edit(stand).donor_unchanged


def test_outdated_rollouts_of_a_replaced_policy_are_discarded_and_the_others_learn(stand):
    stand.bench.fill(2)
    edit(stand)
    donor_before, target, counts = stand.state(0), stand.state(1), stand.bench.shared.learning
    updates = list(counts.updates)
    stand.trainer.learn()
    assert not stand.changed(1, target)
    assert stand.changed(0, donor_before)
    assert counts.discarded == 2
    assert [now - before for now, before in zip(counts.updates, updates, strict=True)] == [1, 0, 1, 0]
    assert stand.bench.shared.pack.weights_version.tolist() == [2, 1, 2]
    stand.bench.sampler.resume_finished()
    stand.learn()
    assert stand.changed(1, target), "what it acts itself counts again"
    assert counts.discarded == 2


def learn_and_edit(stand, change):
    """Learn from a batch, and carry a change out after the first step of policy 0; returns what that returned."""
    pack, commands, sent, acks = stand.bench.pack, stand.trainer.commands, [], []

    def publish(slots):
        type(pack).publish(pack, slots)
        if not sent:
            sent.append(1)
            commands.append(lambda: acks.append(change()))

    pack.publish = publish
    stand.trainer.learn()
    del pack.publish
    return acks


def test_an_edit_between_two_steps_ends_the_batch_for_its_member():
    with Bench(policies=3, members=MEMBERS) as bench:
        stand = Stand(bench, epochs=3)
        stand.learn()
        bench.fill(2)
        (ack,) = learn_and_edit(stand, lambda: edit(stand, member=9, donor=7))
        assert ack.donor_unchanged
        assert stand.bench.shared.learning.updates == [2, 2, 1, 0]
        assert bench.pack.state["optimizer_steps"].tolist() == [6.0, 6.0, 3.0], (
            "policy 2 is policy 1 before its steps"
        )


def begin_together(updater, slots):
    """Let the updates of these slots wait for one another before they begin."""
    targets, all_begin = updater.targets, threading.Barrier(len(slots), timeout=30)

    def wait_and_prepare(group, *inputs):
        if group.slots[0] in slots:
            all_begin.wait()
        return targets(group, *inputs)

    updater.targets = wait_and_prepare


def test_policies_learn_at_the_same_time_as_they_learn_alone():
    states = []
    for parts in (None, Parts(2)):
        with Bench(policies=3, core="gru", parts=parts) as bench:
            stand = Stand(bench, epochs=3)
            if parts is not None:
                begin_together(stand.trainer.updater, (0, 1))
            stand.learn()
            assert bench.shared.learning.updates[:3] == [1, 1, 1]
            assert bench.pack.state["optimizer_steps"].tolist() == [3.0, 3.0, 3.0]
            states.append([stand.state(slot) for slot in range(3)])
    for slot, (alone, at_once) in enumerate(zip(*states, strict=True)):
        for (
            name,
            value,
        ) in alone.items():  # equal but for the number of torch threads; policy 2 is learned in parts
            torch.testing.assert_close(at_once[name], value, rtol=1e-4, atol=1e-6, msg=f"{slot} {name}")


def test_an_edit_while_policies_learn_at_the_same_time_is_kept():
    with Bench(policies=2, members=MEMBERS[:2], parts=Parts(2)) as bench:
        stand = Stand(bench, epochs=20)
        stand.learn()
        bench.fill(2)

        def change():
            ack = edit(stand)
            return ack, stand.state(1)

        ((ack, edited),) = learn_and_edit(stand, change)
        assert ack.donor_unchanged
        assert not stand.changed(1, edited)
        assert stand.bench.shared.learning.updates[0] == 2
        assert bench.pack.state["optimizer_steps"][0] == 40


def test_statistics_of_returns_belong_to_the_weights_that_a_slot_has_now():
    with Bench(policies=2, members=MEMBERS[:2], parts=Parts(2)) as bench:
        stand = Stand(bench)
        stand.learn()
        bench.fill(2)
        pack, updater, loaded = bench.pack, stand.trainer.updater, []
        observe = updater._observe_returns

        def load_meanwhile(span, *inputs):
            if span.start == 1 and not loaded:
                held, change = threading.Event(), threading.Event()

                def hold_the_lock():
                    with updater.changing:
                        held.set()
                        change.wait(30)
                        edit(stand)
                        loaded.append(stand.state(1))

                other = threading.Thread(target=hold_the_lock)
                other.start()
                held.wait(30)
                threading.Timer(0.2, change.set).start()  # the statistics wait for the lock by then
                observe(span, *inputs)
                other.join()
            else:
                observe(span, *inputs)

        updater._observe_returns = load_meanwhile
        stand.trainer.learn()
        assert torch.equal(pack.state["return_square"][1], loaded[0]["return_square"])


def test_a_policy_that_learns_alone_is_learned_in_parts():
    with Bench(policies=2, members=MEMBERS[:2], parts=Parts(2)) as bench:
        stand = Stand(bench)
        stand.trainer.members.evaluate(MEMBERS[1], begins=True)
        stand.learn()
        bench.pack.parts.take_seconds()
        threads = []
        forward = bench.pack.groups()[0]._forward
        bench.pack.groups()[0]._forward = lambda *inputs: (
            threads.append(threading.get_ident()),
            forward(*inputs),
        )[1]
        stand.learn()
        assert len(set(threads)) == 2


def test_an_error_of_one_of_several_policies_is_raised():
    with Bench(policies=2, parts=Parts(2)) as bench:
        stand = Stand(bench)
        targets = stand.trainer.updater.targets

        def fail(group, *inputs):
            if group.slots == (1,):
                raise ValueError("no targets")
            return targets(group, *inputs)

        stand.trainer.updater.targets = fail
        with pytest.raises(ValueError, match="no targets"):
            stand.learn()


@pytest.mark.parametrize(("lag", "learns"), [(2, True), (3, False)])
def test_rollouts_over_the_lag_limit_are_discarded_and_counted(stand, lag, learns):
    stand.bench.fill(2)
    stand.bench.shared.pack.weights_version[1] += lag
    before = stand.state(1)
    stand.trainer.learn()
    assert stand.changed(1, before) == learns
    assert stand.bench.shared.learning.discarded == (0 if learns else 2)
    assert stand.bench.shared.learning.lag_max == (lag if learns else 0)


@pytest.mark.parametrize(("step", "learns"), [(0, False), (1, True)])
def test_the_lag_of_a_rollout_is_that_of_its_first_step(stand, step, learns):
    for rollout in stand.bench.fill(2):
        rollout.weights_version[step, 1] -= 3
    before = stand.state(1)
    stand.trainer.learn()
    assert stand.changed(1, before) == learns
    assert stand.bench.shared.learning.lag_max == (3 if learns else 0)


def test_a_member_that_is_evaluated_acts_and_does_not_learn(stand):
    members, slot_member = stand.trainer.members, stand.bench.shared.pack.slot_members[1]
    steps = stand.bench.shared.sampling.steps.tolist()
    members.evaluate(7, begins=True)
    frozen, other, updates = stand.state(1), stand.state(0), list(stand.bench.shared.learning.updates)
    stand.bench.fill(2)
    stand.trainer.learn()
    assert not stand.changed(1, frozen)
    assert stand.changed(0, other)
    assert [now - was for now, was in zip(stand.bench.shared.learning.updates, updates, strict=True)] == [
        1,
        0,
        1,
        0,
    ]
    assert stand.bench.shared.sampling.steps.tolist()[1] > steps[1], "its steps count in the budget"
    assert stand.bench.shared.learning.discarded == 0
    version = int(stand.shaping.shaping_version[1])
    assert slot_member.evaluations == {version}, "episodes that begin now are told apart"
    members.evaluate(7, begins=True)
    assert int(stand.shaping.shaping_version[1]) == version, "told twice is told once"
    members.evaluate(7, begins=False)
    assert int(stand.shaping.shaping_version[1]) == version + 1
    assert slot_member.evaluations == {version}
    stand.bench.sampler.resume_finished()
    stand.learn()
    assert stand.changed(1, frozen), "it learns again"


def test_versions_under_which_no_episode_runs_are_forgotten_and_no_answer_differs(stand, monkeypatch):
    bench, members = stand.bench, stand.trainer.members
    slot_member, sampler = bench.shared.pack.slot_members[1], bench.sampler
    generation_of, evaluations, expected, most = {}, set(), [], 0
    note = sampler._note_episodes

    def note_and_expect(vector_env):
        step = vector_env.box.step
        for row in np.flatnonzero(step.episode_done).tolist():
            version = int(step.shaping_version[row])
            if row // ENVS == 1:
                expected.append((generation_of[version], version in evaluations))
        note(vector_env)

    monkeypatch.setattr(sampler, "_note_episodes", note_and_expect)
    bench.shared.sampling.take()
    for generation in range(1, 101):
        edit(stand, generation=generation, weights="keep", donor=None)
        for begins in (True, False):
            generation_of |= slot_member.generation_of
            evaluations |= slot_member.evaluations
            for actor in bench.actors:
                actor.advance()
            sampler.run_inference()
            sampler.resume_finished()
            while bench.shared.full:
                bench.shared.free.append(bench.shared.full.popleft())
            members.evaluate(7, begins=begins)
        most = max(most, len(slot_member.generation_of))
    told = [(e.generation, e.evaluation) for e in bench.shared.sampling.episodes if e.member == 7]
    assert told == expected
    assert len(told) > 100
    assert {flag for _, flag in told} == {True, False}
    assert len(generation_of) > 290
    assert most < 30
    assert slot_member.evaluations <= slot_member.generation_of.keys()


def test_the_version_of_an_episode_that_never_ended_is_kept(stand):
    slot_member, versions = stand.bench.shared.pack.slot_members[1], stand.bench.shared.ended_versions
    for ended_R in versions:
        ended_R[:] = 5
    versions[1][ENVS] = -1
    for generation in range(1, 9):
        edit(stand, generation=generation, weights="keep", donor=None)
    assert sorted(slot_member.generation_of) == list(range(9))
    versions[1][ENVS] = 4
    edit(stand, generation=9, weights="keep", donor=None)
    assert sorted(slot_member.generation_of) == list(range(4, 10)), "5 on the other rows"


def test_steps_learned_from_leave_out_resets(stand):
    before = list(stand.bench.shared.learning.steps)
    rollouts = stand.bench.fill(2)
    valid = sum((~r.first[1:]).reshape(-1, 3, ENVS).sum((0, 2)) for r in rollouts)
    stand.trainer.learn()
    assert [a - b for a, b in zip(stand.bench.shared.learning.steps, before, strict=True)] == [
        *valid.tolist(),
        0,
    ]


def test_a_sign_of_life_at_every_step_and_command_and_none_is_due_after(stand):
    signs = []
    stand.trainer._beat = signs.append
    stand.learn()
    assert signs == [True] * (len(signs) - 1) + [False]
    assert len(signs) >= 3, "begin, a step or more, end"
    signs.clear()
    stand.trainer.commands.append(lambda: signs.append("done"))
    stand.trainer.run_commands()
    assert signs == [True, "done", False]
    stand.trainer.run_commands()
    assert len(signs) == 3, "nothing to do"


def test_an_evaluation_that_begins_within_a_batch_ends_it_for_its_member():
    with Bench(policies=3, members=MEMBERS) as bench:
        stand = Stand(bench, epochs=3)
        stand.learn()
        bench.fill(2)
        before = stand.state(2)
        learn_and_edit(stand, lambda: stand.trainer.members.evaluate(9, begins=True))
        assert not stand.changed(2, before)


def test_a_trainer_that_is_stopped_takes_no_further_optimiser_step(stand):
    stand.bench.fill(2)
    stand.trainer.updater._settings = replace(stand.trainer.updater._settings, epochs=50)
    steps = []
    stand.bench.pack.publish = lambda slots: steps.append(slots) or setattr(stand.trainer, "stopping", True)
    stand.trainer.learn()
    assert len(steps) == 1
