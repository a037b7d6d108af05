"""Members that share the slots of a pack: what is kept, who gets credit for what, what reaches the parked."""

import numpy as np
import pytest
import torch

from pbt_rl.actors.messages import Load
from pbt_rl.actors.state_pool import Counts
from tests.helpers.fake_actor import ENVS, VALUES, Bench, Stand
from tests.helpers.packs import same_bits

MEMBERS = (4, 7, 9, 11)
"""4 and 7 hold the two slots at the start."""


@pytest.fixture
def stand():
    with Bench(policies=2, members=MEMBERS, core="gru", spare=2) as bench:
        stand = Stand(bench)
        stand.learn()
        yield stand


def change_slot(stand: Stand, slot: int, enters: int | None, generation=0, **values):
    return stand.hand_over(slot, enters, generation, **values)


def edit(stand: Stand, member: int, weights="keep", donor=None, generation=1, entry=None, **values):
    return stand.edit(member, weights, donor, generation, entry, **values)


def state(stand: Stand, member: int) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array) for name, array in stand.arrays(member).items()}


def test_a_parked_member_comes_back_bit_for_bit_in_whichever_slot(stand):
    before, neighbour = state(stand, 4), state(stand, 7)
    change_slot(stand, 0, 9)
    assert same_bits(state(stand, 7), neighbour)
    stand.learn()
    stand.learn()
    assert same_bits(state(stand, 4), before)
    assert not same_bits(state(stand, 9), before)
    change_slot(stand, 1, 4, gamma=0.9)
    assert same_bits(state(stand, 4), before)
    assert same_bits(dict(stand.bench.pack.export_member(1)), before)
    assert stand.bench.pack.hypers["gamma"].tolist() == pytest.approx([VALUES["gamma"], 0.9])
    stand.learn()
    stand.learn()
    assert not same_bits(state(stand, 4), before), "it learns again"
    assert state(stand, 4)["optimizer_steps"] > before["optimizer_steps"]


def test_fresh_weights_depend_on_who_not_on_when_or_where(stand):
    change_slot(stand, 0, 9)
    with Bench(policies=2, members=MEMBERS, core="gru", spare=2, seed=3) as other_bench:
        other = Stand(other_bench)
        for _ in range(3):
            other.learn()
        change_slot(other, 1, 9)
        assert same_bits(state(stand, 9), state(other, 9))
    first = state(stand, 9)
    edit(stand, 9, "fresh", generation=1)
    assert not same_bits(state(stand, 9), first)


def test_a_learner_begins_with_the_fresh_weights_of_a_later_generation(stand):
    edit(stand, 4, "fresh", generation=3)
    with Bench(policies=2, members=MEMBERS, core="gru", spare=2) as other_bench:
        other = Stand(other_bench)
        values = VALUES | {"shaping.bait": 0.25}
        other.trainer.members.place_first([Load(0, 4, 3, values, initialised=(4, 3))])
        assert torch.equal(state(other, 4)["param"], state(stand, 4)["param"])


@pytest.mark.parametrize("generation", [0, 2])
def test_the_learning_rate_falls_anew_for_weights_that_a_lost_learner_initialises_again(generation):
    with Bench(policies=2, members=MEMBERS, core="gru", spare=2) as bench:
        members = Stand(bench).trainer.members
        counts = Counts(4000, 1000, 10, 0)
        members.place_first([Load(0, 4, generation, VALUES, initialised=(4, generation), counts=counts)])
        steps = bench.shared.sampling.steps[MEMBERS.index(4)]
        assert members.fresh_steps[MEMBERS.index(4)] == steps > 0


def test_the_former_slot_members_rollouts_teach_no_member(stand):
    stand.bench.fill(2)
    discarded = stand.bench.shared.learning.discarded
    change_slot(stand, 0, 9)
    before = state(stand, 9)
    stand.trainer.learn()
    stand.bench.sampler.resume_finished()
    assert same_bits(state(stand, 9), before)
    assert stand.bench.shared.learning.discarded == discarded + 2
    rollouts = stand.bench.fill(2)
    assert all((r.state[:ENVS] == 0).all() for r in rollouts), "it begins without a memory"
    assert any((r.state[ENVS:] != 0).any() for r in rollouts)


def test_an_empty_slot_is_neither_trained_nor_counted(stand):
    sampler, shared = stand.bench.sampler, stand.bench.shared
    change_slot(stand, 0, None)
    kept = stand.bench.pack.export_member(0)
    steps, updates, discarded = (
        shared.sampling.steps.copy(),
        list(shared.learning.updates),
        shared.learning.discarded,
    )
    stand.learn()
    stand.learn()
    assert same_bits(stand.bench.pack.export_member(0), kept)
    assert [now > then for now, then in zip(shared.sampling.steps[:-1], steps, strict=False)] == [0, 1, 0, 0]
    assert [a - b for a, b in zip(shared.learning.updates, updates, strict=True)] == [0, 2, 0, 0, 0]
    assert shared.learning.discarded == discarded
    change_slot(stand, 1, None)
    for actor in stand.bench.actors:
        actor.advance()
    assert not sampler.run_inference(), "no slot is held: the actors sleep"
    change_slot(stand, 1, 11)
    assert sampler.run_inference()
    for _ in range(3):
        stand.learn()
    assert shared.learning.updates[3] >= 2


