"""HyperTrick, Successive Halving, random and grid search: rules by hand, and laws."""

import json
import math
import time
from random import Random
from statistics import mean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from populations import member, report

from pbt_rl.config import Config
from pbt_rl.errors import ConfigError
from pbt_rl.pbt.config import PbtConfig
from pbt_rl.pbt.decisions import Continue, Stop, decision_from_dict, decision_to_dict, report_from_dict
from pbt_rl.pbt.hyperband import Hyperband
from pbt_rl.pbt.hypers import HyperSpec
from pbt_rl.pbt.random_search import GridSearch, RandomSearch
from pbt_rl.pbt.search import (
    HyperTrick,
    SuccessiveHalving,
    build_search,
    collection_size,
    expected_completion,
    expected_members,
    least_completion,
    matching_eviction_rate,
)
from pbt_rl.pbt.search_config import SearchConfig
from pbt_rl.pbt.simulate import mean_and_error, simulate

TABLE = {
    "learning_rate": HyperSpec("learning_rate", 1e-3, 1e-5, 1e-2, "log", tuned=True),
    "gamma": HyperSpec("gamma", 0.99, 0.9, 0.999, "one_minus", tuned=False),
}


def begun(controller, members):
    """Show the first report; every member must be answered."""
    controller.initial(members)
    first = controller.observe(report(0, [member(i, (), frames=0) for i in range(members)]))
    assert [d.member for d in first] == list(range(members))
    return first


def at(frames, scores):
    """Report of members {id: score} that all have so many frames."""
    return report(frames, [member(i, (s,), frames=frames, episodes=9) for i, s in scores.items()])


def going_on(decisions):
    return {d.member: d.until_frames for d in decisions if isinstance(d, Continue)}


def stopped(decisions):
    return {d.member for d in decisions if isinstance(d, Stop)}


def any_speed(member, frames, values, rng):
    return rng.uniform(70, 130)


def any_score(member, frames, values, rng):
    return rng.random()


def controllers(seed=0, phase_frames=100):
    return {
        "hypertrick": HyperTrick(TABLE, seed, phase_frames=phase_frames, phases=4),
        "dynamic": SuccessiveHalving(TABLE, seed, phase_frames=phase_frames, phases=4),
        "static": SuccessiveHalving(TABLE, seed, phase_frames=phase_frames, phases=4, places=3),
        "hyperband": Hyperband(TABLE, seed, phase_frames=phase_frames, resource=9),
        "random": RandomSearch(TABLE, seed, frames=4 * phase_frames),
        "grid": GridSearch(TABLE, seed, frames=4 * phase_frames),
    }


NAMES = list(controllers())


# -- equations ------------------------------------------------------------------------------------------------


def test_table_1_of_the_paper():
    assert least_completion(0.25, 10) == pytest.approx(0.1887, abs=5e-5)
    assert expected_completion(0.25, 10) == pytest.approx(0.3775, abs=5e-5)
    assert least_completion(0.25, 5) == pytest.approx(0.3051, abs=5e-5)
    assert expected_completion(0.25, 5) == pytest.approx(0.6102, abs=5e-5)


def test_data_collection_of_the_papers_toy():
    assert [collection_size(12, 0.25, p) for p in range(3)] == [6, 4.5, 3.375]


def test_rate_that_matches_hyperband():
    assert matching_eviction_rate(0.3261, 27) == pytest.approx(0.1085, abs=5e-5)


@given(st.floats(0.01, 0.99), st.integers(1, 60))
def test_the_completion_is_the_sum_of_expected_members_and_can_be_solved(rate, phases):
    share = expected_completion(rate, phases)
    assert share == pytest.approx(sum(expected_members(1, rate, p) for p in range(phases)) / phases)
    if phases > 1:
        assert matching_eviction_rate(share, phases) == pytest.approx(rate, abs=1e-6)


@pytest.mark.parametrize("completion", [0.05, 1.01, math.nan])
def test_a_completion_that_no_rate_gives_is_refused(completion):
    with pytest.raises(ValueError, match="cannot be had with 10 phases"):
        matching_eviction_rate(completion, 10)


# -- HyperTrick by hand -----------------------------------------------------------------------------------------


def hypertrick(members, **options):
    controller = HyperTrick(TABLE, 0, **{"phase_frames": 100, "phases": 3, "eviction_rate": 0.25} | options)
    return controller, begun(controller, members)


def test_the_rule_by_hand():
    controller, first = hypertrick(8)
    assert going_on(first) == dict.fromkeys(range(8), 100)
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
    assert controller.observe(at(300, {0: -1.0})) == [Stop(0, "completed: -1")]


