"""Laws of all searches, and Successive Halving by hand."""

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pbt_rl.controllers.decisions import Continue, Decision, PopulationReport, Stop, decision_to_dict
from pbt_rl.controllers.records import converted
from pbt_rl.controllers.search.hypertrick import SuccessiveHalving, expected_members
from pbt_rl.tune.simulation import simulate
from tests.helpers.populations import member, report
from tests.helpers.searches import (
    NAMES,
    TABLE,
    any_score,
    any_speed,
    at,
    begun,
    controllers,
    going_on,
    stopped,
)

# -- Successive Halving -------------------------------------------------------------------------------------------


def halving(members, **options):
    controller = SuccessiveHalving(
        TABLE, 0, **{"phase_frames": 100, "phases": 3, "eviction_rate": 0.5} | options
    )
    return controller, begun(controller, members)


def test_all_wait_for_the_last_and_the_worst_stop():
    controller, first = halving(4)
    assert going_on(first) == dict.fromkeys(range(4), 100)
    late = report(80, [*at(100, {0: 1.0, 1: 4.0, 2: 3.0}).members, member(3, (9.0,), frames=80)])
    assert controller.observe(late) == []
    decisions = controller.observe(at(100, {0: 1.0, 1: 4.0, 2: 3.0, 3: 2.0}))
    assert (going_on(decisions), stopped(decisions)) == ({1: 200, 2: 200}, {0, 3})
    decisions = controller.observe(at(200, {1: 1.0, 2: 2.0}))
    assert (going_on(decisions), stopped(decisions)) == ({2: 300}, {1})
    assert controller.observe(at(300, {2: 0.0})) == [Stop(2, "completed: 0", completed=True, score=0.0)]


def test_a_member_that_vanishes_or_breaks_is_not_waited_for():
    controller, _ = halving(4)
    broken = replace(member(1, (5.0,), frames=50), broken=True)
    rest = at(100, {0: 1.0, 2: 3.0}).members  # 3 has vanished
    decisions = controller.observe(report(50, [rest[0], broken, rest[1]]))
    assert decisions[1] == Stop(1, "evicted: broken")
    assert going_on(decisions) == {0: 200, 2: 200}, "two of four are left: just as many as go on"


def test_static_allocation_uses_each_place_for_its_own_members_only():
    controller, first = halving(5, slots=2, eviction_rate=0.2)  # slot 0: 0, 2, 4; slot 1: 1, 3
    assert going_on(first) == {0: 100, 1: 100, 2: 0, 3: 0, 4: 0}
    now = {0: 100, 1: 60, 2: 0, 3: 0, 4: 0}

    def observed():
        return controller.observe(
            report(0, [member(i, (float(-i),), frames=f, episodes=9) for i, f in now.items()])
        )

    assert going_on(observed()) == {2: 100}
    now |= {1: 100, 2: 30}
    assert going_on(observed()) == {3: 100}
    now |= {3: 100, 2: 50}
    assert observed() == [], "slot 1 has no more members in this phase: it idles"
    now |= {2: 100}
    assert going_on(observed()) == {4: 100}
    now |= {4: 100}
    decisions = observed()
    assert (going_on(decisions), stopped(decisions)) == ({0: 200, 1: 200}, {4})


@given(st.integers(1, 40), st.integers(1, 6), st.floats(0, 0.9), st.integers(1, 8), st.booleans())
@settings(max_examples=60, deadline=None)
def test_successive_halving_trains_exactly_its_sizes(members, phases, rate, slots, static):
    sim = simulate(
        SuccessiveHalving(
            TABLE,
            0,
            phase_frames=10,
            phases=phases,
            eviction_rate=rate,
            slots=min(slots, members) if static else None,
        ),
        members,
        slots,
        speed=any_speed,
        score=any_score,
    )
    sizes = [max(1, round(expected_members(members, rate, p))) for p in range(phases)]
    assert [sum(f > 10 * p for f in sim.frames) for p in range(phases)] == sizes
    assert len(sim.stopped) == members


