"""What a checkpoint gets of a pack's members: each as it was when the checkpoint began, or as it learned on since."""

import json

import numpy as np
import pytest
import torch

from pbt_rl.learner.continuation import Continuation, _decoded
from pbt_rl.wire.messages import Edit, SlotChange
from tests.helpers.fake_actor import ENVS, VALUES, Bench, Stand

MEMBERS = (4, 7, 9, 11)
"""4 and 7 hold the two slots at the start."""


@pytest.fixture
def stand():
    with Bench(policies=2, members=MEMBERS, core="gru", spare=2) as bench:
        stand = Stand(bench)
        stand.learn()
        yield stand


def arrays(stand, member):
    return {k: v.copy() for k, v in stand.trainer.members.snapshot(member).arrays.items()}


def staged(stand):
    """Stage everything that is left; returns header and arrays by (member, generation if remembered)."""
    found = {}
    for _ in range(len(stand.trainer.members._to_stage)):
        header = stand.trainer.members.stage(1)
        key = (header.member, header.generation if header.remembered else None)
        assert key not in found, "everything comes once"
        found[key] = header, stand.staging.read(1)
    return found


def same(a, b):
    assert a.keys() == b.keys()
    return all(np.array_equal(a[name], b[name]) for name in a)


def test_everything_comes_once_and_members_that_never_began_do_not(stand):
    members = stand.trainer.members
    stand.trainer.change_slot(SlotChange(0, 4, 9, 0, VALUES | {"shaping.bait": 0.5}))
    members.remember(7, 3)
    assert members.begin_snapshot() == 4
    found = staged(stand)
    assert set(found) == {(4, None), (7, None), (9, None), (7, 3)}
    assert same(found[7, 3][1], found[7, None][1])
    header = found[4, None][0]
    index = MEMBERS.index(4)
    assert header.frames == stand.bench.shared.sampling.steps[index] > 0
    assert (header.steps, header.updates) == (stand.bench.shared.learning.steps[index], 1)


def test_who_is_changed_meanwhile_comes_as_before_and_who_learns_on_comes_as_now(stand):
    members = stand.trainer.members
    before = {member: arrays(stand, member) for member in (4, 7)}
    members.begin_snapshot()
    values = VALUES | {"shaping.bait": 0.25, "gamma": 0.9}
    stand.trainer.apply(Edit(4, 1, "copy", 7, values))
    stand.learn()
    now = arrays(stand, 7)
    found = staged(stand)
    assert same(found[4, None][1], before[4])
    assert (found[4, None][0].generation, found[4, None][0].values["gamma"]) == (0, VALUES["gamma"])
    assert same(found[7, None][1], now)
    assert not same(now, before[7])


def test_a_new_value_alone_is_of_the_next_checkpoint_too(stand):
    stand.trainer.members.begin_snapshot()
    stand.trainer.apply(Edit(4, 1, "keep", None, VALUES | {"shaping.bait": 0.25, "gamma": 0.9}))
    assert staged(stand)[4, None][0].values["gamma"] == VALUES["gamma"]
    stand.trainer.members.begin_snapshot()
    header = staged(stand)[4, None][0]
    assert (header.generation, header.values["gamma"]) == (1, 0.9)


def test_who_leaves_its_slot_meanwhile_comes_as_it_left_and_the_forgotten_still_come(stand):
    members = stand.trainer.members
    before = arrays(stand, 4)
    members.remember(7, 2)
    members.begin_snapshot()
    stand.trainer.change_slot(SlotChange(0, 4, 9, 0, VALUES | {"shaping.bait": 0.5}))
    members.forget(7, 2)
    stand.learn()
    found = staged(stand)
    assert set(found) == {(4, None), (7, None), (7, 2)}
    assert same(found[4, None][1], before)


def test_a_pack_goes_on_from_its_snapshots_in_other_slots(stand):
    members = stand.trainer.members
    stand.trainer.change_slot(SlotChange(0, 4, 9, 0, VALUES | {"shaping.bait": 0.5}))
    stand.learn()
    members.remember(9, 1)
    stand.trainer.apply(Edit(9, 2, "keep", None, VALUES | {"shaping.bait": 0.25, "gamma": 0.9}))
    kept = [members.snapshot(m) for m in (4, 7, 9)] + [members.snapshot(9, 1)]
    kept = [type(s)(s.header, {k: v.copy() for k, v in s.arrays.items()}) for s in kept]
    with Bench(policies=2, members=MEMBERS, core="gru", spare=2, seed=8) as bench:
        bench.shared.pack.hold(0, 0, 4)
        bench.shared.pack.hold(1, 2, 4)
        again = Stand(bench)
        again.trainer.members.restore(kept)
        for snapshot in kept:
            header = snapshot.header
            generation = header.generation if header.remembered else None
            assert same(again.trainer.members.snapshot(header.member, generation).arrays, snapshot.arrays)
        assert torch.equal(
            bench.pack.weights.serving[1], bench.pack.state["param"][1, : bench.pack.weights.layout.body_size]
        )
        steps, learned = bench.shared.sampling.steps, bench.shared.learning
        theirs = stand.bench.shared
        assert steps.tolist()[:3] == theirs.sampling.steps.tolist()[:3]
        assert (learned.steps[:3], learned.updates[:3]) == (
            theirs.learning.steps[:3],
            theirs.learning.updates[:3],
        )
        again.learn()
        assert not same(arrays(again, 9), kept[2].arrays), "it learns on"


def test_an_evaluation_goes_on_with_the_run(stand):
    stand.trainer.members.evaluate(7, begins=True)

    def continuation(stand):
        bench = stand.bench
        return Continuation(bench.pack, bench.shared, bench.sampler, stand.trainer, stand.shaping)

    saved = json.loads(json.dumps(continuation(stand).save(units=False)))
    with Bench(policies=2, members=MEMBERS, core="gru", spare=2, seed=8) as bench:
        again = Stand(bench)
        continuation(again).restore(saved)
        assert (
            bench.shared.pack.evaluated.tolist()
            == stand.bench.shared.pack.evaluated.tolist()
            == [False, True]
        )
        assert bench.shared.pack.holders[1].evaluations == {1}


def test_units_are_saved_as_they_will_act_on_if_weights_were_exchanged_since_the_batch():
    """The recurrent state of an exchanged slot is zeroed before the next turn, which comes after the checkpoint."""
    with Bench(policies=2, core="gru") as bench:
        stand = Stand(bench)
        for _ in range(2):
            stand.learn()
        bench.fill(2)
        stand.trainer.learn()
        stand.trainer.apply(Edit(1, 1, "copy", 0, VALUES | {"shaping.bait": 0.5}))
        saved = Continuation(bench.pack, bench.shared, bench.sampler, stand.trainer, stand.shaping).save(
            units=True
        )
        bench.sampler.resume_finished()
        for unit, kept in zip(bench.sampler.units, saved["units"], strict=True):
            state_RS = _decoded(kept["state"])
            assert np.any(state_RS[:ENVS])
            assert not np.any(state_RS[ENVS:])
            assert np.array_equal(unit.rollout.state.numpy(), state_RS)
