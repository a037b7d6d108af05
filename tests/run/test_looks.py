"""How often the controller looks at all members."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from pbt_rl.actors.messages import EvaluateMember, Load
from pbt_rl.controllers.decisions import Evaluate
from pbt_rl.population.dispatch import Dispatch
from pbt_rl.run.views import progress_gap, view_gap
from tests.helpers.resumable import Run, small_config

OFTEN = [round(0.01 * number, 3) for number in range(60)]


@pytest.fixture
def looks(monkeypatch):
    """Return what has a learner report at times in seconds, and returns when looks began. took: seconds of a look."""

    def of(took, times, *, config=None, busy=(), decided=False):
        now, seen = [0.0], []

        def observe(_report):
            seen.append(round(now[0], 3))
            now[0] += took
            return [Evaluate(0, 1, "")] if decided else []

        run = Run(config or small_config())
        clock = SimpleNamespace(monotonic=lambda: now[0], thread_time=lambda: now[0])
        monkeypatch.setattr("pbt_rl.run.comparisons.time", clock)
        run.comparisons._controller = SimpleNamespace(observe=observe)
        run.comparisons._recorder = SimpleNamespace(decided=lambda *_: None)
        run.comparisons.exchange = lambda _: run.comparisons._reported.clear()
        for at in times:
            now[0] = max(now[0], at)
            monkeypatch.setattr(Dispatch, "busy", at in busy)
            run.comparisons.note_report(0)
        now[0] += 1
        run.comparisons.look()
        return seen

    return of


SERIAL = replace(small_config(), mode="serial")
LOOKS = {
    "quick looks follow every report": (0.001, OFTEN, {}, OFTEN),
    "long ones take a fifth of the time": (0.05, OFTEN[:51], {}, [0.0, 0.25, 0.5]),
    "a pause never exceeds half a second": (10.0, [0.0, 10.2, 10.4, 10.6], {}, [0.0, 10.6]),
    "reports that came in a pause get their look after it": (0.05, [0.0, 0.1], {}, [0.0, 1.1]),
    "a comparison is followed by no pause": (0.05, [0.0, 0.1], {"decided": True}, [0.0, 0.1]),
    "serial mode looks after every report": (0.05, [0.0, 0.1, 0.2], {"config": SERIAL}, [0.0, 0.1, 0.2]),
    "no look while decisions are on their way": (0.0, [1.0, 2.0, 3.0], {"busy": [2.0]}, [1.0, 3.0]),
}


@pytest.mark.parametrize("law", LOOKS)
def test_when_the_controller_looks(looks, law):
    took, times, options, seen = LOOKS[law]
    assert looks(took, times, **options) == seen


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


def test_views_and_progress_are_rarer_in_long_runs():
    assert [view_gap(took) for took in (0.01, 0.3, 5.0)] == [1.0, 3.0, 10.0]
    assert [progress_gap(hours * 3600) for hours in (0.1, 10, 24, 240)] == [10.0, 18.0, 43.2, 60.0]
    assert [progress_gap(seconds) for seconds in (0, 2, 20)] == [0.5, 0.5, 2.0]