@pytest.mark.parametrize("name", NAMES)
@given(
    members=st.integers(1, 30), slots=st.integers(1, 8), seed=st.integers(0, 999), scores=st.integers(0, 2)
)
@settings(max_examples=15, deadline=None)
def test_every_search_ends_whatever_the_scores(name, members, slots, seed, scores):
    """Ties, NaN, infinities, one member, fewer members than slots."""
    levels = [[1.0], [0.0, -1.0, math.nan, 3.0], [math.inf, -math.inf, math.nan]][scores]
    controller = controllers(seed)[name]
    sim = simulate(
        controller, members, slots, speed=any_speed, score=lambda m, f, v, rng: rng.choice(levels), seed=seed
    )
    assert sim.stopped == frozenset(range(members))
    assert all(f > 0 for f in sim.frames), "every configuration is tried"


@pytest.mark.parametrize("name", NAMES)
def test_members_that_break_are_stopped_at_once_and_nobody_waits_for_them(name):
    controller = controllers()[name]
    doomed = {1: 30, 2: 100, 5: 130}
    ends = {}

    class Breaking:
        def initial(self, num):
            return controller.initial(num)

        def observe(self, seen):
            members = [replace(m, broken=m.frames >= doomed.get(m.member, math.inf)) for m in seen.members]
            answer = controller.observe(report(seen.frames, members))
            broken = {m.member for m in members if m.broken}
            assert broken <= stopped(answer)
            ends.update({d.member: d.reason for d in answer if isinstance(d, Stop)})
            return answer

    sim = simulate(Breaking(), 12, 4, speed=any_speed, score=any_score, chunk_frames=10)
    assert sim.stopped == frozenset(range(12))
    assert ends[1] == "evicted: broken"
    assert sim.frames[1] <= 40
    assert sum(reason.startswith("completed") for reason in ends.values()) > 0


@pytest.mark.parametrize("name", NAMES)
def test_the_recorded_rounds_replay_bit_for_bit(name):
    sim = simulate(
        controllers()[name],
        20,
        3,
        speed=any_speed,
        score=any_score,
        seed=1,
        chunk_frames=7,
        limit_frames=1300,
    )
    again = controllers()[name]
    again.initial(20)
    assert len(sim.rounds) > 4
    for _, seen, decisions in sim.rounds:
        recorded = json.loads(
            json.dumps({"frames": seen.frames, "members": [m.__dict__ for m in seen.members]})
        )
        answer = again.observe(converted(recorded, PopulationReport, "a report"))
        assert [
            converted(json.loads(json.dumps(decision_to_dict(d))), Decision, "a decision") for d in answer
        ] == list(decisions)


@pytest.mark.parametrize("name", NAMES)
def test_all_members_are_drawn_and_only_what_is_tuned(name):
    values = controllers()[name].initial(30)
    rates = [v["learning_rate"] for v in values]
    assert len(set(rates)) == 30
    assert TABLE["learning_rate"].default not in rates
    assert all(1e-5 <= x <= 1e-2 for x in rates)
    assert {v["gamma"] for v in values} == {0.99}
    assert controllers(seed=1)[name].initial(30) != values


@pytest.mark.parametrize("name", NAMES)
def test_a_member_with_few_episodes_gets_a_little_more_and_is_judged_in_the_end(name):
    controller = controllers()[name]
    controller.min_episodes = 5
    (first,) = begun(controller, 1)
    frames, given_frames = first.until_frames, []
    unit = controller.phase_frames
    for _ in range(10):
        (decision,) = controller.observe(report(frames, [member(0, (1.0,), frames=frames, episodes=4)]))
        assert isinstance(decision, Continue)
        given_frames.append(decision.until_frames - frames)
        frames = decision.until_frames
    assert given_frames == [unit // 10] * 10
    assert frames == first.until_frames + unit
    (decision,) = controller.observe(report(frames, [member(0, (), frames=frames, episodes=0)]))
    assert decision == Stop(0, "evicted: no finite objective")
