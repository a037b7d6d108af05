"""Tests for the record of a member."""

import math

import pytest

from pbt_rl.controllers.changes import Change, changes
from pbt_rl.controllers.decisions import Continue, Evaluate, MemberReport, Mutate, Replace, Restart, Stop
from pbt_rl.controllers.member_record import MemberRecord
from pbt_rl.controllers.objectives import ObjectiveWindow

OLD, NEW = {"learning_rate": 0.1}, {"learning_rate": 0.5}


def trained(window=3) -> MemberRecord:
    """Returns a member in its second generation with two objectives, a limit and a broken state."""
    record = MemberRecord(0, OLD, ObjectiveWindow(1, window), generation=1, frames=40, until_frames=50)
    for objective in (2.0, 4.0):
        record.note_objective(objective)
    record.broken = True
    return record


def test_a_report_holds_the_record():
    assert trained().report() == MemberReport(0, 40, (2.0, 4.0), 2, 1, OLD, 3.0, broken=True, recent=2)
    assert trained().report(rounds=1).objectives == (4.0,)
    assert trained(window=1).report().episodes == 2, "more than the window holds"


@pytest.mark.parametrize(
    ("decision", "generation", "values", "broken", "until", "stopped"),
    [
        (Continue(0, ""), 1, OLD, True, None, False),
        (Continue(0, "", until_frames=90), 1, OLD, True, 90, False),
        (Stop(0, ""), 1, OLD, True, None, True),
        (Mutate(0, NEW, ""), 2, NEW, True, None, False),
        (Replace(0, 1, "hypers", NEW, ""), 2, NEW, True, None, False),
        (Replace(0, 1, "weights", NEW, ""), 2, NEW, False, None, False),
        (Restart(0, NEW, "", until_frames=90), 2, NEW, False, 90, False),
    ],
)
def test_a_change_is_applied(decision, generation, values, broken, until, stopped):
    record = trained()
    record.apply(changes([decision], {0: 1, 1: 0})[0])
    assert (record.generation, record.values, record.broken) == (generation, values, broken)
    assert (record.until_frames, record.stopped) == (until, stopped)
    assert record.best is None, "the next interval begins"
    kept = (2.0, 4.0) if values is OLD else ()
    assert (record.report().objectives, record.report().episodes) == (kept, len(kept))
    assert record.frames == 40


def test_a_stopped_member_stays_stopped():
    record = trained()
    record.apply(Change(0, "stop", 1, stopped=True))
    record.apply(Change(0, "continue", 1))
    assert record.stopped


def test_values_are_copied():
    values = dict(OLD)
    record = MemberRecord(0, values, ObjectiveWindow(1, 1))
    values["learning_rate"] = 9.0
    record.report().values["learning_rate"] = 9.0
    assert record.values == OLD
    values = dict(NEW)
    record.apply(Change(0, "mutate", 1, values=values))
    values["learning_rate"] = 9.0
    assert record.values == NEW


def test_the_best_is_the_highest_finite_mean_of_the_window():
    record = MemberRecord(0, OLD, ObjectiveWindow(1, 2))
    best = []
    for objective in (math.nan, -5.0, -5.0, 3.0, math.inf, 0.0, 0.5):
        record.note_objective(objective)
        best.append(record.best)
    assert best == [None, None, -5.0, -1.0, -1.0, -1.0, 0.25]


def test_a_member_that_breaks_keeps_counting_but_has_nan_alone():
    record = trained()
    record.broken = False
    record.note_broken()
    report = record.report()
    assert report.broken
    assert report.episodes == 3
    assert len(report.objectives) == 1
    assert math.isnan(report.objectives[0])
    assert record.objective is not None
    assert math.isnan(record.objective)
    assert record.best == 3.0


# -- what decisions mean ------------------------------------------------------------------------------------

VALUES = {"learning_rate": 0.5}
GENERATIONS = {0: 4, 1: 7}

MEANING = {
    "continue": (Continue(0, ""), Change(0, "continue", 4)),
    "limit": (Continue(0, "", until_frames=30), Change(0, "continue", 4, until_frames=30)),
    "copy both": (Replace(0, 1, "both", VALUES, ""), Change(0, "replace", 5, "copy", (1, 7), values=VALUES)),
    "copy weights": (
        Replace(0, 1, "weights", VALUES, ""),
        Change(0, "replace", 5, "copy", (1, 7), values=VALUES),
    ),
    "copy hypers": (
        Replace(0, 1, "hypers", VALUES, ""),
        Change(0, "replace", 5, "keep", (1, 7), values=VALUES),
    ),
    "copy a remembered state": (
        Replace(0, 1, "both", VALUES, "", donor_generation=2),
        Change(0, "replace", 5, "copy", (1, 2), remembered=True, values=VALUES),
    ),
    "copy generation 0": (
        Replace(0, 0, "both", VALUES, "", donor_generation=0),
        Change(0, "replace", 5, "copy", (0, 0), remembered=True, values=VALUES),
    ),
    "mutate": (Mutate(0, VALUES, ""), Change(0, "mutate", 5, values=VALUES)),
    "restart": (Restart(0, VALUES, ""), Change(0, "restart", 5, "fresh", values=VALUES)),
    "restart with a limit": (
        Restart(0, VALUES, "", until_frames=9),
        Change(0, "restart", 5, "fresh", values=VALUES, until_frames=9),
    ),
    "evaluate": (Evaluate(0, 7, ""), Change(0, "evaluate", 4, evaluates=7)),
    "stop": (Stop(0, ""), Change(0, "stop", 4, stopped=True)),
}


@pytest.mark.parametrize(("decision", "expected"), MEANING.values(), ids=MEANING.keys())
def test_each_decision_has_one_meaning(decision, expected):
    assert changes([decision], GENERATIONS) == [expected]


def test_a_donor_is_taken_as_it_was_before_the_comparison():
    swap = changes(
        [Replace(0, 1, "both", VALUES, ""), Replace(1, 0, "both", VALUES, ""), Continue(2, "")],
        GENERATIONS | {2: 0},
    )
    assert [(c.member, c.source, c.generation) for c in swap] == [
        (0, (1, 7), 5),
        (1, (0, 4), 8),
        (2, None, 0),
    ]


def test_the_state_that_weights_come_from():
    sources = [changes([decision], GENERATIONS)[0].weights_from for decision, _ in MEANING.values()]
    assert [key for key in sources if key is not None] == [(1, 7), (1, 7), (1, 2), (0, 0)]
    assert changes([Replace(0, 9, "both", VALUES, "", 3)], {0: 0})[0].source == (9, 3)


def test_episodes_since_the_last_decision_are_told_apart():
    record = trained()
    record.apply(Change(0, "continue", 1))
    assert record.report().recent == 0
    record.note_objective(6.0)
    assert (record.report().episodes, record.report().recent) == (3, 1)
    record.apply(Change(0, "mutate", 2, values=OLD))
    record.note_objective(6.0)
    assert (record.report().episodes, record.report().recent) == (1, 1)
