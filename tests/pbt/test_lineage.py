import pytest

from pbt_rl.pbt.decisions import Continue, Mutate, Replace, Restart, Stop, decision_to_dict
from pbt_rl.pbt.lineage import Lineage


def v(x):
    return {"lr": float(x)}


def round_(frames, *decisions):
    return {"event": "round", "frames": frames, "decisions": [decision_to_dict(d) for d in decisions]}


START = [
    {"event": "start", "frames": 0},
    {"event": "initial", "frames": 0, "values": [v(1), v(2), v(3)]},
    round_(10, Continue(0, ""), Mutate(1, v(20), ""), Replace(2, 0, "both", v(11), "")),
    {"event": "applied", "frames": 10},
]


def test_parents_generations_and_schedules():
    lineage = Lineage.from_events(START)
    assert lineage.present(0).key == (0, 0)
    assert (lineage.present(1).generation, lineage.present(1).parent) == (1, (1, 0))
    copied = lineage.present(2)
    assert (copied.generation, copied.parent, copied.depth) == (1, (0, 0), 1)
    assert lineage.root(2).key == (0, 0)
    assert lineage.history(2) == [(0, v(1)), (10, v(11))]
    assert lineage.history(1) == [(0, v(2)), (10, v(20))]
    assert lineage.surviving_roots() == {(0, 0), (1, 0)}


def test_a_copy_of_a_copy_descends_from_the_donor_as_it_was():
    lineage = Lineage.from_events(
        [*START, round_(20, Replace(1, 2, "both", v(12), ""), Mutate(2, v(13), ""))]
    )
    assert [n.key for n in lineage.ancestry(1)] == [(0, 0), (2, 1), (1, 2)]
    assert [n.key for n in lineage.ancestry(2)] == [(0, 0), (2, 1), (2, 2)]
    assert lineage.present(1).depth == 2
    assert lineage.surviving_roots() == {(0, 0)}


def test_decisions_of_one_round_hold_at_once():
    lineage = Lineage.from_events(
        [*START, round_(20, Replace(0, 1, "weights", v(5), ""), Replace(2, 0, "both", v(6), ""))]
    )
    assert lineage.present(0).parent == (1, 1)
    assert lineage.present(2).parent == (0, 0), "member 0 as it was before the round"


def test_copied_hypers_keep_the_own_weights_and_a_restart_begins_a_tree():
    lineage = Lineage.from_events(
        [*START, round_(20, Replace(1, 0, "hypers", v(1), ""), Restart(2, v(9), ""))]
    )
    assert lineage.root(1).key == (1, 0)
    assert (lineage.root(2).key, lineage.present(2).depth) == ((2, 2), 0)


def test_stopped_members_leave():
    lineage = Lineage.from_events([*START, round_(20, Stop(1, ""))])
    assert lineage.members == [0, 2]
    assert lineage.surviving_roots() == {(0, 0)}
    with pytest.raises(KeyError):
        lineage.present(1)
