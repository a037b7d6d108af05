import itertools
import math
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pbt_rl.controllers.changes import changes
from pbt_rl.controllers.decisions import Continue, Mutate, Replace, Restart, Stop, decision_to_dict
from pbt_rl.controllers.lineage import Lineage, Noise
from tests.helpers.journals import read_events


def v(x):
    return {"lr": float(x)}


def round_(frames, *decisions):
    report = {"frames": frames, "members": []}
    decided = [decision_to_dict(d) for d in decisions]
    return {"event": "round", "time": 0.0, "frames": frames, "report": report, "decisions": decided}


START = [
    {"event": "start", "time": 0.0, "frames": 0, "config": {}},
    {"event": "initial", "time": 0.0, "frames": 0, "values": [v(1), v(2), v(3)]},
    round_(10, Continue(0, ""), Mutate(1, v(20), ""), Replace(2, 0, "both", v(11), "")),
    {"event": "applied", "time": 0.0, "frames": 10},
]


def test_parents_generations_and_schedules():
    lineage = Lineage.from_events(read_events(START))
    assert lineage.present(0).key == (0, 0)
    assert (lineage.present(1).generation, lineage.present(1).parent) == (1, (1, 0))
    copied = lineage.present(2)
    assert (copied.generation, copied.parent, copied.depth) == (1, (0, 0), 1)
    assert [(n.key, n.trained, n.values) for n in lineage.ancestry(2)] == [
        ((0, 0), 0, v(1)),
        ((2, 1), 10, v(11)),
    ]
    assert [(n.trained, n.values) for n in lineage.ancestry(1)] == [(0, v(2)), (10, v(20))]
    assert lineage.surviving_roots() == {(0, 0), (1, 0)}


def test_a_copy_descends_from_the_donor_as_it_was_before_the_round():
    lineage = Lineage.from_events(
        read_events([*START, round_(20, Replace(1, 2, "both", v(12), ""), Mutate(2, v(13), ""))])
    )
    assert [n.key for n in lineage.ancestry(1)] == [(0, 0), (2, 1), (1, 2)]
    assert [n.key for n in lineage.ancestry(2)] == [(0, 0), (2, 1), (2, 2)]
    assert lineage.present(1).depth == 2
    assert lineage.surviving_roots() == {(0, 0)}
    lineage = Lineage.from_events(
        read_events([*START, round_(20, Replace(0, 1, "weights", v(5), ""), Replace(2, 0, "both", v(6), ""))])
    )
    assert lineage.present(0).parent == (1, 1)
    assert lineage.present(2).parent == (0, 0), "member 0 as it was before the round"


def test_copied_hypers_restarts_and_stops():
    lineage = Lineage.from_events(
        read_events([*START, round_(20, Replace(1, 0, "hypers", v(1), ""), Restart(2, v(9), ""))])
    )
    assert lineage.ancestry(1)[0].key == (1, 0)
    assert (lineage.ancestry(2)[0].key, lineage.present(2).depth) == ((2, 2), 0)
    lineage = Lineage.from_events(read_events([*START, round_(20, Stop(1, ""))]))
    assert lineage.members == [0, 2]
    assert lineage.surviving_roots() == {(0, 0)}
    with pytest.raises(KeyError):
        lineage.present(1)


def test_a_remembered_state_is_the_parent():
    lineage = Lineage.from_events(
        read_events(
            [*START, round_(20, Mutate(0, v(2), ""), Replace(2, 2, "both", v(7), "", donor_generation=0))]
        )
    )
    assert lineage.present(2).parent == (2, 0)
    assert lineage.present(2).base == (2, 1)
    recall = Replace(1, 0, "weights", v(8), "", donor_generation=0)
    lineage.apply(30, changes([recall], lineage.generations))
    assert [n.key for n in lineage.ancestry(1)] == [(0, 0), (1, 2)], "member 0 as remembered, not as it is"


def test_a_copy_has_the_dropped_node_as_its_base():
    lineage = Lineage.from_events(read_events(START))
    assert (lineage.present(2).base, lineage.present(1).base) == ((2, 0), None)
    assert lineage.children((0, 0)) == [(2, 1)]


def seen(frames, *members, decisions=()):
    """A round whose report holds (member, generation, frames, objectives)."""
    names = ("member", "generation", "frames", "objectives", "episodes", "values")
    report = {"frames": frames, "members": [dict(zip(names, (*m, 9, {}), strict=True)) for m in members]}
    return round_(frames, *decisions) | {"report": report}


def progress(*members):
    names = ("member", "generation", "frames", "objective", "episodes")
    return {
        "event": "progress",
        "time": 0.0,
        "frames": 0,
        "members": [dict(zip(names, (*m, 9), strict=True)) for m in members],
    }


MEASURED = [
    {"event": "initial", "time": 0.0, "frames": 0, "values": [v(1), v(2)]},
    seen(10, (0, 0, 10, [1.0, 3.0]), (1, 0, 14, ["nan"]), decisions=[Replace(1, 0, "both", v(3), "")]),
    progress((0, 0, 12, 9.0), (1, 1, 16, None)),
    progress((0, 0, 15, None), (1, 1, 20, 4.0), (7, 0, 1, 1.0)),
]


