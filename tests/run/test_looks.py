"""How often the controller looks at all members."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from pbt_rl.run.views import progress_gap, view_gap
from tests.helpers.resumable import Run, small_config

OFTEN = [round(0.01 * number, 3) for number in range(60)]


@pytest.fixture
def looks(monkeypatch):
    """Return what has a learner report at times in seconds, and returns when looks began. took: seconds of a look."""

    def of(config, took, times, *, busy=(), decided=False):
        now, seen = [0.0], []

        def observe():
            seen.append(round(now[0], 3))
            now[0] += took
            return decided

        run = Run(config)
        clock = SimpleNamespace(monotonic=lambda: now[0], thread_time=lambda: now[0])
        monkeypatch.setattr("pbt_rl.run.comparisons.time", clock)
        run.comparisons.observe = observe
        for at in times:
            now[0] = max(now[0], at)
            run.comparisons.dispatch._waiting = {0: []} if at in busy else {}
            run.comparisons.note_report(0)
        now[0] += 1
        run.comparisons.look()
        return seen

    return of


def test_quick_looks_follow_every_report(looks):
    assert looks(small_config(), 0.001, OFTEN) == OFTEN


def test_long_ones_take_a_fifth_of_the_time(looks):
    assert looks(small_config(), 0.05, OFTEN)[:3] == [0.0, 0.25, 0.5]


def test_a_pause_never_exceeds_half_a_second(looks):
    assert looks(small_config(), 10.0, [0.0, 10.2, 10.4, 10.6]) == [0.0, 10.6]


def test_reports_that_came_in_a_pause_get_their_look_after_it(looks):
    assert looks(small_config(), 0.05, [0.0, 0.1]) == [0.0, 1.1]


def test_a_comparison_is_followed_by_no_pause(looks):
    assert looks(small_config(), 0.05, [0.0, 0.1], decided=True) == [0.0, 0.1]


def test_serial_mode_looks_after_every_report(looks):
    assert looks(replace(small_config(), mode="serial"), 0.05, [0.0, 0.1, 0.2]) == [0.0, 0.1, 0.2]


def test_reports_that_come_while_decisions_are_on_their_way_get_no_look(looks):
    assert looks(small_config(), 0.0, [1.0, 2.0, 3.0], busy=[2.0]) == [1.0, 3.0]


def test_views_take_a_tenth_of_the_time():
    assert [view_gap(took) for took in (0.01, 0.3, 5.0)] == [1.0, 3.0, 10.0]


def test_progress_is_recorded_less_often_in_long_runs():
    assert [progress_gap(hours * 3600) for hours in (0.1, 10, 24, 240)] == [10.0, 18.0, 43.2, 60.0]
    assert [progress_gap(seconds) for seconds in (0, 2, 20)] == [0.5, 0.5, 2.0]
