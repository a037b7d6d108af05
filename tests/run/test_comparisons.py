"""Comparisons over learners that only pretend: what they are told of members that take turns in slots."""

from pbt_rl.actors.messages import EvaluateMember, Load
from pbt_rl.controllers.decisions import Evaluate
from tests.helpers.resumable import Run, small_config


def test_only_members_that_hold_slots_are_evaluated_and_those_that_enter_are():
    run = Run(small_config(enabled=False))
    held = {member for pack in (0, 1) for member in run.comparisons.slots.members_of(pack)}
    run.fleet.log.clear()
    run.comparisons.enact([Evaluate(member, 10**6, "") for member in range(8)])
    sent = [message for _, message in run.fleet.log]
    assert sent == [EvaluateMember(member, begins=True) for member in sorted(held)]
    for _ in range(4):
        run.report()
    sent = [entry[1] for entry in run.fleet.log if len(entry) == 2]
    entered = [load.member for load in sent if isinstance(load, Load)]
    assert {6, 7} <= {*entered}
    evaluated = [message for message in sent[len(held) :] if isinstance(message, EvaluateMember)]
    assert evaluated == [EvaluateMember(member, begins=True) for member in entered]
