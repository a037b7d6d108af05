"""Tests for the one interpretation of decisions."""

import pytest

from pbt_rl.controllers.changes import Change, changes
from pbt_rl.controllers.decisions import Continue, Evaluate, Mutate, Replace, Restart, Stop

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
