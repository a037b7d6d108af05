"""Tests for the simulator: all training is accounted for, and none of it twice."""

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pbt_rl.controllers.controllers import StaticController
from pbt_rl.controllers.decisions import Continue, Replace, Restart, Stop
from pbt_rl.controllers.hypers import HyperSpec
from pbt_rl.controllers.search.base import RandomSearch
from pbt_rl.controllers.search.brackets import Hyperband
from pbt_rl.controllers.search.hypertrick import HyperTrick, SuccessiveHalving
from pbt_rl.tune.simulation import Stay, simulate

TABLE = {"learning_rate": HyperSpec("learning_rate", 1e-3, 1e-5, 1e-2, "log", tuned=True)}


def any_score(member, frames, values, rng):
    return rng.random()


def check_books(sim):
    assert sum(s.frames for s in sim.stays) == sum(sim.frames)
    for key in ("slot", "member"):
        for i in {getattr(s, key) for s in sim.stays}:
            own = sorted((s for s in sim.stays if getattr(s, key) == i), key=lambda s: s.begin)
            assert all(a.end <= b.begin for a, b in pairwise(own)), f"one at a time: {key}"
    assert sim.busy_time == pytest.approx(math.fsum(s.end - s.begin for s in sim.stays))
    assert 0 <= sim.occupancy <= 1 + 1e-9
    assert {s.slot for s in sim.stays} <= set(range(sim.slots))


def test_one_slot_by_hand():
    search = RandomSearch(TABLE, 0, phase_frames=10)
    sim = simulate(search, 3, 1, speed=lambda m, *_: m + 1.0, score=lambda *_: 0.0)
    ends = (0.0, 10.0, 15.0, 15 + 10 / 3)
    assert sim.stays == tuple(Stay(0, m, ends[m], ends[m + 1], 10) for m in range(3))
    assert sim.total_time == 15 + 10 / 3
    assert sim.occupancy == pytest.approx(1)
    assert sim.completion(10) == 1
    assert (sim.occupied(-1), sim.occupied(12), sim.occupied(19)) == (0, 1, 0)


def test_barriers_leave_slots_idle():
    halving = SuccessiveHalving(TABLE, 0, phase_frames=10, phases=2, eviction_rate=0.5)
    sim = simulate(halving, 2, 2, speed=lambda m, *_: m + 1.0, score=lambda m, *_: -m)
    assert sim.frames == (20, 10)
    assert (sim.total_time, sim.busy_time, sim.occupancy) == (20, 25, 25 / 40)
    assert [sim.occupied(t) for t in (0, 6, 11)] == [2, 1, 1]


def test_without_decisions_members_take_turns_to_the_limit():
    frames = {"chunk_frames": 10, "limit_frames": 100, "slot_frames": 20}
    sim = simulate(StaticController(TABLE), 5, 2, speed=lambda *_: 1.0, score=any_score, **frames)
    check_books(sim)
    assert sim.frames == (100,) * 5
    assert sim.total_time == pytest.approx(250, abs=30)
    first_seen = {s.member: s.begin for s in reversed(sim.stays)}
    assert first_seen == {0: 0, 1: 0, 2: 20, 3: 20, 4: 40}


def test_copies_and_restarts_change_the_frames_of_the_weights():
    class Script(StaticController):
        def observe(self, seen):
            frames = tuple(m.frames for m in seen.members)
            if frames == (20, 10):
                return [Replace(1, 0, "both", {"learning_rate": 1.0}, "")]
            if frames == (40, 20):
                return [Restart(0, {"learning_rate": 2.0}, "", until_frames=60)]
            return []

    asked = []

    def score(member, frames, values, rng):
        asked.append((member, frames, values["learning_rate"]))
        return 0.0

    frames = {"chunk_frames": 10, "limit_frames": 70}
    sim = simulate(Script(TABLE), 2, 2, speed=lambda m, *_: 2.0 - m, score=score, **frames)
    assert sim.frames == (60, 70)
    assert [x for x in asked if x[0] == 0] == [
        (0, 10, 1e-3), (0, 20, 1e-3), (0, 30, 1e-3), (0, 40, 1e-3), (0, 10, 2.0), (0, 20, 2.0)
    ]  # fmt: skip
    # Member 1 was in the middle of a chunk when it became a copy of member 0 (20 frames).
    assert [x for x in asked if x[0] == 1][1:3] == [(1, 30, 1.0), (1, 40, 1.0)]


def test_a_member_that_is_stopped_in_the_middle_of_a_chunk_keeps_what_it_trained():
    class StopsTheOther(StaticController):
        def observe(self, seen):
            return [Stop(1, "")] if [m.frames for m in seen.members] == [10, 0] else []

    frames = {"chunk_frames": 10, "limit_frames": 20}
    sim = simulate(StopsTheOther(TABLE), 2, 2, speed=lambda m, *_: 2.0 - 1.4 * m, score=any_score, **frames)
    assert sim.frames == (20, 3)  # 0.6 a second for 5 seconds
    assert max(sim.stays, key=lambda s: s.member) == Stay(1, 1, 0.0, 5.0, 3)
    check_books(sim)


@given(st.integers(1, 25), st.integers(1, 9), st.integers(0, 99), st.sampled_from(["ht", "sh", "hb"]))
@settings(max_examples=40, deadline=None)
def test_books_of_any_run(members, slots, seed, kind):
    def once():
        phases = {"phase_frames": 50, "phases": 4}
        controller = {
            "ht": lambda: HyperTrick(TABLE, seed, **phases),
            "sh": lambda: SuccessiveHalving(TABLE, seed, **phases, slots=min(slots, members)),
            "hb": lambda: Hyperband(TABLE, seed, phase_frames=50, resource=9),
        }[kind]()
        speed = lambda m, f, v, rng: rng.uniform(10, 99)  # noqa: E731
        return simulate(controller, members, slots, speed=speed, score=any_score, seed=seed)

    sim = once()
    check_books(sim)
    for time, seen, decisions in sim.rounds:
        assert 0 <= time <= sim.total_time
        shown = {m.member: m for m in seen.members}
        for d in decisions:
            if isinstance(d, Continue | Restart) and d.until_frames != 0:
                assert d.until_frames > shown[d.member].frames
    assert once() == sim, "a seed is a run"
