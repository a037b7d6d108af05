"""Shared memory of a run: who gets which descriptor, seed and number, and that nothing stays open."""

import os
from dataclasses import replace

import numpy as np
import pytest
import torch

from pbt_rl.actors import actor as actor_module
from pbt_rl.actors.actor import Actor
from pbt_rl.actors.mailbox import ACTIONS, BUSY_NS, OBSERVATIONS
from pbt_rl.actors.shared_tables import MatchupTable, ShapingTable
from pbt_rl.actors.state_pool import Counts
from pbt_rl.controllers.hypers import SHAPING
from pbt_rl.envs.lookup import make_vector_env
from pbt_rl.learner.build import CpuInitialiser
from pbt_rl.plan import Machine
from pbt_rl.run.memory import Memory
from tests.helpers import plans
from tests.helpers.plans import fresh

OPTIONS = (
    "--num-policies=4",
    "--actors=4",
    "--envs-per-vector-env=2",
    "--devices=cpu,cpu",
    "--vector-envs-per-actor=3",
)


def resolve(env="toy/shaped", *options):
    return plans.resolved(env, *OPTIONS, *options, machine=Machine(4, 0))


@pytest.fixture
def resolved():
    return resolve()


@pytest.fixture
def memory(resolved):
    memory = Memory(resolved, fresh(resolved))
    yield memory
    memory.close()


def test_packs_share_nothing_but_the_states(memory, resolved):
    first, second = memory.learners
    assert first.pool_fd == second.pool_fd == memory.pool.fd
    assert not (set(first.fds) - {first.pool_fd}) & set(second.fds)
    assert first.seed != second.seed
    for number, learner in enumerate(memory.learners):
        actors = [record for record in memory.actors if record.pack == number]
        assert len(actors) == resolved.plan.packs[number].actors == 2
        assert learner.mailbox_fds == tuple(box.fd for record in actors for box in record.boxes)
        assert learner.wake_fds == tuple(record.setup.wake_fd for record in actors for _ in range(3))
        for record in actors:
            assert set(record.setup.fds) - {record.setup.wake_fd} <= set(learner.fds)
            assert record.setup.ready_fd == learner.ready_fd


def test_every_vector_env_has_a_seed_and_a_number_of_its_own(memory):
    seeds = [seed for record in memory.actors for seed in record.setup.seeds]
    assert len(set(seeds)) == len(seeds) == 12
    assert [record.setup.first_vector_env for record in memory.actors] == [0, 3, 0, 3]


def test_vector_envs_know_which_rows_of_the_run_they_are(memory, monkeypatch):
    made = []

    def make_and_note(env_id, rows, seed, options, source):
        made.append((options.first_row, rows))
        return make_vector_env(env_id, rows, seed, options, source)

    monkeypatch.setattr(actor_module, "make_vector_env", make_and_note)
    for record in memory.actors:
        Actor(record.setup, print).close()
    assert made == [(4 * vector_env, 4) for vector_env in range(12)]


def test_a_state_that_is_initialised_on_the_way_moves_no_generator(resolved):
    """In serial mode a checkpoint may initialise states, and learners of this process draw masks of dropout."""
    values = fresh(resolved).slots[0][0].values
    initialiser = CpuInitialiser(resolved.config, resolved.spec, resolved.plan.packs[0], values)
    before = torch.random.get_rng_state()
    first = initialiser.initialised(0, 1)
    assert torch.equal(torch.random.get_rng_state(), before)
    again = initialiser.initialised(0, 1)
    assert all(np.array_equal(first[name], again[name]) for name in first)


def test_slots_start_with_the_shaping_of_their_members(memory, resolved):
    names = tuple(resolved.spec.shaping)
    values = resolved.controller().initial(4)
    for learner in memory.learners:
        table = ShapingTable.map(names, learner.plan.slots, learner.shaping_fd)
        for slot, member in enumerate(learner.plan.members):
            assert table.read(slot) == (0, {name: values[member][SHAPING + name] for name in names})
        assert (table.budget_frames == resolved.config.train_for_frames).all()


