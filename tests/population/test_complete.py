"""Windows are drawn once they hold an episode of every row: before, they hold the shortest ones only."""

from random import Random

import pytest

from pbt_rl.actors.messages import Episode, LearnerReport, MemberStats
from pbt_rl.controllers.changes import Change
from pbt_rl.controllers.state import restore_state, save_state
from pbt_rl.display.ranking import table_lines
from pbt_rl.display.scalars import member_scalars, population_scalars
from pbt_rl.population.population import Population
from tests.helpers.views import view

ROWS = 16


def population():
    return Population([{"a": 1.0}] * 2, 20, 1, environments={0: ROWS, 1: 1}, timeout_frames=100)


def report(*episodes):
    return LearnerReport("cpu", [], list(episodes), {}, 0, 0)


def episode(row, length, generation=0, member=0):
    return Episode(member, generation, float(length), float(length), float(length), length, environment=row)


def test_a_curve_does_not_dive_after_a_replacement():
    """CartPole-like: the return is the length; 16 rows play episodes of 10 to 500 steps, mean 255."""
    p, rng = population(), Random(0)
    p.members[0].apply(Change(0, "mutate", 1, values={"a": 2.0}))
    ends = sorted((length := rng.randrange(10, 500), row, length) for row in range(ROWS))
    drawn, raw = [], []
    for _, row, length in ends:
        p.take("a", report(episode(row, length, 1)))
        shown = p.views()[0]
        raw.append(shown.stats["raw_return"])
        drawn.append(member_scalars(shown).get("episodes/raw_return"))
    assert raw[0] < 60, "the shortest one first"
    assert drawn[:-1] == [None] * (ROWS - 1)
    assert drawn[-1] == pytest.approx(255, rel=0.3)


def test_before_any_change_curves_begin_with_the_first_episode():
    p = population()
    assert "episodes/raw_return" not in member_scalars(p.views()[0])
    p.take("a", report(episode(0, 5)))
    shown = p.views()[0]
    found = member_scalars(shown)
    assert [found[f"episodes/{name}"] for name in ("raw_return", "length_steps", "ended")] == [5.0, 5.0, 1]
    assert found["episodes/environments_ended"] == 1 / ROWS
    assert "episodes/objective" not in found
    assert (shown.early, shown.ended, shown.environments) == (5.0, 1, ROWS)


def test_each_change_begins_anew_and_rows_count_once():
    p = population()
    p.take("a", report(*(episode(row, 5) for row in range(ROWS - 1)), episode(0, 5)))
    assert not p.views()[0].complete
    p.take("a", report(episode(ROWS - 1, 5)))
    assert p.views()[0].complete
    p.members[0].apply(Change(0, "mutate", 1, values={"a": 2.0}))
    p.take("a", report(*(episode(row, 5) for row in range(ROWS))))  # they began before the change
    assert not p.views()[0].complete
    p.take("a", report(*(episode(row, 5, 1) for row in range(ROWS))))
    assert p.views()[0].complete


def test_it_is_saved_with_the_run():
    p, again = population(), population()
    p.take("a", report(*(episode(row, 5) for row in range(ROWS))))
    restore_state(again, save_state(p))
    assert [m.complete for m in again.members] == [True, False]


def test_what_is_incomplete_is_marked_and_left_out():
    """After `timeout_frames` a member is judged by what has ended; its curve waits all the same."""
    p = population()
    p.take("a", report(episode(0, 7), episode(0, 9, member=1)))
    p.take("a", LearnerReport("cpu", [MemberStats(0, 200, 200, 1)], [], {}, 0, 0))
    shown = view(*p.views())
    assert [line.split()[1] for line in table_lines(shown, 80)[1:]] == ["9.00", "~7.00"]
    assert population_scalars(shown)["episodes/objective_mean"] == 9.0
    assert "episodes/objective" not in member_scalars(shown.members[0])


@pytest.mark.parametrize("before", [6, 3])
def test_a_member_that_moves_is_complete_once_its_new_environments_are(before):
    p = Population([{"a": 1.0}] * 2, 8, 1, environments={0: before, 1: 4})
    p.take("a", report(episode(0, 5), episode(before - 1, 7)))
    p.play_elsewhere(0, 4)
    p.take("b", report(*(episode(row, 9) for row in (0, 1, 2))))
    assert p.report().members[0].objectives == ()
    assert not p.views()[0].complete
    p.take("b", report(episode(3, 9)))
    assert p.report().members[0].episodes >= 4
    assert p.views()[0].complete
