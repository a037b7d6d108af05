"""The slots of the packs in a run in which nobody takes turns."""

from pbt_rl.config import Config
from pbt_rl.population.population import Population
from pbt_rl.population.slots import Slots
from pbt_rl.run.plan import Machine, make_plan


def test_each_member_holds_the_same_slot_of_its_pack_all_the_time():
    plan = make_plan(Config("toy/x", num_policies=5, devices="cpu,cpu"), Machine(4, 0))
    slots = Slots(plan.packs, Population([{}] * 5, 10, 1))
    assert [slots.members_of(pack) for pack in (0, 1)] == [[0, 2, 4], [1, 3]]
    assert [slots.slot_of(member) for member in range(5)] == [0, 0, 1, 1, 2]
    assert [(pack, s.slot, s.leaves, s.enters) for pack, s in slots.start()] == [
        (0, 0, None, 0),
        (0, 1, None, 2),
        (0, 2, None, 4),
        (1, 0, None, 1),
        (1, 1, None, 3),
    ]
    assert slots.plan == [{"members": [0, 2, 4], "slots": 3}, {"members": [1, 3], "slots": 2}]
    assert not slots.stuck
