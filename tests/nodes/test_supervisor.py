"""A supervisor whose packs are on machines that come and go, over a fleet that only pretends."""

import os
import signal

from pbt_rl.actors.messages import SaveLearner
from pbt_rl.nodes.supervisor import MachineLeaving, MachineLost, SpreadSupervisor
from tests.run.test_supervisor import READY, report, saved, start

__all__ = ["start"]


def test_a_pack_whose_machine_was_left_is_saved_from_its_copies_until_it_has_another(start, tmp_path):
    leaving = MachineLeaving("soon", MachineLost(0, "its node is being taken away"))
    interrupt = [lambda: os.kill(os.getpid(), signal.SIGTERM)]
    fleet, run = start(
        [[READY], [report(500)], [leaving], *[[]] * 20, interrupt], "--nodes=ray", kind=SpreadSupervisor
    )
    fleet.waits = lambda _pack: True
    fleet.replace_learner = lambda *_: fleet.sent.clear()  # there is no other machine
    assert run() == 128 + signal.SIGTERM
    assert fleet.fenced == [0]
    assert saved(tmp_path) == ["at_500"]
    assert not [message for _, message in fleet.sent if isinstance(message, SaveLearner)]