def test_counts_stay_with_the_members(stand):
    rng, shared = np.random.default_rng(0), stand.bench.shared
    learned = np.array(shared.learning.steps)
    for _ in range(12):
        slot, parked = (
            int(rng.integers(2)),
            [m for m in MEMBERS if stand.trainer.members.slot_of(m) is None],
        )
        change_slot(stand, slot, int(rng.choice(parked)))
        before, held = shared.sampling.steps.copy(), {MEMBERS[i] for i in shared.pack.member}
        stand.learn()
        gained = {
            m for m, now, then in zip(MEMBERS, shared.sampling.steps, before, strict=False) if now > then
        }
        assert gained <= held
    assert shared.sampling.steps[-1] == 0
    assert (np.array(shared.learning.steps) >= learned).all()
    assert (np.array(shared.learning.steps)[:-1] <= shared.sampling.steps[:-1]).all()
    assert min(shared.learning.updates[:-1]) > 0


@pytest.mark.parametrize("seed", range(4))
def test_an_episode_is_credited_to_the_member_that_played_all_of_it_or_to_none(seed):
    with Bench(policies=2, members=MEMBERS, vector_envs=2, on_policy=False, spare=4) as bench:
        stand, rng = Stand(bench), np.random.default_rng(seed)
        sampler, shared = bench.sampler, bench.shared
        holdings = [[("holding", 0, 4), ("holding", 0, 7)]]
        # The members of the slots when step n was taken; a new tuple for every change.
        now, credited, ended = [*holdings[0]], 0, 0
        for n in range(1, 400):
            if rng.random() < 0.15:
                slot = int(rng.integers(2))
                parked = [m for m in MEMBERS if stand.trainer.members.slot_of(m) is None]
                enters = int(rng.choice(parked)) if rng.random() < 0.8 else None
                change_slot(stand, slot, enters)
                now[slot] = ("holding", n, enters)
            if not any(shared.pack.slot_members):
                continue
            for actor in bench.actors:
                actor.advance()
            taken = bench.actors[0]._steps
            holdings += [list(now)] * (taken + 1 - len(holdings))
            sampler.run_inference()
            ended += sum(int(a.box.step.episode_done.sum()) for a in bench.actors)
            episodes, _ = shared.sampling.take()
            whole = 0
            for actor in bench.actors:
                for row in np.flatnonzero(actor.box.step.episode_done):
                    span = range(taken - int(actor.box.step.length[row]), taken + 1)
                    whole += (
                        len({holdings[i][row // ENVS] for i in span}) == 1 and None is not now[row // ENVS][2]
                    )
            assert len(episodes) == whole
            for e in episodes:
                assert e.member == now[int(e.objective) // ENVS][2]
            credited += len(episodes)
            if stand.trainer.has_batch:
                stand.trainer.learn()
        assert credited > 100
        assert ended - credited > 20


def test_a_member_that_enters_acts_by_the_values_that_it_is_given(stand):
    ack = change_slot(stand, 0, 9, generation=3, gamma=0.9)
    assert (ack.member, ack.generation, ack.donor, ack.parked) == (9, 3, None, False)
    assert ack.in_loss["gamma"] == pytest.approx(0.9)
    assert ack.in_environment == {"bait": 0.5}


@pytest.mark.parametrize(("member", "donor"), [(4, 9), (7, 4)])
def test_a_member_takes_a_state_that_was_saved(stand, member, donor):
    change_slot(stand, 0, 9)
    stand.learn()
    change_slot(stand, 0, 4)  # 9 is parked with a state of its own
    entry = stand.parked[9] if donor == 9 else stand.save(donor)
    source, others = state(stand, donor), {m: state(stand, m) for m in (4, 7, 9) if m not in (member, donor)}
    stand.learn()
    others = {m: state(stand, m) for m in others}
    edit(stand, member, "copy", donor, entry=entry)
    assert same_bits(state(stand, member), source)
    assert all(same_bits(state(stand, m), then) for m, then in others.items())


def test_a_member_whose_gradients_are_not_finite_is_broken_until_it_gets_other_weights(stand):
    def broken() -> list[bool | None]:
        return [stand.bench.shared.learning.take_broken(i) for i in range(4)]

    assert broken() == [False, False, None, None]
    assert broken() == [None] * 4, "no step since"
    stand.bench.pack.state["param"][1] = torch.nan
    stand.learn()
    stand.learn()
    edit(stand, 4, gamma=0.9)
    stand.learn()
    assert broken() == [False, True, None, None]
    stand.learn()
    edit(stand, 7, "fresh")
    assert broken() == [False, None, None, None], "that was of the weights that it had before"
    stand.learn()
    stand.learn()
    assert broken() == [False, False, None, None]


def test_skipped_steps_before_a_change_do_not_break_the_member_after_it(stand, monkeypatch):
    """The main thread may report in the midst of a change, which another thread makes."""
    trainer, learning, pack = stand.trainer, stand.bench.shared.learning, stand.bench.pack
    hypers_in_force, reports = pack.hypers_in_force, []

    def report_and_read(slot):
        with learning.lock:
            reports.append((trainer.members.generations[7], learning.take_broken(1)))
        return hypers_in_force(slot)

    learning.take_broken(1)
    pack.state["param"][1] = torch.nan
    monkeypatch.setattr(pack, "hypers_in_force", report_and_read)
    for generation, weights in ((1, "keep"), (2, "copy")):
        stand.learn()
        stand.learn()
        edit(stand, 7, weights, 4 if weights == "copy" else None, generation)
    assert reports == [(1, None), (2, None)]
