import re
from random import Random
from types import SimpleNamespace

import pytest

from pbt_rl.controllers.decisions import Continue, Stop
from pbt_rl.controllers.options import SearchConfig
from pbt_rl.controllers.search.asha import Asha
from pbt_rl.controllers.search.entries import ASHA
from tests.helpers.populations import member, report
from tests.helpers.searches import TABLE, any_speed, begun, going_on
from tests.helpers.simulation import simulate


def search(slots, *, eta=3, resource=9, seed=0):
    return Asha(TABLE, seed, phase_frames=10, eta=eta, resource=resource, slots=slots)


def test_the_rungs_grow_by_eta_up_to_the_resource():
    assert search(1, resource=27).rungs == [1, 3, 9, 27]
    assert search(1, resource=30).rungs == [1, 3, 9, 27, 30]
    assert search(1, resource=1).rungs == [1]
    assert search(1, eta=2, resource=4).rungs == [1, 2, 4]


def test_a_free_slot_promotes_the_best_third_and_else_begins_another():
    asha = search(2)
    first = begun(asha, 6)
    assert going_on(first) == {0: 10, 1: 10} | dict.fromkeys(range(2, 6), 0)
    both = [member(i, (s,), frames=10, episodes=9) for i, s in ((0, 1.0), (1, 5.0))]
    rest = [member(i, (), frames=0) for i in range(2, 6)]
    assert going_on(asha.observe(report(0, [*both, *rest]))) == {2: 10, 3: 10}, (
        "of two none is the best third"
    )
    three = [*both, member(2, (3.0,), frames=10, episodes=9), *rest[1:]]
    assert going_on(asha.observe(report(0, three))) == {1: 30}, "the best of three, before another begins"
    assert asha.observe(report(0, three)) == [], "nobody is promoted twice"


def test_the_highest_rung_goes_first_and_those_that_wait_are_stopped_at_the_end():
    asha = search(1, eta=2, resource=4)
    assert going_on(begun(asha, 4)) == {0: 10, 1: 0, 2: 0, 3: 0}
    frames, log = [0] * 4, []
    limits, alive = {0: 10}, {0, 1, 2, 3}
    scores = [1.0, 4.0, 3.0, 2.0]
    for _ in range(20):
        for m, until in limits.items():
            frames[m] = max(frames[m], until)
        members = [
            member(i, (scores[i],) if frames[i] else (), frames=frames[i], episodes=9) for i in sorted(alive)
        ]
        for d in asha.observe(report(0, members)):
            if isinstance(d, Stop):
                alive.remove(d.member)
            log.append((d.member, d.until_frames if isinstance(d, Continue) else d.reason.split(":")[0]))
            limits = {d.member: d.until_frames} if isinstance(d, Continue) else {}
    assert log == [
        (1, 10),
        (1, 20),
        (2, 10),
        (3, 10),
        (2, 20),
        (1, 40),
        (0, "evicted"),
        (1, "completed"),
        (2, "evicted"),
        (3, "evicted"),
    ]


def slow_promotions(scores, eta):
    """The number that pass each rung if all are known: floor of a share, rung by rung."""
    alive, counts = sorted(scores, reverse=True), []
    while alive:
        counts.append(len(alive))
        alive = alive[: len(alive) // eta]
    return counts


@pytest.mark.parametrize("slots", [1, 4, 27])
def test_of_27_configurations_at_least_those_of_a_bracket_are_promoted(slots):
    for seed in range(5):
        asha = Asha(TABLE, seed, phase_frames=100, resource=27, slots=slots)
        order = Random(seed).sample(range(27), 27)
        sim = simulate(asha, 27, slots, speed=any_speed, score=lambda m, *_: float(order[m]), seed=seed)  # noqa: B023
        ends = [sum(frames >= 100 * units for frames in sim.frames) for units in asha.rungs]
        least = slow_promotions(range(27), 3)
        assert ends[0] == 27
        assert all(found >= wanted for found, wanted in zip(ends, least, strict=False)), (ends, least)
        to_the_end = [m for m in range(27) if sim.frames[m] >= 2700]
        assert order.index(26) in to_the_end, "the best of all, whenever it began"
        assert len(to_the_end) < 9
        assert all(p.stopped for p in asha._progress)


def test_a_population_of_which_nobody_reaches_the_top_is_told_how_many_do():
    def note(members, eta=3, resource=27):
        options = SimpleNamespace(group=lambda _kind: SearchConfig(eta=eta, resource=resource))
        return ASHA.note(options, members, 1000)

    assert re.search("3 of 27 .*--num-policies 27 ", note(4))
    assert "9 of 27 " in note(26)
    assert note(27) == note(30) == note(4, eta=2, resource=4) == note(1, resource=1) == ""
    for members, eta, resource in ((4, 3, 27), (26, 3, 27), (5, 2, 8), (7, 4, 20)):
        asha = Asha(TABLE, 0, phase_frames=1, eta=eta, resource=resource, slots=members)
        left, reached = members, asha.rungs[0]
        for units in asha.rungs[1:]:
            left //= eta
            reached = units if left else reached
        assert f"beyond {reached} of {resource} units" in note(members, eta, resource)
