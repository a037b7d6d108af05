"""Ranking, shares and summary: pure facts of a view."""

import json
import math
import statistics

import pytest

from pbt_rl.display.ranking import (
    Standing,
    best_member,
    busy_shares,
    differing,
    ranked,
    shown_values,
    standing,
)
from pbt_rl.record.summary import write_summary
from tests.helpers.views import member, view


def ids(members):
    return [m.member for m in members]


def test_the_best_stand_first_then_the_unknown_then_the_stopped():
    members = [
        member(0, None),
        member(1, -3.0),
        member(2, 5.0),
        member(3, 99.0, stopped=True),
        member(4, math.nan),
        member(5, 5.0),
        member(6, math.inf),
        member(7, None, stopped=True),
    ]
    assert ids(ranked(members)) == [2, 5, 1, 0, 4, 6, 3, 7]


@pytest.mark.parametrize(
    ("objectives", "best"),
    [([None, None], None), ([math.nan, -5.0], 1), ([2.0, 3.0, 3.0], 1), ([math.inf, 1.0], 1), ([], None)],
)
def test_best_member(objectives, best):
    assert best_member([member(i, objective) for i, objective in enumerate(objectives)]) == best


def test_the_best_is_of_all_the_mean_of_those_that_train():
    members = [
        member(0, 1.0),
        member(1, 4.0),
        member(2, None),
        member(3, 100.0, stopped=True),
        member(4, 7.0),
    ]
    found = standing(members)
    assert found is not None
    assert (found.best, found.mean) == (100.0, 4.0)
    assert found.spread == pytest.approx(statistics.pstdev([1.0, 4.0, 7.0]))
    assert standing([member(0, None)]) is None
    assert standing([member(0, 2.0, stopped=True), member(1, 4.0, stopped=True)]) == Standing(4.0, 3.0, 1.0)


def test_waiting_is_no_work():
    assert busy_shares({"environment": 3.0, "learning": 1.0, "waiting": 6.0}) == {
        "environment": 0.75,
        "learning": 0.25,
    }
    assert busy_shares({"waiting": 6.0}) == {}


def test_shown_are_moved_values_largest_change_first_then_differing_ones():
    moved = member(0, learning_rate=3e-4, shaping__life_lost=-3.0)
    other = member(1, gamma=0.999)
    different = differing([moved, other])
    assert different == {"learning_rate", "shaping.life_lost", "gamma"}
    assert shown_values(moved, different) == ["shaping.life_lost", "learning_rate", "gamma"]
    assert shown_values(moved, frozenset()) == ["shaping.life_lost", "learning_rate"]


def write(path, shown, times=()):
    write_summary(
        path, shown, frames_per_second_steady=750.0, replacement_milliseconds=list(times), ended="frames"
    )


def strictly(text):
    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_summary_says_all_that_scripts_read(tmp_path):
    path = tmp_path / "summary.json"
    write(path, view(member(0, 1.0), member(1, 4.0, learning_rate=3e-4)), [4.0, 1.0, 2.0])
    written = strictly(path.read_text())
    first = written["members"].pop(0)
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
    assert written["members"].pop()["hypers"]["learning_rate"] == 3e-4
    assert written == {
        "frames": 8000,
        "steps": 2000,
        "seconds": 10.0,
        "frames_per_second": 750.0,
        "best_member": 1,
        "members": [],
        "replacements": 3,
        "replacement_milliseconds": {"median": 2.0, "max": 4.0},
        "policy_lag": {"mean": 1.25, "max": 6},
        "discarded_rollouts": 4,
        "actors_restarted": 1,
        "ended": "frames",
    }


def test_summary_is_json_whatever_the_numbers_are(tmp_path):
    path = tmp_path / "summary.json"
    write(path, view(member(0, math.nan, learning_rate=math.inf), member(1, None), lag_mean=math.nan))
    written = strictly(path.read_text())
    assert written["best_member"] is None
    assert written["replacement_milliseconds"] == {"median": None, "max": None}
    assert written["policy_lag"]["mean"] is None
    assert [m["objective"] for m in written["members"]] == [None, None]


def test_summary_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "summary.json"
    write(path, view(member(0)))
    before = path.read_text()

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        write(path, view(member(0, 5.0)))
    assert path.read_text() == before
    assert list(tmp_path.iterdir()) == [path]
