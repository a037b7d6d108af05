"""Tests for the assignment of slots: laws for any members, and the rules by hand."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from pbt_rl.population.turns import Candidate, Handover, SlotAssigner, first_holders
from tests.helpers.work import lines_run


def all_free(frames, until=None):
    return [Candidate(i, f, until) for i, f in enumerate(frames)]


def test_a_freed_slot_goes_to_the_least_trained_and_then_to_the_lowest_id():
    slots = SlotAssigner(range(2), None)
    assert slots.assign(all_free([0] * 5)) == []
    rest = [Candidate(1, 50, None), Candidate(2, 30, None), Candidate(3, 10, None), Candidate(4, 10, None)]
    assert slots.assign(rest) == [Handover(0, 0, 3)]
    assert slots.assign([rest[1], rest[2], rest[3]]) == [Handover(1, 1, 4)]
    assert slots.holders == (3, 4)


def test_first_holders_have_the_fewest_frames_and_their_turn_begins_with_them():
    assert first_holders(all_free([0] * 5), 2) == [0, 1], "a fresh run"
    some = [Candidate(0, 90, None), Candidate(1, 40, 40), Candidate(2, 70, 80), Candidate(3, 70, None)]
    assert first_holders(some, 2) == [2, 3]
    assert first_holders(some[:2], 3) == [0, None, None]
    slots = SlotAssigner([0], 100, [500])
    assert slots.assign(all_free([599, 0])) == []
    assert slots.assign(all_free([600, 0])) == [Handover(0, 0, 1)]


def test_a_turn_ends_only_for_someone_less_trained():
    slots = SlotAssigner(range(1), 100)
    assert slots.assign(all_free([99, 0, 0])) == []
    assert slots.assign(all_free([100, 0, 0])) == [Handover(0, 0, 1)]
    assert slots.assign(all_free([100, 99, 0])) == []
    assert slots.assign(all_free([100, 105, 0])) == [Handover(0, 1, 2)]
    assert slots.assign(all_free([100, 105, 100])) == [], "no member who waits has fewer frames"
    assert slots.assign(all_free([100, 105, 101])) == [Handover(0, 2, 0)]


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
        before = assigner.holders
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
        handovers = assigner.assign(list(alive.values()))
        after = assigner.holders
        resident = [m for m in after if m is not None]
        assert len(resident) == len(set(resident)), "no member has two slots"
        assert all(m in alive and alive[m].may_train for m in resident)
        parked = [c for c in alive.values() if c.member not in resident and c.may_train]
        assert not parked or None not in after, "no member waits while a slot is empty"
        for handover in handovers:
            assert (before[handover.slot], after[handover.slot]) == (handover.leaves, handover.enters)
        assert {c.slot for c in handovers} == {p for p in range(slots) if before[p] != after[p]}
        entered = [alive[c.enters] for c in handovers if c.enters is not None and c.enters not in before]
        for newcomer in entered:
            fairer = [c for c in parked if c.frames < newcomer.frames and c.member not in before]
            assert not fairer, "the least trained come first"
        if turn is None:
            left = [c.leaves for c in handovers if c.leaves is not None]
            assert all(m not in alive or not alive[m].may_train for m in left), "no member is preempted"
        assert assigner.assign(list(alive.values())) == [], "nothing is left to do"


@given(st.integers(1, 9), st.integers(1, 4), st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_members_that_take_turns_stay_close_to_each_other(members, slots, turn):
    slots = min(members, slots)
    assigner, frames = SlotAssigner(range(slots), turn), [0] * members
    for _ in range(60 * members):
        for m in assigner.holders:
            frames[m] += 1
        assigner.assign(all_free(frames))
    assert max(frames) - min(frames) <= 2 * turn + 1