def test_nothing_is_said_before_the_end_of_a_phase():
    controller, _ = hypertrick(3)
    assert controller.observe(at(99, {0: 1.0, 1: 2.0, 2: 3.0})) == []


def test_a_member_far_beyond_its_phase_still_trains_before_it_is_judged_again():
    controller, _ = hypertrick(1)
    assert going_on(controller.observe(at(750, {0: 1.0}))) == {0: 751}


def test_the_best_so_far_is_never_evicted_and_the_worst_is():
    controller, _ = hypertrick(4, eviction_rate=0.81)  # collects one
    controller.observe(at(100, {0: 1.0}))
    assert going_on(controller.observe(at(100, {1: 2.0}))) == {1: 200}
    assert stopped(controller.observe(at(100, {2: 0.0}))) == {2}


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


def test_eviction_rate_0_is_random_search():
    sim = simulate(
        HyperTrick(TABLE, 0, phase_frames=10, phases=3, eviction_rate=0),
        9,
        2,
        speed=any_speed,
        score=any_score,
    )
    assert sim.completion(30) == 1


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
        for s in range(25)
    ]
    average, error = mean_and_error([r.completion(100 * phases) for r in runs])
    # Members are whole (a collection of 3.375 takes 4): a little above the law, least so for many members.
    assert average == pytest.approx(expected_completion(rate, phases), abs=0.01 + 3 * error)
    for phase in range(phases):
        entered = mean(sum(f > 100 * phase for f in r.frames) for r in runs)
        assert entered == pytest.approx(expected_members(members, rate, phase), abs=0.02 * members + 0.5)
    assert all(r.completion(100 * phases) >= least_completion(rate, phases) for r in runs)


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
    assert controller.observe(at(300, {2: 0.0})) == [Stop(2, "completed")]


def test_a_member_that_vanishes_or_breaks_is_not_waited_for():
    controller, _ = halving(4)
    broken = member(1, (5.0,), frames=50, generation=0)
    broken = type(broken)(**{**broken.__dict__, "broken": True})
    rest = at(100, {0: 1.0, 2: 3.0}).members  # 3 has vanished
    decisions = controller.observe(report(50, [rest[0], broken, rest[1]]))
    assert decisions[1] == Stop(1, "evicted: broken")
    assert going_on(decisions) == {0: 200, 2: 200}, "two of four are left: just as many as go on"


def test_static_allocation_uses_each_place_for_its_own_members_only():
    controller, first = halving(5, places=2, eviction_rate=0.2)  # place 0: 0, 2, 4; place 1: 1, 3
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
    assert observed() == [], "place 1 has no more members in this phase: it idles"
    now |= {2: 100}
    assert going_on(observed()) == {4: 100}
    now |= {4: 100}
    decisions = observed()
    assert (going_on(decisions), stopped(decisions)) == ({0: 200, 1: 200}, {4})


@given(st.integers(1, 40), st.integers(1, 6), st.floats(0, 0.9), st.integers(1, 8), st.booleans())
@settings(max_examples=60, deadline=None)
def test_successive_halving_trains_exactly_its_sizes(members, phases, rate, places, static):
    sim = simulate(
        SuccessiveHalving(
            TABLE,
            0,
            phase_frames=10,
            phases=phases,
            eviction_rate=rate,
            places=min(places, members) if static else None,
        ),
        members,
        places,
        speed=any_speed,
        score=any_score,
    )
    sizes = [max(1, round(expected_members(members, rate, p))) for p in range(phases)]
    assert [sum(f > 10 * p for f in sim.frames) for p in range(phases)] == sizes
    assert len(sim.stopped) == members


