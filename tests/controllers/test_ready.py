import json
import re
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pbt_rl.controllers.ready import Asynchronous, PartiallySynchronous, Synchronous, grown
from pbt_rl.controllers.state import restore_state, save_state
from tests.helpers.populations import member, report

RULES = {"synchronous": Synchronous, "asynchronous": Asynchronous, "partially": PartiallySynchronous}


def population(frames, *episodes):
    return report(frames, [member(i, frames=frames, episodes=n) for i, n in enumerate(episodes)])


def held_at(rule, clocks):
    return [c for c in clocks if rule.next_comparison(population(c, 9, 9)) is not None]


@pytest.mark.parametrize(
    ("rule", "clocks", "held"),
    [
        (Synchronous(100, 1000, 1), range(0, 1501, 50), [1000, 1100, 1200, 1300, 1400, 1500]),
        (Synchronous(100, 0, 1), range(0, 301, 50), [100, 200, 300]),
        (Synchronous(100, 0, 1), [100, 950, 951, 1000, 1049, 1050], [100, 950, 1050]),  # they do not pile up
        (Synchronous(100, 0, 1, growth=2.0), range(0, 1600, 50), [100, 300, 700, 1500]),
        (Asynchronous(100, 0, 1, growth=2.0), range(0, 1600, 50), [100, 300, 700, 1500]),
    ],
)
def test_when_comparisons_are_held(rule, clocks, held):
    assert held_at(rule, clocks) == held


def test_an_interval_grows_to_a_limit():
    assert grown(10**7, 3.0, 10**6) == 10**18, "no overflow"
    assert grown(100, 1.0, 5) == 100


def test_members_with_few_episodes_wait_and_the_others_go_on():
    rule = Synchronous(100, 0, 5)
    first = rule.next_comparison(population(100, 9, 4, 5))
    assert [m.member for m in first.members] == [0, 2]
    assert re.search(r": 1 \(.*\b5\b", first.note)
    second = rule.next_comparison(population(200, 9, 5, 5))
    assert ([m.member for m in second.members], second.number, second.note) == ([0, 1, 2], 2, "")


def test_all_windows_begin_at_the_last_comparison():
    """Members that changed have no older episodes; with theirs, the others would be judged by lower scores."""
    rule = Synchronous(100, 0, min_episodes=2)
    old = replace(member(0, (1.0, 2.0, 3.0)), episodes=7, recent=2)
    changed, waits = replace(member(1, (2.5, 3.5)), recent=2), replace(member(2, (9.0, 9.0)), recent=1)
    comparison = rule.next_comparison(report(200, [old, changed, waits]))
    assert [(m.member, m.objectives, m.episodes) for m in comparison.members] == [
        (0, (2.0, 3.0), 2),
        (1, (2.5, 3.5), 2),
    ]
    assert "absent members: 2 (" in comparison.note


def test_less_than_half_of_the_members_are_not_compared_for_a_period():
    """Those that are ready first have the shortest episodes."""
    rule = Synchronous(100, 0, 5)
    before = save_state(rule)
    assert rule.next_comparison(population(100, 9, 9, 0, 0, 0)) is None
    assert rule.next_comparison(population(199, 9, 9, 0, 0, 0)) is None
    assert save_state(rule) == before
    assert [m.member for m in rule.next_comparison(population(199, 9, 9, 9, 0, 0)).members] == [0, 1, 2]
    assert rule.next_comparison(population(398, 9, 9, 0, 0, 0)) is None
    assert [m.member for m in rule.next_comparison(population(399, 9, 9, 0, 0, 0)).members] == [0, 1], (
        "long enough"
    )


def test_with_fewer_than_two_ready_the_comparison_stays_due_and_says_so():
    rule = Synchronous(100, 0, 5)
    before = save_state(rule)
    assert rule.next_comparison(population(100, 9, 4, 4)) is None
    assert rule.next_comparison(population(130, 9, 4, 4)) is None
    assert save_state(rule) == before
    late = rule.next_comparison(population(150, 9, 5, 4))
    assert late.number == 1
    assert re.search(r"\b150\b.*\b100\b.*: 2 \(.*\b5\b", late.note)
    assert rule.next_comparison(population(249, 9, 9, 9)) is None
    assert rule.next_comparison(population(250, 9, 9, 9)).note == ""


@pytest.mark.parametrize("kind", RULES.values())
def test_a_shorter_start_holds_at_once_for_a_rule_that_is_restored(kind):
    saved = save_state(kind(1000, 5000, 1))
    sooner = kind(100, 200, 1)
    restore_state(sooner, saved)
    assert sooner.next_comparison(population(200, 9, 9)) is not None


def test_a_broken_member_need_not_finish_episodes():
    rule = Synchronous(100, 0, 5)
    held = rule.next_comparison(report(100, [member(0, episodes=9), member(1, (), broken=True)]))
    assert [m.member for m in held.members] == [0, 1]


