"""Members that break: resampled at the start, back to what was dropped later, and never anybody's donor."""

import json
import math
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pbt_rl.config import Hypers
from pbt_rl.controllers.decisions import Continue, Mutate, Replace, Restart
from pbt_rl.controllers.hypers import hyper_table
from pbt_rl.controllers.options import PbtConfig
from pbt_rl.controllers.state import restore_state, save_state
from tests.helpers.populations import OFTEN, build, member, report

TABLE = hyper_table(Hypers())
PBT = replace(OFTEN, replace_fraction=0.5)
NAN = math.nan


class Run:
    """Members whose generations and values follow the decisions."""

    def __init__(self, pbt=PBT, num_members=4, seed=0):
        self.controller = build(pbt, TABLE, seed, num_members)
        self.values = self.controller.initial(num_members)
        self.generations = [0] * num_members
        self.frames = 0
        self.kept = set()

    def observe(self, scores, broken=(), frames=100):
        self.frames += frames
        members = [
            member(
                i,
                () if s is None else (s,),
                frames=self.frames,
                generation=self.generations[i],
                values=self.values[i],
                broken=i in broken,
            )
            for i, s in enumerate(scores)
        ]
        decisions = self.controller.observe(report(self.frames, members))
        for d in decisions:
            if isinstance(d, Replace) and d.donor_generation is not None:
                assert (d.donor, d.donor_generation) in self.kept, "a state that nobody kept"
        wanted = self.controller.remembers()
        assert all(k in self.kept or self.generations[k[0]] == k[1] for k in wanted)
        if decisions:
            self.kept = set(wanted)
        for d in decisions:
            if not isinstance(d, Continue):
                self.values[d.member] = d.values
                self.generations[d.member] += 1
        return {d.member: d for d in decisions}


def test_broken_at_the_start_it_begins_again_at_once_with_fresh_values():
    run = Run()
    before = list(run.values)
    first = run.observe([1, 2, 3, None], broken=[3], frames=10)
    assert list(first) == [3]
    assert isinstance(first[3], Restart)
    assert first[3].values != before[3]
    assert all(TABLE[n].hold(v) == v for n, v in first[3].values.items())
    again = run.observe([1, 2, 3, None], broken=[3], frames=10)
    assert isinstance(again[3], Restart), "its new weights broke as well"
    assert again[3].values != first[3].values


def test_a_member_that_always_breaks_does_not_hold_up_the_others():
    run = Run()
    held = run.observe([1, 2, 3, None], broken=[3])
    assert isinstance(held[3], Restart)
    assert isinstance(held[0], Replace)
    assert isinstance(held[2], Continue)


def test_an_objective_that_is_not_finite_restarts_nobody():
    run = Run()
    held = run.observe([1, 2, 3, math.inf])
    assert isinstance(held[3], Replace), "it ranks last"
    held = run.observe([NAN, math.inf, -math.inf, NAN])
    assert not any(isinstance(d, Restart) for d in held.values())


def test_a_copy_that_breaks_falls_back_to_what_was_dropped_for_it():
    run = Run()
    old = dict(run.values[0])
    copied = run.observe([1, 2, 3, 9])[0]
    assert isinstance(copied, Replace)
    assert run.kept == {(0, 0), (1, 0)}
    back = run.observe([None, 2, 3, 9], broken=[0], frames=10)[0]
    assert back == Replace(0, 0, "both", old, back.reason, donor_generation=0)
    assert "generation 0" in back.reason
    assert (0, 0) not in run.kept
    held = run.observe([None, 20, 30, 90], broken=[0], frames=90)
    assert isinstance(held[0], Replace), "broken again: it copies as usual"
    assert (held[0].donor, held[0].donor_generation) != (0, 0)
    assert held[0].donor_generation is None
    assert (0, 2) not in run.kept, "broken weights are not kept"


def test_a_copy_found_healthy_has_nothing_to_fall_back_to():
    run = Run()
    assert isinstance(run.observe([1, 2, 3, 9])[0], Replace)
    assert isinstance(run.observe([8, 2, 3, 9])[0], Continue)
    assert (0, 0) not in run.kept
    held = run.observe([NAN, 2, 3, 9])[0]
    assert isinstance(held, Replace)
    assert held.donor in (2, 3)


def test_with_no_exploit_broken_weights_begin_again_and_a_broken_objective_waits():
    run = Run(
        PbtConfig(
            period_frames=100, start_frames=0, min_episodes=1, exploit="truncation", replace_fraction=0.0
        )
    )
    assert all(isinstance(d, Continue) for d in run.observe([1, 2, 3, 4]).values())
    held = run.observe([NAN, None, 3, 4], broken=[1])
    assert isinstance(held[0], Continue)
    assert isinstance(held[1], Restart)


def test_all_broken():
    run = Run()
    assert all(isinstance(d, Restart) for d in run.observe([None] * 4, broken=range(4)).values())
    run.observe([1, 2, 3, 4])
    held = run.observe([None] * 4, broken=range(4))
    assert len(held) == 4
    assert all(isinstance(d, Restart) or d.donor_generation is not None for d in held.values())


@pytest.mark.parametrize("exploit", ["top-middle-bottom", "truncation", "backtrack", "impala", "t-test"])
@pytest.mark.parametrize("copy", ["both", "weights", "hypers"])
@settings(max_examples=5)
@given(seed=st.integers(0, 10_000))
def test_nothing_broken_is_copied_and_what_is_recorded_replays(exploit, copy, seed):
    pbt = PbtConfig(period_frames=100, start_frames=0, min_episodes=1, exploit=exploit, copy=copy)
    run, replayed = Run(pbt, 6), build(pbt, TABLE, 0, 6)
    replayed.initial(6)
    rng = Random(seed)
    for _ in range(12):
        scores = [rng.choice([None, NAN, math.inf, rng.gauss(0, 1), rng.gauss(0, 1)]) for _ in range(6)]
        broken = {i for i, s in enumerate(scores) if s is None and rng.random() < 0.5}
        state = json.dumps(save_state(run.controller))
        observed = []
        observe = run.controller.observe
        run.controller.observe = lambda seen, observed=observed, observe=observe: (
            observed.append(seen) or observe(seen)
        )
        decisions = run.observe(scores, broken, frames=rng.choice([20, 100]))
        run.controller.observe = observe
        if not decisions:
            assert json.dumps(save_state(run.controller)) == state
            continue
        restore_state(replayed, json.loads(state))
        assert replayed.observe(observed[0]) == list(decisions.values())
        for d in decisions.values():
            assert isinstance(d, Continue | Mutate | Replace | Restart)
            if d.member in broken:
                assert isinstance(d, Restart) or d.copy != "hypers", "it keeps weights that are broken"
            if isinstance(d, Replace) and d.donor_generation is None:
                assert scores[d.donor] is not None
                assert math.isfinite(scores[d.donor])
                assert d.donor != d.member
