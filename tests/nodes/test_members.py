"""Members move to the packs that have a machine."""

import pytest

from pbt_rl.config import Config
from pbt_rl.nodes.members import leave, play_elsewhere, scatter, travel
from pbt_rl.population.population import Population
from pbt_rl.population.turns.slots import TurnSlots
from pbt_rl.run.plan import Machine, make_plan
from tests.helpers.resumable import ENVIRONMENTS, Run, small_config
from tests.population.test_complete import episode, report
from tests.population.test_dispatch import Desk
from tests.population.turns.test_slots import Table


@pytest.fixture
def travellers():
    """Three members per pack, two slots each, of which pack 1 has lost its machine."""
    table = Table()
    table.slots.serving |= {0}
    return table


def test_members_of_a_lost_pack_go_to_those_that_serve(travellers):
    slots = travellers.slots
    assert scatter(slots, 1) == [(1, 0), (3, 0), (5, 0)]
    assert slots.of(0) == (0, 1, 2, 3, 4, 5)
    assert (slots.of(1), slots.members_of(1)) == ((), [None, None])
    assert {slots.pack_of[member] for member in range(6)} == {0}
    assert travellers.parked == [1, 3, 4, 5]
    assert travellers.assign(m0=150, m2=80, m4=20) == [(0, 0, 0, 1)], "they share the slots by turns"


def test_they_spread_over_the_packs_with_the_fewest_members_per_slot():
    plan = make_plan(Config("toy/x", num_policies=8, devices="cpu,cpu,cpu,cpu"), Machine(8, 0))
    slots = TurnSlots(plan.packs, Population([{}] * 8, 10, 1), 100, 1000)
    slots.serving |= {0, 1, 2}
    assert scatter(slots, 3) == [(3, 0), (7, 1)]


def test_without_a_pack_that_serves_they_stay(travellers):
    travellers.slots.serving.clear()
    assert scatter(travellers.slots, 1) == []
    assert travellers.slots.of(1) == (1, 3, 5)
    travellers.slots.serving.add(1)
    assert scatter(travellers.slots, 1) == [], "a pack is no other one"


def test_a_pack_that_serves_again_takes_those_that_wait_the_least_trained_first(travellers):
    slots = travellers.slots
    scatter(slots, 1)
    assert travel(slots) == [], "no other pack serves"
    slots.serving.add(1)
    for member, frames in ((1, 50), (3, 10), (5, 10), (4, 70)):
        travellers.population.members[member].frames = frames
    assert travel(slots) == [(3, 1), (5, 1)]
    assert travellers.assign() == [(1, 0, None, 3), (1, 1, None, 5)]
    assert travel(slots) == []


def test_those_that_may_not_train_do_not_move(travellers):
    slots = travellers.slots
    scatter(slots, 1)
    slots.serving.add(1)
    for member in travellers.population.members:
        member.stopped = member.id != 4
        member.until_frames = 10 if member.id == 4 else None
        member.frames = 10
    assert travel(slots) == []


def test_a_member_that_waits_takes_a_slot_that_is_free_elsewhere():
    table = Table()
    table.slots.serving |= {0, 1}
    for member in (1, 3, 5):
        table.population.members[member].stopped = True
    table.assign()
    assert travel(table.slots) == [(4, 1)]


def test_members_of_a_pack_without_a_machine_wait_in_others():
    desk = Desk(slots=2)
    desk.train(2)
    desk.checkpoint()
    desk.slots.serving.discard(0)
    desk.dispatch.lost(0)
    assert leave(desk.dispatch, 0) == [(0, 1), (2, 1)]
    assert (desk.weights(0), desk.weights(2)) == (0, 2.25)
    desk.holds = {place: held for place, held in desk.holds.items() if place[0] == 1}
    desk.hand_over(1, 1, 3, 2)
    desk.answer()
    assert desk.weights(2) == 2.25


def test_a_member_that_moves_to_another_pack_plays_in_as_many_environments_as_others_there():
    run = Run(small_config(run={"num_policies": 5, "devices": "cpu,cpu"}))
    pack = make_plan(run.config, Machine(4, 0)).packs[1]
    play_elsewhere(run.population, 0, pack.environments_of_member)
    assert run.population.members[0].shares.environments == pack.units * pack.envs_per_policy != ENVIRONMENTS


@pytest.mark.parametrize("before", [6, 3])
def test_a_member_that_moves_is_complete_once_its_new_environments_are(before):
    p = Population([{"a": 1.0}] * 2, 8, 1, environments={0: before, 1: 4})
    p.take("a", report(episode(0, 5), episode(before - 1, 7)))
    play_elsewhere(p, 0, 4)
    p.take("b", report(*(episode(row, 9) for row in (0, 1, 2))))
    assert p.report().members[0].objectives == ()
    assert not p.views()[0].complete
    p.take("b", report(episode(3, 9)))
    assert p.report().members[0].episodes >= 4
    assert p.views()[0].complete
