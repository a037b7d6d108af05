"""Ranking, shares of time and changed values: pure functions of a view."""

import math
import statistics
from dataclasses import replace

import pytest

from pbt_rl.display.ranking import (
    Standing,
    best_member,
    changed_values,
    differing,
    footer_lines,
    ranked,
    shown_values,
    standing,
)
from pbt_rl.display.view import FinalEvaluation
from tests.helpers.views import member, view


def ids(members):
    return [m.member for m in members]


def test_the_best_stand_first_then_the_unknown_then_the_stopped():
    objectives = (None, -3.0, 5.0, 99.0, math.nan, 5.0, math.inf, None)
    members = [member(i, objective, stopped=i in (3, 7)) for i, objective in enumerate(objectives)]
    assert ids(ranked(members)) == [2, 5, 1, 0, 4, 6, 3, 7]


def test_a_control_is_never_the_best_member():
    members = [member(0, 1.0), replace(member(1, 9.0), control=True)]
    assert best_member(members) == 0
    final_scores = [replace(one, final=FinalEvaluation(one.objective, 0.0, 4)) for one in members]
    assert best_member(final_scores) == 0
    assert best_member(members[1:]) is None


def test_the_best_is_of_all_the_mean_of_those_that_train():
    members = [member(0, 1.0), member(1, 4.0), member(2, None), member(4, 7.0)]
    members.append(member(3, 100.0, stopped=True))
    found = standing(members)
    assert found is not None
    assert (found.best, found.mean) == (100.0, 4.0)
    assert found.spread == pytest.approx(statistics.pstdev([1.0, 4.0, 7.0]))
    assert standing([member(0, None)]) is None
    assert standing([member(0, 2.0, stopped=True), member(1, 4.0, stopped=True)]) == Standing(4.0, 3.0, 1.0)
    assert standing([member(0, -1e200), member(1, 1e200)]) == Standing(1e200, 0.0, 1e200)


def test_shown_are_changed_values_largest_change_first_then_differing_ones():
    moved = member(0, learning_rate=3e-4, shaping__life_lost=-3.0)
    other = member(1, gamma=0.999)
    different = differing([moved, other])
    assert different == {"learning_rate", "shaping.life_lost", "gamma"}
    values = moved.initial, moved.values
    assert shown_values(*values, different) == ["shaping.life_lost", "learning_rate", "gamma"]
    assert shown_values(*values) == ["shaping.life_lost", "learning_rate"]


@pytest.mark.parametrize(
    ("then", "now", "text"),
    [
        (0.11, 0.1104, "0.11 -> 0.1104"),
        (2.5e-4, 2.501e-4, "2.5e-4 -> 2.501e-4"),
        (0.99, 0.9900004, "0.99 -> 0.9900004"),
        (12_345.0, 12_345.25, "12345.0 -> 12345.2"),
        (0.11, 0.110000001, "0.11"),
    ],
)
def test_a_change_has_enough_digits_to_be_seen(then, now, text):
    assert changed_values({"x": then}, {"x": now}, 80) == f"x {text}"


def test_a_line_explains_an_objective_beside_another_return():
    fresher, quiet = replace(member(0, 27.56), early=37.27), {"actors_restarted": 0, "learners_replaced": 0}
    (line,) = footer_lines(view(fresher, member(1), **quiet))
    assert "objective" in line
    assert "return" in line
    for same in (replace(fresher, early=27.56), replace(fresher, complete=False)):
        assert footer_lines(view(same, **quiet)) == []