# -- all searches -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@given(
    members=st.integers(1, 30), places=st.integers(1, 8), seed=st.integers(0, 999), scores=st.integers(0, 2)
)
@settings(max_examples=15, deadline=None)
def test_every_search_ends_whatever_the_scores(name, members, places, seed, scores):
    """Ties, NaN, infinities, one member, fewer members than places."""
    levels = [[1.0], [0.0, -1.0, math.nan, 3.0], [math.inf, -math.inf, math.nan]][scores]
    controller = controllers(seed)[name]
    sim = simulate(
        controller, members, places, speed=any_speed, score=lambda m, f, v, rng: rng.choice(levels), seed=seed
    )
    assert sim.stopped == frozenset(range(members))
    assert all(f > 0 for f in sim.frames), "every configuration is tried"


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
        answer = again.observe(report_from_dict(recorded))
        assert [decision_from_dict(json.loads(json.dumps(decision_to_dict(d)))) for d in answer] == list(
            decisions
        )


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_answer_leaves_no_state_and_a_saved_state_goes_on(name):
    """Every report is shown to a controller that has just been loaded from the other's state."""
    first, second = controllers()[name], controllers()[name]
    changes = 0

    class Both:
        def initial(self, num):
            return first.initial(num)

        def observe(self, seen):
            nonlocal changes
            before = json.dumps(first.state_dict())
            second.load_state_dict(json.loads(before))
            answer = first.observe(seen)
            assert second.observe(seen) == answer
            assert second.state_dict() == first.state_dict()
            if not answer:
                assert json.dumps(first.state_dict()) == before
            changes += bool(answer)
            return answer

    simulate(Both(), 12, 3, speed=any_speed, score=any_score, chunk_frames=30)
    assert changes > 4


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
    controller._min_episodes = 5
    (first,) = begun(controller, 1)
    frames, given_frames = first.until_frames, []
    unit = controller._phase_frames
    for _ in range(10):
        (decision,) = controller.observe(report(frames, [member(0, (1.0,), frames=frames, episodes=4)]))
        assert isinstance(decision, Continue)
        given_frames.append(decision.until_frames - frames)
        frames = decision.until_frames
    assert given_frames == [unit // 10] * 10
    assert frames == first.until_frames + unit
    (decision,) = controller.observe(report(frames, [member(0, (), frames=frames, episodes=0)]))
    assert decision == Stop(0, "evicted: no finite objective")


@pytest.mark.parametrize("name", NAMES)
def test_a_decision_for_10_000_members_takes_under_a_second(name):
    controller = controllers()[name]
    began = time.perf_counter()
    first = begun(controller, 10_000)
    assert time.perf_counter() - began < 2  # two decisions: the values, and the first report
    frames = {d.member: d.until_frames for d in first}
    rng = Random(0)
    seen = report(0, [member(i, (rng.random(),), frames=f, episodes=9) for i, f in frames.items()])
    began = time.perf_counter()
    assert controller.observe(seen)
    assert time.perf_counter() - began < 1


# -- against each other -----------------------------------------------------------------------------------------


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
    static = mean_time(lambda s: SuccessiveHalving(TABLE, s, phase_frames=100, phases=4, places=6))
    grid = mean_time(lambda s: GridSearch(TABLE, s, frames=400), chunk=100)
    assert trick < dynamic < static < grid


# -- options ------------------------------------------------------------------------------------------------------


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
        assert type(build_search(config(controller=name), TABLE, 0)) is kind
    assert (
        type(build_search(config(controller="random", search=SearchConfig(sampling="grid")), TABLE, 0))
        is GridSearch
    )


def test_only_what_is_named_is_searched():
    made = build_search(config(controller="random", pbt=PbtConfig(tune=("gamma",))), TABLE, 0)
    values = made.initial(9)
    assert len({v["gamma"] for v in values}) == 9
    assert {v["learning_rate"] for v in values} == {TABLE["learning_rate"].default}


def test_the_length_of_a_phase_follows_from_the_budget_unless_given():
    def first_until(controller, **search):
        made = build_search(
            config(controller=controller, train_for_frames=5400, search=SearchConfig(**search)), TABLE, 0
        )
        return max(going_on(begun(made, 46)).values())

    assert first_until("hypertrick") == 540
    assert first_until("hypertrick", phase_frames=7) == 7
    assert first_until("successive-halving", phases=5) == 1080
    assert first_until("hyperband") == 5400  # the bracket of random search
    assert first_until("random") == 5400
    assert first_until("random", phase_frames=7) == 70


def test_static_allocation_takes_the_places_of_the_run():
    made = build_search(
        config(
            controller="successive-halving",
            num_policies=6,
            resident=2,
            search=SearchConfig(allocation="static"),
        ),
        TABLE,
        0,
    )
    assert [u > 0 for u in going_on(begun(made, 6)).values()] == [True, True, False, False, False, False]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("phases", 0),
        ("phase_frames", -1),
        ("eviction_rate", 1.0),
        ("eviction_rate", math.nan),
        ("eta", 1),
        ("resource", 0),
    ],
)
def test_options_that_cannot_be_used(option, value):
    with pytest.raises(ConfigError, match=f"--search.{option.replace('_', '-')} {value} cannot be used"):
        SearchConfig(**{option: value})


def test_a_budget_shorter_than_its_phases_is_refused():
    with pytest.raises(ConfigError, match="--train-for-frames 9 cannot be used: give at least 10"):
        build_search(config(controller="hypertrick", train_for_frames=9), TABLE, 0)
