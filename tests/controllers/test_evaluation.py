"""Members are evaluated on purpose before they are compared, and the journal of that can be decided again."""

import json
from dataclasses import asdict, replace

import pytest

from pbt_rl.config import Hypers
from pbt_rl.controllers.changes import changes
from pbt_rl.controllers.decide import audit_decisions
from pbt_rl.controllers.decisions import Continue, Decision, Evaluate, Replace, Restart, decision_to_dict
from pbt_rl.controllers.hypers import hyper_table
from pbt_rl.controllers.member_record import MemberRecord
from pbt_rl.controllers.objectives import ObjectiveWindow
from pbt_rl.controllers.options import PbtConfig
from pbt_rl.controllers.records import converted
from pbt_rl.errors import ConfigError
from tests.helpers.journals import read_events
from tests.helpers.populations import build, member, report

TABLE = hyper_table(Hypers())
PBT = PbtConfig(
    period_frames=100,
    start_frames=100,
    exploit="truncation",
    replace_fraction=0.5,
    replace_gap=0.0,
    evaluate_episodes=4,
    min_episodes=2,
    objective_episodes=8,
)


def controller(**options):
    built = build(replace(PBT, **options), TABLE, 0, 4)
    built.values = built.initial(4)
    return built


def members(built, frames, objectives, **more):
    return [member(i, own, frames=frames, values=built.values[i], **more) for i, own in enumerate(objectives)]


TRAINING = [(9.0,) * 8, (8.0,) * 8, (7.0,) * 8, (6.0,) * 8]
EVALUATED = [(1.0,) * 4, (2.0,) * 4, (3.0,) * 4, (4.0,) * 4]


def test_training_episodes_are_not_compared():
    built = controller()
    assert built.observe(report(99, members(built, 99, TRAINING))) == []
    begun = built.observe(report(100, members(built, 100, TRAINING)))
    assert begun == [Evaluate(i, 4, begun[i].reason) for i in range(4)]
    assert built.observe(report(150, members(built, 150, [*EVALUATED[:3], (4.0,) * 3]))) == [], "one plays"
    decided = built.observe(report(200, members(built, 200, EVALUATED)))
    replaced = {d.member: d.donor for d in decided if isinstance(d, Replace)}
    assert set(replaced) == {0, 1}, "the worst in the evaluation, not in training"
    assert set(replaced.values()) <= {2, 3}
    assert built.observe(report(299, members(built, 299, EVALUATED))) == [], (
        "a whole period of training follows"
    )
    assert isinstance(built.observe(report(300, members(built, 300, EVALUATED)))[0], Evaluate)


def test_a_member_that_was_evaluated_and_not_compared_learns_on():
    built = controller()
    built.observe(report(100, members(built, 100, TRAINING)))
    late = 100 + 10 * 100
    decided = built.observe(report(late, members(built, late, [*EVALUATED[:3], (4.0,)])))
    assert [d.member for d in decided] == [0, 1, 2, 3]
    assert decided[3] == Continue(3, decided[3].reason)


def test_learning_goes_on_if_nothing_can_be_compared():
    built = controller()
    built.observe(report(100, members(built, 100, TRAINING)))
    nobody = [(), (), (), (4.0,) * 4]
    assert built.observe(report(1099, members(built, 1099, nobody))) == []
    decided = built.observe(report(1100, members(built, 1100, nobody)))
    assert decided == [Continue(i, decided[i].reason) for i in range(4)]
    assert built.observe(report(1200, members(built, 1200, nobody))) == [], "not evaluated again at once"
    held = built.observe(report(1300, members(built, 1300, TRAINING)))
    assert any(isinstance(d, Replace) for d in held), "the comparison that is due is held without"
    assert isinstance(built.observe(report(1400, members(built, 1400, TRAINING)))[0], Evaluate)


def test_a_member_that_breaks_meanwhile_is_repaired_and_not_waited_for():
    built = controller()
    built.observe(report(100, members(built, 100, TRAINING)))
    now = members(built, 150, [*EVALUATED[:2], (), ()])
    repaired = built.observe(report(150, [*now[:3], replace(now[3], broken=True)]))
    assert [type(d) for d in repaired] == [Restart], "at once"
    compared = built.observe(report(200, members(built, 200, [*EVALUATED[:3], ()])))
    assert [d.member for d in compared] == [0, 1, 2]


def test_the_journal_of_evaluations_can_be_decided_again_bit_for_bit():
    built, generations = controller(), [0] * 4
    events = [{"event": "initial", "time": 0.0, "frames": 0, "values": [*built.values]}]
    for frames in range(50, 800, 50):
        now = members(built, frames, EVALUATED)
        seen = report(frames, [replace(m, generation=generations[m.member]) for m in now])
        decisions = built.observe(seen)
        if decisions:
            record = {"report": asdict(seen), "decisions": [decision_to_dict(d) for d in decisions]}
            events.append({"event": "round", "time": 1.0, "frames": frames, **record})
        for change in changes(decisions, dict(enumerate(generations))):
            generations[change.member] = change.generation
            built.values[change.member] = change.values or built.values[change.member]
    evaluated = [e for e in events if "decisions" in e and e["decisions"][0]["decision"] == "evaluate"]
    assert len(evaluated) == 5
    events = json.loads(json.dumps(events))
    assert audit_decisions(read_events(events), build(PBT, TABLE, 0, 4)) == []
    assert converted(decision_to_dict(Evaluate(2, 5, "why")), Decision, "a decision") == Evaluate(2, 5, "why")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"ready": "asynchronous"}, "--pbt.ready synchronous"),
        ({"evaluate_episodes": 1}, "--pbt.min-episodes, 2"),
        ({"evaluate_episodes": 9}, "--pbt.objective-episodes, 8"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(options, said):
    with pytest.raises(ConfigError, match=said):
        build(replace(PBT, **options), TABLE, 0, 4)


def test_the_last_objective_is_shown_until_the_evaluation_has_one_but_not_reported():
    record = MemberRecord(0, {"a": 1.0}, ObjectiveWindow(1, 8))
    for _ in range(3):
        record.note_objective(5.0)
    record.apply(changes([Evaluate(0, 4, "")], {0: 0})[0])
    assert (record.objective, record.evaluates, record.generation) == (5.0, 4, 0)
    assert (record.report().objectives, record.report().episodes) == ((), 0)
    record.note_objective(7.0)
    assert (record.objective, record.report().objectives, record.report().episodes) == (7.0, (7.0,), 1)
    record.apply(changes([Continue(0, "")], {0: 0})[0])
    record.note_objective(8.0)
    assert (record.evaluates, record.report().objectives) == (0, (7.0, 8.0)), "the window goes on"
