"""The slots of the packs: who holds them, who moves to another pack, and when no member can train any more."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pbt_rl.config import Config
from pbt_rl.controllers.changes import Change
from pbt_rl.controllers.state import restore_state, save_state
from pbt_rl.plan import Machine, make_plan
from pbt_rl.population.population import Population
from pbt_rl.population.slot_assignment import Candidate, SlotAssigner, Swap, first_members
from pbt_rl.population.slots import Slots
from tests.helpers.work import lines_run


class Table:
    """Six members on two packs."""

    def __init__(self, slots=4, slot_frames=100, budget_frames=1000) -> None:
        plan = make_plan(Config("toy/x", num_policies=6, devices="cpu,cpu", slots=slots), Machine(4, 0))
        self.population = Population([{}] * 6, 10, 1)
        self.slots = Slots(plan.packs, self.population, slot_frames, budget_frames)

    def assign(self, **frames: int) -> list[tuple]:
        """Set frames of members (m0=10, ...); returns moves as (pack, slot, leaves, enters)."""
        for name, count in frames.items():
            self.population.members[int(name[1:])].frames = count
        return [(pack, s.slot, s.leaves, s.enters) for pack, s in self.slots.assign()]

    @property
    def parked(self) -> list[int]:
        return [m.id for m in self.population.members if m.parked]


def test_each_member_holds_the_same_slot_of_its_pack_all_the_time():
    plan = make_plan(Config("toy/x", num_policies=5, devices="cpu,cpu"), Machine(4, 0))
    slots = Slots(plan.packs, Population([{}] * 5, 10, 1))
    assert [slots.members_of(pack) for pack in (0, 1)] == [[0, 2, 4], [1, 3]]
    assert [slots.slot_of(member) for member in range(5)] == [0, 0, 1, 1, 2]
    first = [(pack, s.slot, s.leaves, s.enters) for pack, s in slots.start()]
    assert first == [(m % 2, m // 2, None, m) for m in (0, 2, 4, 1, 3)]
    assert slots.plan == [{"members": [0, 2, 4], "slots": 3}, {"members": [1, 3], "slots": 2}]
    assert not slots.stuck


def test_members_take_turns_within_their_pack():
    table = Table()
    first = [(pack, s.slot, s.enters) for pack, s in table.slots.start()]
    assert first == [(m % 2, m // 2, m) for m in (0, 2, 1, 3)]
    assert table.parked == [4, 5]
    assert table.assign(m0=99, m2=50, m1=100) == [(1, 0, 1, 5)]
    assert table.parked == [1, 4]
    assert table.assign(m0=120) == [(0, 0, 0, 4)]
    assert table.assign(m3=100) == [], "the one that waits has as many"


def test_slots_are_assigned_anew_from_the_members_as_they_are():
    table = Table()
    table.population.members[4].apply(Change(4, "mutate", 1, values={"gamma": 0.5}))
    table.population.members[1].stopped = True
    assert table.assign(m0=10, m2=20, m3=30) == [(1, 0, 1, 5)]
    table.slots.choose_members()
    held = {(pack, s.slot): s.enters for pack, s in table.slots.start()}
    assert held == {(0, 0): 4, (0, 1): 0, (1, 0): 5, (1, 1): 3}
    assert table.parked == [1, 2]
    assert table.assign(m0=109, m4=50) == [], "a turn begins with the frames that its member has"
    assert table.assign(m0=110) == [(0, 1, 0, 2)]


@pytest.mark.parametrize("holders", [[0, 3], [0, 0], [0], [-1, 1]])
def test_assignments_to_no_members_are_refused(holders):
    table = Table()
    state = save_state(table.slots)
    state["_assigners"][0]["_holders"] = holders
    with pytest.raises(ValueError, match="slot assignment"):
        restore_state(table.slots, state)


def test_the_slot_of_a_stopped_member_or_of_one_without_budget_goes_to_a_parked_one():
    table = Table(slot_frames=None)
    table.population.members[0].stopped = True
    assert table.assign() == [(0, 0, 0, 4)]
    assert table.slots.slot_of(4) == 0
    assert table.slots.slot_of(0) is None
    assert table.assign(m1=10**9) == [(1, 0, 1, 5)]
    assert Table(slot_frames=None).assign(m0=1000) == [(0, 0, 0, 4)]
    assert Table(slots=6).assign(m0=1000) == []
    assert Table(budget_frames=None, slot_frames=None).assign(m0=1000) == []


@pytest.mark.parametrize("slots", [4, 6])
def test_a_member_that_waits_for_a_decision_makes_way(slots):
    table = Table(slots)
    table.population.members[0].until_frames = 50
    assert table.assign(m0=60) == [(0, 0, 0, 4 if slots == 4 else None)]
    table.population.members[0].until_frames = 500
    assert table.assign() == ([] if slots == 4 else [(0, 0, None, 0)])


def test_it_is_over_when_no_member_may_train_in_two_reports_of_every_learner():
    table = Table()
    table.slots.serving |= {0, 1}
    for member in table.population.members:
        member.until_frames = 10
        member.frames = 10
    for pack in (0, 1, 0, 0):
        table.slots.note_report(pack)
        assert not table.slots.stuck
    table.slots.note_report(1)
    assert table.slots.stuck
    table.population.members[5].until_frames = None
    table.slots.note_report(0)
    assert not table.slots.stuck


def test_only_learners_that_are_there_are_waited_for():
    table = Table()
    table.slots.serving |= {0}
    for member in table.population.members:
        member.until_frames = member.frames = 10
    table.slots.note_report(0)
    assert not table.slots.stuck
    table.slots.note_report(0)
    assert table.slots.stuck
    table.slots.serving.clear()
    assert not table.slots.stuck, "none is there: one may come"


@pytest.fixture
def travellers():
    """Three members per pack, two slots each, of which pack 1 has lost its machine."""
    table = Table()
    table.slots.serving |= {0}
    return table


def test_members_of_a_lost_pack_go_to_those_that_serve(travellers):
    slots = travellers.slots
    assert slots.scatter(1) == [(1, 0), (3, 0), (5, 0)]
    assert slots.of(0) == (0, 1, 2, 3, 4, 5)
    assert (slots.of(1), slots.members_of(1)) == ((), [None, None])
    assert {slots.pack_of[member] for member in range(6)} == {0}
    assert travellers.parked == [1, 3, 4, 5]
    assert travellers.assign(m0=150, m2=80, m4=20) == [(0, 0, 0, 1)], "they share the slots by turns"


def test_they_spread_over_the_packs_with_the_fewest_members_per_slot():
    plan = make_plan(Config("toy/x", num_policies=8, devices="cpu,cpu,cpu,cpu"), Machine(8, 0))
    slots = Slots(plan.packs, Population([{}] * 8, 10, 1), 100, 1000)
    slots.serving |= {0, 1, 2}
    assert slots.scatter(3) == [(3, 0), (7, 1)]


def test_without_a_pack_that_serves_they_stay(travellers):
    travellers.slots.serving.clear()
    assert travellers.slots.scatter(1) == []
    assert travellers.slots.of(1) == (1, 3, 5)
    travellers.slots.serving.add(1)
    assert travellers.slots.scatter(1) == [], "a pack is no other one"


def test_those_that_may_not_train_do_not_move(travellers):
    slots = travellers.slots
    slots.scatter(1)
    slots.serving.add(1)
    for member in travellers.population.members:
        member.stopped = member.id != 4
        member.until_frames = 10 if member.id == 4 else None
        member.frames = 10
    assert slots.travel() == []


def test_a_pack_that_serves_again_takes_those_that_wait_the_least_trained_first(travellers):
    slots = travellers.slots
    slots.scatter(1)
    assert slots.travel() == [], "no other pack serves"
    slots.serving.add(1)
    for member, frames in ((1, 50), (3, 10), (5, 10), (4, 70)):
        travellers.population.members[member].frames = frames
    assert slots.travel() == [(3, 1), (5, 1)]
    assert travellers.assign() == [(1, 0, None, 3), (1, 1, None, 5)]
    assert slots.travel() == []


def test_a_member_that_waits_takes_a_slot_that_is_free_elsewhere():
    table = Table()
    table.slots.serving |= {0, 1}
    for member in (1, 3, 5):
        table.population.members[member].stopped = True
    table.assign()
    assert table.slots.travel() == [(4, 1)]


# -- turns --------------------------------------------------------------------------------------------------


def all_free(frames, until=None):
    return [Candidate(i, f, until) for i, f in enumerate(frames)]


def test_a_freed_slot_goes_to_the_least_trained_and_then_to_the_lowest_id():
    slots = SlotAssigner(range(2), None)
    assert slots.assign(all_free([0] * 5)) == []
    rest = [Candidate(1, 50, None), Candidate(2, 30, None), Candidate(3, 10, None), Candidate(4, 10, None)]
    assert slots.assign(rest) == [Swap(0, 0, 3)]
    assert slots.assign([rest[1], rest[2], rest[3]]) == [Swap(1, 1, 4)]
    assert slots.members == (3, 4)


def test_first_members_have_the_fewest_frames_and_their_turn_begins_with_them():
    assert first_members(all_free([0] * 5), 2) == [0, 1], "a fresh run"
    some = [Candidate(0, 90, None), Candidate(1, 40, 40), Candidate(2, 70, 80), Candidate(3, 70, None)]
    assert first_members(some, 2) == [2, 3]
    assert first_members(some[:2], 3) == [0, None, None]
    slots = SlotAssigner([0], 100, [500])
    assert slots.assign(all_free([599, 0])) == []
    assert slots.assign(all_free([600, 0])) == [Swap(0, 0, 1)]


def test_a_turn_ends_only_for_someone_less_trained():
    slots = SlotAssigner(range(1), 100)
    assert slots.assign(all_free([99, 0, 0])) == []
    assert slots.assign(all_free([100, 0, 0])) == [Swap(0, 0, 1)]
    assert slots.assign(all_free([100, 99, 0])) == []
    assert slots.assign(all_free([100, 105, 0])) == [Swap(0, 1, 2)]
    assert slots.assign(all_free([100, 105, 100])) == [], "no member who waits has fewer frames"
    assert slots.assign(all_free([100, 105, 101])) == [Swap(0, 2, 0)]


def test_the_work_of_an_assignment_grows_as_the_population_does():
    def assign(half):
        assert len(SlotAssigner(range(half), 10).assign(all_free([20] * half + [0] * half))) == half

    assert lines_run(assign, 1_000) < 5 * lines_run(assign, 250)


moves = st.lists(st.tuples(st.integers(0, 11), st.sampled_from(["train", "wait", "go", "stop"])), max_size=40)


@given(st.integers(1, 12), st.integers(1, 12), st.sampled_from([None, 1, 30]), moves)
@settings(max_examples=200, deadline=None)
def test_laws(members, slots, turn, moves):
    slots = min(members, slots)
    assigner = SlotAssigner(range(slots), turn)
    alive = {i: Candidate(i, 0, None) for i in range(members)}
    for who, what in moves:
        before = assigner.members
        if who in alive:
            candidate = alive[who]
            if what == "train" and who in before and candidate.may_train:
                alive[who] = replace(candidate, frames=candidate.frames + 20)
            elif what == "wait":
                alive[who] = replace(candidate, until_frames=candidate.frames)
            elif what == "go":
                alive[who] = replace(candidate, until_frames=None)
            elif what == "stop":
                del alive[who]
        swaps = assigner.assign(list(alive.values()))
        after = assigner.members
        on_slot = [m for m in after if m is not None]
        assert len(on_slot) == len(set(on_slot)), "no member has two slots"
        assert all(m in alive and alive[m].may_train for m in on_slot)
        parked = [c for c in alive.values() if c.member not in on_slot and c.may_train]
        assert not parked or None not in after, "no member waits while a slot is empty"
        for swap in swaps:
            assert (before[swap.slot], after[swap.slot]) == (swap.leaves, swap.enters)
        assert {c.slot for c in swaps} == {p for p in range(slots) if before[p] != after[p]}
        entered = [alive[c.enters] for c in swaps if c.enters is not None and c.enters not in before]
        for newcomer in entered:
            fairer = [c for c in parked if c.frames < newcomer.frames and c.member not in before]
            assert not fairer, "the least trained come first"
        if turn is None:
            left = [c.leaves for c in swaps if c.leaves is not None]
            assert all(m not in alive or not alive[m].may_train for m in left), "no member is preempted"
        assert assigner.assign(list(alive.values())) == [], "nothing is left to do"


@given(st.integers(1, 9), st.integers(1, 4), st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_members_that_take_turns_stay_close_to_each_other(members, slots, turn):
    slots = min(members, slots)
    assigner, frames = SlotAssigner(range(slots), turn), [0] * members
    for _ in range(60 * members):
        for m in assigner.members:
            frames[m] += 1
        assigner.assign(all_free(frames))
    assert max(frames) - min(frames) <= 2 * turn + 1
