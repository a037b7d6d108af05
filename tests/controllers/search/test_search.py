"""HyperTrick by hand and by its law, the searches against each other, and their options."""

import json
import math
from dataclasses import replace
from statistics import mean, stdev

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pbt_rl.config import Config
from pbt_rl.controllers.decisions import Continue, Decision, PopulationReport, Stop, decision_to_dict
from pbt_rl.controllers.options import SearchConfig
from pbt_rl.controllers.records import converted
from pbt_rl.controllers.search.brackets import Hyperband
from pbt_rl.controllers.search.hypertrick import (
    HyperTrick,
    SuccessiveHalving,
    collection_size,
    expected_members,
)
from pbt_rl.controllers.search.search import RandomSearch, draw_grid
from pbt_rl.controllers.state import restore_state, save_state
from pbt_rl.errors import ConfigError
from pbt_rl.run.resolved import build_controller
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
from tests.helpers.simulation import simulate

# -- equations ------------------------------------------------------------------------------------------------


def expected_completion(eviction_rate, phases):
    """Share of all phases that are run: equation 9, [1 - (1 - r)^Np] / (r Np), as a sum."""
    return sum(expected_members(1, eviction_rate, p) for p in range(phases)) / phases


def least_completion(eviction_rate, phases):
    """Share of all phases that are run if everyone is evicted who may be: equation 8."""
    return (1 - math.sqrt(eviction_rate)) * expected_completion(eviction_rate, phases)


def test_table_1_of_the_paper():
    assert least_completion(0.25, 10) == pytest.approx(0.1887, abs=5e-5)
    assert expected_completion(0.25, 10) == pytest.approx(0.3775, abs=5e-5)
    assert least_completion(0.25, 5) == pytest.approx(0.3051, abs=5e-5)
    assert expected_completion(0.25, 5) == pytest.approx(0.6102, abs=5e-5)
    assert [collection_size(12, 0.25, p) for p in range(3)] == [6, 4.5, 3.375]


def hypertrick(members, **options):
    controller = HyperTrick(TABLE, 0, **{"phase_frames": 100, "phases": 3, "eviction_rate": 0.25} | options)
    return controller, begun(controller, members)


def test_the_rule_by_hand():
    controller, first = hypertrick(8)
    assert going_on(first) == dict.fromkeys(range(8), 100)
    assert controller.observe(at(99, {0: 9.0, 1: 9.0})) == [], "before the end of a phase"
    # W_0^DCM = 4: the first four go on whatever they have, the fifth on must be above the median so far.
    for i, score in enumerate([1.0, -5.0, 3.0, 2.0]):
        assert going_on(controller.observe(at(100, {i: score}))) == {i: 200}
    assert going_on(controller.observe(at(100, {4: 2.5}))) == {4: 200}  # -5 1 2 [2.5] 3: above 2
    assert stopped(controller.observe(at(100, {5: 1.5}))) == {5}  # -5 1 [1.5] 2 2.5 3: below 1.75
    assert going_on(controller.observe(at(100, {6: 9.0}))) == {6: 200}
    assert stopped(controller.observe(at(100, {7: 2.0 - 1e-9}))) == {7}
    # W_1^DCM = 3. Scores of one phase are not compared with those of another.
    for i in (0, 2, 6):
        assert going_on(controller.observe(at(200, {i: 100.0}))) == {i: 300}
    assert stopped(controller.observe(at(200, {4: 99.0}))) == {4}
    # Who ends the last phase is completed, whatever it has.
    assert controller.observe(at(300, {0: -1.0})) == [
        Stop(0, "completed: score -1", completed=True, score=-1.0)
    ]


def test_a_member_far_beyond_its_phase_still_trains_before_it_is_judged_again():
    controller, _ = hypertrick(1)
    assert going_on(controller.observe(at(750, {0: 1.0}))) == {0: 751}


def test_who_is_evicted():
    controller, _ = hypertrick(4, eviction_rate=0.81)  # collects one
    controller.observe(at(100, {0: 1.0}))
    assert going_on(controller.observe(at(100, {1: 2.0}))) == {1: 200}
    assert stopped(controller.observe(at(100, {2: 0.0}))) == {2}
    controller, _ = hypertrick(2)  # collects one
    wreck = replace(at(100, {0: 1.0}).members[0], broken=True)
    assert stopped(controller.observe(report(0, [wreck]))) == {0}
    assert going_on(controller.observe(at(100, {1: -9.0}))) == {1: 200}, "the first report: collected"


def test_ties_are_evicted_about_as_often_as_other_scores():
    runs = [
        simulate(
            HyperTrick(TABLE, s, phase_frames=100, phases=5),
            60,
            60,
            speed=any_speed,
            score=lambda *_: 1.0,
            seed=s,
        ).completion(500)
        for s in range(30)
    ]
    assert mean(runs) == pytest.approx(expected_completion(0.25, 5), abs=0.02)


def test_members_of_one_report_are_not_taken_in_the_order_of_their_ids():
    survivors = []
    for seed in range(40):
        controller = HyperTrick(TABLE, seed, phase_frames=100, phases=2, eviction_rate=0.25)
        begun(controller, 8)
        survivors += going_on(controller.observe(at(100, {i: float(-i) for i in range(8)})))
    assert any(i == 7 for i in survivors), "the worst is last by id, and sometimes collected"
    assert survivors.count(0) == 40, "the best always goes on"


