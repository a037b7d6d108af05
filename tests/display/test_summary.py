"""The content of summary.json."""

import math

from pbt_rl.display.scalars import summary
from tests.helpers.views import member, view


def content(shown, times=()):
    return summary(
        shown, frames_per_second_steady=750.0, replacement_milliseconds=list(times), ended="frames"
    )


def test_the_summary_holds_everything_that_scripts_read():
    found = content(view(member(0, 1.0), member(1, 4.0, learning_rate=3e-4)), [4.0, 1.0, 2.0])
    first = found["members"].pop(0)
    assert first == {
        "id": 0,
        "frames": 1000,
        "status": "",
        "objective": 1.0,
        "episodes": 7,
        "generation": 2,
        "hypers": {"learning_rate": 2.5e-4, "gamma": 0.99, "unroll": 32.0},
        "shaping": {"life_lost": -1.0},
    }
    assert found["members"].pop()["hypers"]["learning_rate"] == 3e-4
    assert found == {
        "frames": 8000,
        "steps": 2000,
        "seconds": 10.0,
        "training_seconds": 0.0,
        "random_play": None,
        "frames_per_second": 750.0,
        "best_member": 1,
        "members": [],
        "replacements": 3,
        "replacement_milliseconds": {"median": 2.0, "max": 4.0},
        "policy_lag": {"mean": 1.25, "max": 6},
        "discarded_rollouts": 4,
        "actors_restarted": 1,
        "learners_replaced": 1,
        "saved_at_frames": None,
        "ended": "frames",
        "discarded_share": 0.0,
        "warnings": [],
    }


def test_unknown_results_are_none():
    found = content(view(member(0, math.nan), member(1, None), member(2, math.inf)))
    assert found["best_member"] is None
    assert found["replacement_milliseconds"] == {"median": None, "max": None}
    assert [m["objective"] for m in found["members"]] == [None, None, None]


def test_ratings_are_there_only_if_members_play_games():
    plain, rated = member(0), member(1)
    rated.stats.update(elo=1210.0, win_rate=0.75)
    assert [{"elo", "win_rate"} & m.keys() for m in content(view(plain, rated))["members"]] == [
        set(),
        {"elo", "win_rate"},
    ]