def test_objectives_are_the_last_ones_and_frames_are_counted_along_the_weights():
    objectives = Lineage.from_events(read_events(MEASURED)).objectives
    assert str(objectives.pop((1, 0))) == "nan"
    assert objectives == {(0, 0): 9.0, (1, 1): 4.0}
    lineage = Lineage.from_events(read_events(MEASURED))
    copied = lineage.present(1)
    assert (copied.own_frames, copied.trained) == (14, 10), "member 1 was at 14, the donor's weights at 10"
    assert lineage.end_trained((1, 1)) == 10 + 20 - 14
    assert lineage.end_trained((0, 0)) == 15


def grown(seed, count, rounds, *, revivals):
    """Returns the lineage after rounds of random decisions, and its roots after each round."""
    rng = Random(seed)
    kinds = ["continue", "mutate", "replace", "stop"] + ["restart", "remembered"] * revivals
    lineage = Lineage()
    lineage.add_first_members([v(i) for i in range(count)])
    stages = [lineage.surviving_roots()]
    own = dict.fromkeys(range(count), 0)
    for clock in range(rounds):
        decisions = []
        for member in lineage.members:
            own[member] += rng.randrange(10)
            objective = rng.choice([None, math.nan, math.inf, *range(-3, 4)])
            lineage.measure(lineage.present(member).key, own[member], objective)
            donor = rng.choice(lineage.members)
            copy = rng.choice(["weights", "hypers", "both"])
            remembered = rng.randint(0, lineage.present(donor).generation)
            decisions.append(
                {
                    "continue": Continue(member, ""),
                    "mutate": Mutate(member, v(clock), ""),
                    "replace": Replace(member, donor, copy, v(clock), ""),
                    "remembered": Replace(member, donor, copy, v(clock), "", remembered),
                    "stop": Stop(member, ""),
                    "restart": Restart(member, v(clock), ""),
                }[rng.choice(kinds)]
            )
        lineage.apply(clock, changes(decisions, lineage.generations))
        stages.append(lineage.surviving_roots())
    return lineage, stages


SEARCH = {"seed": st.integers(0, 2**32), "count": st.integers(1, 5), "rounds": st.integers(0, 8)}


@settings(deadline=None)
@given(**SEARCH)
def test_without_restarts_roots_only_die_out(seed, count, rounds):
    _, stages = grown(seed, count, rounds, revivals=False)
    for earlier, later in itertools.pairwise(stages):
        assert later <= earlier


@settings(deadline=None)
@given(**SEARCH)
def test_every_line_begins_at_its_root_and_every_node_lies_on_one_path(seed, count, rounds):
    lineage, _ = grown(seed, count, rounds, revivals=True)
    nodes = {node.key: node for node in lineage.nodes}
    for node in nodes.values():
        line = lineage.line(node.key)
        assert line[0].parent is None
        assert [n.depth for n in line] == list(range(len(line)))
        assert [a.key for a in line[:-1]] == [b.parent for b in line[1:]]
        assert [n.trained for n in line] == sorted(n.trained for n in line)
        assert (node.parent is None) or node.key in lineage.children(node.parent)
        assert node.base is None or node.base == (node.member, node.generation - 1)
        assert node.base != node.parent or node.base is None
    for member in lineage.members:
        root = lineage.ancestry(member)[0]
        assert root.trained == 0
        assert root.key in lineage.surviving_roots()
    on_paths = [n.key for m in sorted({m for m, _ in nodes}) for n in lineage.path(m)]
    assert sorted(on_paths) == sorted(nodes)


@pytest.mark.parametrize(("ready", "within"), [("synchronous", 0), ("timed", 0), ("asynchronous", 1)])
def test_a_replacement_is_judged_by_the_episodes_that_were_compared(ready, within):
    old = [0.0, 1.0] * 20  # before the last comparison, equal for both members

    def window(member, newest):
        return {
            "member": member,
            "frames": 10,
            "objectives": old + newest,
            "episodes": 44,
            "generation": 0,
            "best": None,
            "broken": False,
            "recent": 4,
        }

    compared = round_(10, Replace(1, 0, "both", v(1), ""))
    compared["report"]["members"] = [
        window(0, [5.0, 5.1, 5.0, 5.1]),
        window(1, [4.0, 4.1, 4.0, 4.1]),
    ]
    start = {**START[0], "config": {"pbt": {"ready": ready}}}
    noise, lineage = Noise(), Lineage()
    for event in read_events([start, START[1], compared]):
        noise.take(event)
        lineage.take(event)
    assert (noise.comparisons, noise.replacements, noise.within) == (1, 1, within)
    assert lineage.objectives[0, 0] == pytest.approx(5.05)


def test_repairs_are_no_comparisons():
    noise = Noise()
    for event in read_events(
        [*START[:2], round_(5, Restart(1, v(2), "its weights are not finite")), *START[2:]]
    ):
        noise.take(event)
    assert noise.comparisons == 1
