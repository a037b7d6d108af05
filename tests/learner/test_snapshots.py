"""What a learner goes on from: saved states of its members, and what is not a member's."""

import json

import numpy as np
import pytest
import torch

from pbt_rl.actors.messages import Load
from pbt_rl.learner.continuation import Continuation
from tests.helpers.fake_actor import ENVS, VALUES, Bench, Stand

MEMBERS = (4, 7, 9, 11)
"""4 and 7 hold the two slots at the start."""


@pytest.fixture
def stand():
    with Bench(policies=2, members=MEMBERS, core="gru", spare=2) as bench:
        stand = Stand(bench)
        stand.learn()
        yield stand


def test_a_pack_goes_on_from_saved_states_in_other_slots(stand):
    stand.hand_over(0, 9)
    stand.learn()
    stand.edit(9, generation=2, gamma=0.9)
    kept = {member: stand.arrays(member) for member in (4, 7, 9)}
    entries = {member: stand.save(member) for member in (7, 9)} | {4: stand.parked[4]}
    theirs = stand.bench.shared
    with Bench(policies=2, members=MEMBERS, core="gru", spare=2, seed=8) as bench:
        bench.shared.pack.hold(0, 0, 4)
        bench.shared.pack.hold(1, 2, 4)
        again = Stand(bench)
        again.pool.grow(2)
        loads = []
        for slot, member in enumerate((4, 9)):
            counts = stand.pool.counts(entries[member])
            again.pool.write(slot, stand.pool.read(entries[member]), counts)
            values = VALUES | {"shaping.bait": 0.5}
            loads.append(Load(slot, member, 2 if member == 9 else 0, values, slot, counts=counts))
        again.trainer.members.place_first(loads)
        for member in (4, 9):
            assert all(
                np.array_equal(again.arrays(member)[name], kept[member][name]) for name in kept[member]
            )
        assert torch.equal(
            bench.pack.weights.serving[1], bench.pack.state["param"][1, : bench.pack.weights.layout.body_size]
        )
        for index in (0, 2):
            assert bench.shared.sampling.steps[index] == theirs.sampling.steps[index] > 0
            assert bench.shared.learning.steps[index] == theirs.learning.steps[index]
            assert bench.shared.learning.updates[index] == theirs.learning.updates[index]
        assert again.trainer.members.generations[9] == 2
        again.learn()
        assert not np.array_equal(again.arrays(9)["param"], kept[9]["param"]), "it learns on"


def continuation(stand):
    bench = stand.bench
    return Continuation(bench.pack, bench.shared, bench.sampler, stand.trainer, stand.shaping)


def test_an_evaluation_goes_on_with_the_run(stand):
    stand.trainer.members.evaluate(7, begins=True)
    saved = json.loads(json.dumps(continuation(stand).save(vector_envs=False)))
    with Bench(policies=2, members=MEMBERS, core="gru", spare=2, seed=8) as bench:
        continuation(Stand(bench)).restore(saved)
        for found in (bench.shared.pack, stand.bench.shared.pack):
            assert found.evaluated.tolist() == [False, True]
        assert bench.shared.pack.slot_members[1].evaluations == {1}


def test_vector_envs_are_saved_as_they_will_act_on_if_weights_were_exchanged_since_the_batch():
    """The recurrent state of an exchanged slot is zeroed before the next turn, which comes after the checkpoint."""
    with Bench(policies=2, core="gru") as bench, Bench(policies=2, core="gru", seed=8) as other:
        stand = Stand(bench)
        for _ in range(2):
            stand.learn()
        bench.fill(2)
        stand.trainer.learn()
        stand.edit(1, "copy", 0)
        saved = continuation(stand).save(vector_envs=True)
        bench.sampler.resume_finished()
        assert continuation(Stand(other)).restore(saved)
        for vector_env, again in zip(bench.sampler.vector_envs, other.sampler.vector_envs, strict=True):
            assert again.state[:ENVS].any()
            assert not again.state[ENVS:].any()
            assert torch.equal(vector_env.rollout.state, again.state)