@pytest.mark.parametrize(
    ("members", "phases", "rate", "nodes"), [(100, 10, 0.25, 100), (100, 5, 0.25, 100), (12, 4, 0.25, 6)]
)
def test_hypertrick_follows_its_law(members, phases, rate, nodes):
    runs = [
        simulate(
            HyperTrick(TABLE, s, phase_frames=100, phases=phases, eviction_rate=rate),
            members,
            nodes,
            speed=any_speed,
            score=any_score,
            seed=s,
        )
        for s in range(12)
    ]
    completions = [r.completion(100 * phases) for r in runs]
    average, error = mean(completions), stdev(completions) / math.sqrt(len(completions))
    # Members are whole (a collection of 3.375 takes 4): a little above the law, least so for many members.
    assert average == pytest.approx(expected_completion(rate, phases), abs=0.01 + 3 * error)
    for phase in range(phases):
        entered = mean(sum(f > 100 * phase for f in r.frames) for r in runs)
        assert entered == pytest.approx(expected_members(members, rate, phase), abs=0.02 * members + 0.5)
    assert all(r.completion(100 * phases) >= least_completion(rate, phases) for r in runs)


def test_total_times_are_in_the_papers_order():
    """The toy of figures 2, 3, 8 and 9: 12 configurations, 4 phases, 6 nodes, r = 1/4; durations differ by phase."""

    def mean_time(make, chunk=None):
        return mean(
            simulate(
                make(s),
                12,
                6,
                speed=lambda m, f, v, rng: 100 / rng.uniform(0.7, 1.3),
                score=any_score,
                seed=s,
                chunk_frames=chunk,
            ).total_time
            for s in range(100)
        )

    trick = mean_time(lambda s: HyperTrick(TABLE, s, phase_frames=100, phases=4))
    dynamic = mean_time(lambda s: SuccessiveHalving(TABLE, s, phase_frames=100, phases=4))
    static = mean_time(lambda s: SuccessiveHalving(TABLE, s, phase_frames=100, phases=4, slots=6))
    grid = mean_time(lambda s: RandomSearch(TABLE, s, phase_frames=400, sampling=draw_grid), chunk=100)
    assert trick < dynamic < static < grid


def config(**options):
    return Config(env="toy/memory", **options)


def test_the_options_choose_the_search():
    kinds = {
        "hypertrick": HyperTrick,
        "successive-halving": SuccessiveHalving,
        "hyperband": Hyperband,
        "random": RandomSearch,
    }
    for name, kind in kinds.items():
        assert type(build_controller(config(controller=name), TABLE, 0)) is kind
    grid = build_controller(config(controller="random", search=SearchConfig(sampling="grid")), TABLE, 0)
    assert grid.sampling is draw_grid


def test_the_length_of_a_phase_follows_from_the_budget_unless_given():
    def first_until(controller, **search):
        made = build_controller(
            config(controller=controller, train_for_frames=5400, search=SearchConfig(**search)), TABLE, 0
        )
        return max(going_on(begun(made, 46)).values())

    assert first_until("hypertrick") == 540
    assert first_until("hypertrick", phase_frames=7) == 7
    assert first_until("successive-halving", phases=5) == 1080
    assert first_until("hyperband") == 5400  # the bracket of random search
    assert first_until("random") == 5400
    assert first_until("random", phase_frames=7) == 70


@pytest.mark.parametrize("controller", ["hypertrick", "asha", "successive-halving", "hyperband", "random"])
def test_a_search_that_goes_on_with_another_budget_keeps_its_phases(controller):
    """Else members of different age would be compared in one phase."""

    def ends(budget):
        """Begin with 5,400 frames, go on with another budget: where the phases of members 0 to 7 end then."""
        begin, after = (
            build_controller(config(controller=controller, train_for_frames=frames, num_policies=8), TABLE, 0)
            for frames in (5400, budget)
        )
        values = begin.initial(8)

        def judged(by, frames):
            members = [member(i, (float(i),) * 5, frames=frames, values=values[i]) for i in range(8)]
            return [d.until_frames for d in by.observe(report(frames, members)) if isinstance(d, Continue)]

        judged(begin, 0)
        restore_state(after, save_state(begin))
        return judged(after, 600), judged(after, 1200)

    assert ends(54_000) == ends(5400)


def test_static_allocation_takes_the_places_of_the_run():
    made = build_controller(
        config(
            controller="successive-halving", num_policies=6, slots=2, search=SearchConfig(allocation="static")
        ),
        TABLE,
        0,
    )
    assert [u > 0 for u in going_on(begun(made, 6)).values()] == [True, True, False, False, False, False]


def test_a_budget_shorter_than_its_phases_is_refused():
    with pytest.raises(ConfigError, match=r"--train-for-frames 9 .*\b10\b"):
        build_controller(config(controller="hypertrick", train_for_frames=9), TABLE, 0)


# -- all searches -------------------------------------------------------------------------------------------

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
    assert controller.observe(at(300, {2: 0.0})) == [Stop(2, "completed: score 0", completed=True, score=0.0)]


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
    assert (type(decision), decision.member) == (Stop, 0)
    assert "objective" in decision.reason
