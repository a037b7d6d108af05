"""A comparison that waits for episodes is pointed out."""

from dataclasses import replace

from pbt_rl.run.waiting import WaitingComparison
from tests.helpers.views import member, view


def test_a_comparison_that_waits_for_three_periods_is_pointed_out():
    waits, due = WaitingComparison(100), {"comparison_in_seconds": 0.0}
    assert waits(view(member(0, frames=500), **due)) == []
    assert waits(view(member(0, frames=600), comparison_in_seconds=3.0)) == [], "it was held"
    assert waits(view(member(0, frames=650), **due)) == []
    assert waits(view(member(0, frames=900), **due)) == []
    (text,) = waits(view(member(0, frames=1000), replace(member(1, frames=600), control=True), **due))
    assert "episodes are long" in text


def test_without_any_episode_one_period_suffices():
    waits, silent = WaitingComparison(100), replace(member(0), episodes=0)
    (_, (text,)) = (waits(view(replace(silent, frames=n), comparison_in_seconds=0.0)) for n in (100, 300))
    assert "no episode has ended" in text