def clocks(*frames):
    return report(min(frames), [member(i, frames=f, episodes=9) for i, f in enumerate(frames)])


def test_asynchronous_each_by_its_own_clock_against_the_others_as_they_are():
    rule = Asynchronous(100, 200, 1)
    assert rule.next_comparison(clocks(199, 150, 10)) is None
    first = rule.next_comparison(clocks(220, 150, 10))
    assert first.deciding == {0}
    assert [m.member for m in first.members] == [0, 1, 2]
    assert rule.next_comparison(clocks(319, 199, 30)) is None, "its next period began when it decided"
    both = rule.next_comparison(clocks(320, 200, 50))
    assert (both.number, both.deciding) == (2, {0, 1})


def test_asynchronous_a_member_that_must_wait_loses_no_comparison():
    rule = Asynchronous(100, 0, 5)
    state = json.dumps(save_state(rule))
    waits = [member(0, frames=150, episodes=4), member(1, frames=20, episodes=9)]
    assert rule.next_comparison(report(20, waits)) is None
    alone = [member(0, frames=160, episodes=9), member(1, frames=20, episodes=4)]
    assert rule.next_comparison(report(20, alone)) is None, "a comparison needs two members"
    assert json.dumps(save_state(rule)) == state
    there = [member(0, frames=170, episodes=5), member(1, frames=30, episodes=5)]
    assert rule.next_comparison(report(30, there)).deciding == {0}


def test_partially_synchronous_waits_for_enough_of_the_members():
    rule = PartiallySynchronous(100, 0, 1, fraction=0.5)
    assert rule.next_comparison(clocks(150, 90, 20, 0)) is None
    first = rule.next_comparison(clocks(160, 100, 20, 0))
    assert [m.member for m in first.members] == [0, 1]
    assert first.deciding is None
    assert ": 2, 3 (" in first.note
    assert rule.next_comparison(clocks(259, 199, 100, 0)) is None
    late = rule.next_comparison(clocks(260, 199, 100, 10))
    assert [m.member for m in late.members] == [0, 2], "who came too late counts for the next one"
    everybody = PartiallySynchronous(100, 0, 1, fraction=1.0)
    assert everybody.next_comparison(clocks(100, 100, 99)) is None
    assert everybody.next_comparison(clocks(101, 101, 100)) is not None


def test_a_stopped_member_is_not_waited_for():
    rule = PartiallySynchronous(100, 0, 1, fraction=1.0)
    members = [member(i, frames=f) for i, f in enumerate((100, 100, 5))]
    assert rule.next_comparison(report(5, members)) is None
    assert rule.next_comparison(report(100, members[:2])) is not None


@settings(max_examples=40)
@given(st.sampled_from(sorted(RULES)), st.integers(0, 999), st.integers(1, 6), st.sampled_from([1.0, 1.5]))
def test_no_rule_compares_a_member_before_its_time_or_forgets_it(name, seed, num_members, growth):
    rng = Random(seed)
    rule, restored = (RULES[name](100, 250, 3, growth) for _ in range(2))
    frames, episodes = [0] * num_members, [0] * num_members
    decided = {i: [] for i in range(num_members)}
    for _ in range(200):
        for i in range(num_members):
            step = rng.choice([0, 10, 40])
            frames[i] += step
            episodes[i] += step > 0 and rng.random() < 0.8
        seen = report(
            min(frames), [member(i, frames=frames[i], episodes=episodes[i]) for i in range(num_members)]
        )
        before = json.dumps(save_state(rule))
        restore_state(restored, json.loads(before))
        held = rule.next_comparison(seen)
        assert restored.next_comparison(seen) == held
        assert save_state(restored) == save_state(rule)
        if held is None:
            assert json.dumps(save_state(rule)) == before
            continue
        assert len(held.members) >= 2
        assert all(m.episodes >= 3 for m in held.members)
        for m in held.members:
            if held.deciding is None or m.member in held.deciding:
                decided[m.member].append(seen.frames if name == "synchronous" else m.frames)
                episodes[m.member] = 0
    for times in decided.values():
        assert all(t >= 250 for t in times)
        assert all(b - a >= 100 for a, b in pairwise(times))
        assert num_members == 1 or times, "it was never compared"
    assert num_members > 1 or not decided[0]


@pytest.mark.parametrize(
    ("rule", "frames", "left"),
    [
        (Synchronous(100, 250, 1), (30, 90), 220),
        (Synchronous(100, 0, 1), (130, 190), 0),
        (Asynchronous(100, 250, 1), (30, 90), 160),
        (PartiallySynchronous(100, 250, 1, fraction=0.5), (30, 90, 240, 200), 50),
    ],
)
def test_how_far_the_next_comparison_is(rule, frames, left):
    assert rule.frames_left(clocks(*frames)) == left