def test_before_its_learner_is_there_a_resumed_slot_is_as_the_learner_will_know_it(memory, resolved):
    """Or the first episodes after a resume would count for no generation, and a curriculum begin anew in them."""

    slot_members = [pack.members for pack in resolved.plan.packs]
    slots = fresh(resolved).slots
    slots = [tuple(replace(load, counts=Counts(1000 + load.member)) for load in loads) for loads in slots]
    same = {"slots": [{"holder": m, "shaping_version": 5 + m} for m in slot_members[0]]}
    other = {"slots": [{"holder": 3 - m, "shaping_version": 5 + m} for m in slot_members[1]]}
    again = Memory(resolved, replace(fresh(resolved), slots=slots, learners=[same, other]))
    versions = [[5 + m for m in slot_members[0]], [0 for _ in slot_members[1]]]
    for learner, expected in zip(again.learners, versions, strict=True):
        table = ShapingTable.map(tuple(resolved.spec.shaping), learner.plan.slots, learner.shaping_fd)
        assert [table.read(slot)[0] for slot in range(2)] == expected
        assert table.frames.tolist() == [1000 + m for m in learner.plan.members]
    again.close()


def test_matchups_are_those_of_the_pack():
    pytest.importorskip("pettingzoo")
    resolved = resolve("pettingzoo/classic/tictactoe_v3", "--vector-envs-per-actor=2")
    rows = [
        np.arange(p.vector_envs * p.rows).reshape(p.vector_envs, -1, 2) % p.rows for p in resolved.plan.packs
    ]
    memory = Memory(resolved, fresh(resolved), rows)
    setup = memory.actors[-1].setup
    table = MatchupTable.map(setup.matchup_shape, setup.matchup_fd)
    assert table.read(3)[0] == 1
    np.testing.assert_array_equal(table.rows, rows[1])
    assert memory.set_matchup(1, rows[1][::-1]) == 2
    np.testing.assert_array_equal(table.read(0)[1], rows[1][-1])
    assert MatchupTable.map(setup.matchup_shape, memory.actors[0].setup.matchup_fd).read(0)[0] == 1
    memory.close()


def test_counts_are_summed_over_mailboxes(memory):
    for record in memory.actors[1:3]:
        for box in record.boxes:
            box.header[BUSY_NS] = 5e8
            box.header[ACTIONS] = 7
    assert memory.environment_seconds() == 3.0
    assert [memory.actions_given(actor) for actor in range(4)] == [0, 21, 21, 0]


def test_nothing_stays_open(resolved):
    memory = Memory(resolved, fresh(resolved))
    descriptors = {fd for setup in memory.learners for fd in setup.fds}
    assert len(descriptors) > 20
    memory.close()
    memory.close()
    for fd in descriptors:
        with pytest.raises(OSError, match="descriptor"):
            os.fstat(fd)


def test_a_pack_begins_anew_and_the_others_notice_nothing(memory, resolved):
    names = tuple(resolved.spec.shaping)
    before = list(memory.learners)
    for record in memory.actors:
        for box in record.boxes:
            box.header[OBSERVATIONS], box.header[ACTIONS], box.header[BUSY_NS] = 8, 7, 5
    tables = [ShapingTable.map(names, setup.plan.slots, setup.shaping_fd) for setup in memory.learners]
    for table in tables:
        table.write(0, 9, dict.fromkeys(names, 3.5))
        table.guard[0] += 1  # as a learner leaves it that is killed while it writes
    start = fresh(resolved)
    memory.begin_anew(1, start)
    assert memory.learners[0] is before[0]
    assert memory.learners[1].seed != before[1].seed
    assert memory.learners[1].fds == before[1].fds
    values = start.slots[1][0].values
    assert tables[1].read(0) == (0, {name: values[SHAPING + name] for name in names})
    assert tables[0].guard[0] % 2 == 1
    for record in memory.actors:
        counters = [box.header[[OBSERVATIONS, ACTIONS, BUSY_NS]].tolist() for box in record.boxes]
        assert counters == [[0, 0, 5] if record.pack else [8, 7, 5]] * 3
    assert [memory.actions_given(actor) for actor in range(4)] == [21] * 4
