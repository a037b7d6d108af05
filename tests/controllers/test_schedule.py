"""A recorded schedule, along the ancestry of a member, is followed or its end is held."""

import math
import re
from contextlib import closing

import pytest

from pbt_rl.config import Config
from pbt_rl.controllers.controllers import PbtController
from pbt_rl.controllers.decisions import Mutate, Replace, Restart, Stop
from pbt_rl.controllers.events import Final, FinalScores, Resume, Start
from pbt_rl.controllers.exploit import Gap, Truncation
from pbt_rl.controllers.explore import Perturb
from pbt_rl.controllers.hypers import HyperSpec
from pbt_rl.controllers.lineage import Lineage
from pbt_rl.controllers.options import ScheduleConfig
from pbt_rl.controllers.ready import Synchronous
from pbt_rl.controllers.schedule import recorded_steps
from pbt_rl.errors import ConfigError
from pbt_rl.record.journal import Journal, read_journal
from pbt_rl.run.resolved import build_controller
from tests.helpers.journals import read_events
from tests.helpers.populations import member, report
from tests.helpers.simulation import simulate

TABLE = {
    "rate": HyperSpec("rate", 1e-3, 1e-5, 1.0, "log", tuned=True),
    "gamma": HyperSpec("gamma", 0.99, 0.9, 0.999, "one_minus", tuned=False),
}


def rate(x):
    return {"rate": x}


def write_run(folder, rounds, initial=(0.1, 0.2)):
    """rounds: [(report, decisions)]"""
    with closing(Journal(folder / "journal.jsonl")) as journal:
        journal.initial([rate(x) for x in initial])
        for seen, decisions in rounds:
            journal.round(seen, decisions)
    return folder


@pytest.fixture
def recorded(tmp_path):
    """Member 1 mutates at 100, is copied by 0 at 200, and is then stopped; 0 is the best at 300."""
    return write_run(
        tmp_path,
        [
            (report(100, [member(0, (1.0,), frames=100), member(1, (2.0,), frames=110)]), [Mutate(1, rate(0.3), "")]),
            (
                report(200, [member(0, (1.0,), frames=200), member(1, (5.0,), frames=210, generation=1)]),
                [Replace(0, 1, "both", rate(0.4), ""), Stop(1, "")],
            ),
            (report(300, [member(0, (9.0,), frames=300, generation=1)]), [Stop(0, "")]),
        ],
    )  # fmt: skip


def follow(folder, **options):
    return build_controller(
        Config(env="toy/memory", controller="schedule", schedule=ScheduleConfig(run=str(folder), **options)),
        TABLE,
        0,
    )


def schedule(folder, member):
    return recorded_steps(read_events(read_journal(folder / "journal.jsonl")), member)


def test_the_schedule_is_that_of_the_weights(recorded):
    assert schedule(recorded, "1") == [(0, rate(0.2)), (110, rate(0.3))]
    assert schedule(recorded, "0") == [(0, rate(0.2)), (110, rate(0.3)), (210, rate(0.4))]
    assert schedule(recorded, "best") == schedule(recorded, "0")


def test_the_best_is_who_was_best_when_last_measured_even_if_it_was_stopped(tmp_path):
    rounds = [
        (report(10, [member(0, (8.0,), frames=10), member(1, (7.0,), frames=10)]), [Stop(1, "")]),
        (report(20, [member(0, (3.0,), frames=20)]), [Mutate(0, rate(0.9), "")]),
    ]
    assert schedule(write_run(tmp_path, rounds), "best") == [(0, rate(0.2))]


def test_the_best_is_no_control_and_has_the_best_final_evaluation(tmp_path):
    rounds = [(report(10, [member(i, (score,), frames=10) for i, score in enumerate((8.0, 7.0, 9.0))]), [])]
    write_run(tmp_path, rounds, initial=(0.1, 0.2, 0.3))
    events = list(read_events(read_journal(tmp_path / "journal.jsonl")))
    scores = FinalScores(1, 9.0, 20), FinalScores(2, 9.5, 20)
    start, final = Start(0.0, 0, {"num_policies": 2}), Final(1.0, 10, scores)
    assert recorded_steps([start, *events], "best") == [(0, rate(0.1))]
    assert recorded_steps([start, *events, final], "best") == [(0, rate(0.2))]
    resumed = [start, *events, final, Resume(2.0, 10, {}, {})]
    assert recorded_steps(resumed, "best") == [(0, rate(0.1))], "the evaluation is of older weights"


def test_nan_is_never_the_best_and_fresh_weights_begin_a_schedule(tmp_path):
    rounds = [
        (report(10, [member(0, (math.nan,), frames=10), member(1, (7.0,), frames=10)]), [Restart(1, rate(0.5), "")]),
        (report(20, [member(0, (math.inf,), frames=20), member(1, (-3.0,), frames=20, generation=1)]),
         [Mutate(1, rate(0.6), "")]),
    ]  # fmt: skip
    assert schedule(write_run(tmp_path, rounds), "best") == [(0, rate(0.5))]
    assert schedule(tmp_path, "1") == [(0, rate(0.5)), (10, rate(0.6))]


def test_every_member_follows_it(recorded):
    controller = follow(recorded)
    assert controller.initial(3) == [{"rate": 0.2, "gamma": 0.99}] * 3
    assert controller.observe(report(0, [member(0, (), frames=0), member(2, (), frames=109)])) == []
    (decision,) = controller.observe(report(0, [member(0, (), frames=3), member(2, (), frames=110)]))
    assert (decision.member, decision.values) == (2, {"rate": 0.3, "gamma": 0.99})
    assert re.search(r"2 of 3\b.*\b110\b", decision.reason)
    first, second = controller.observe(report(0, [member(0, (), frames=999), member(2, (), frames=999)]))
    assert first.values == second.values == {"rate": 0.4, "gamma": 0.99}, (
        "a step that was missed is passed over"
    )
    assert controller.observe(report(0, [member(0, (), frames=9999)])) == []


def test_a_replay_of_a_replay_has_the_same_schedule(tmp_path):
    """A whole simulated PBT run, its best member's schedule, a run by that schedule, and its record again."""
    options = {
        "speed": lambda *_: 1.0,
        "score": lambda m, f, v, rng: -abs(math.log(v["rate"] / 0.01)),
        "seed": 3,
    }

    def record(name, controller, members):
        folder = tmp_path / name
        folder.mkdir()
        first = controller.initial(members)
        controller.initial = lambda _: first
        sim = simulate(controller, members, members, chunk_frames=10, limit_frames=400, **options)
        with closing(Journal(folder / "journal.jsonl")) as journal:
            journal.initial(first)
            for _, seen, decisions in sim.rounds:
                journal.round(seen, list(decisions))
        return folder

    pbt = PbtController(
        TABLE, 1, ready=Synchronous(40, 40, 1), exploit=Truncation(0.25, Gap(0, 0), others_mutate=True),
        explore=Perturb({"rate": TABLE["rate"]}, 0.8, 1.2, 2.0),
    )  # fmt: skip
    folder = record("pbt", pbt, 8)
    lineage = Lineage.from_events(read_events(read_journal(folder / "journal.jsonl")))
    assert len(lineage.nodes) > 30
    best = schedule(folder, "best")
    assert len(best) > 2
    again = record("schedule", follow(folder), 2)
    assert schedule(again, "0") == schedule(again, "1") == best


def test_the_last_values_can_be_held(recorded):
    controller = follow(recorded, hold_final=True)
    assert controller.initial(1) == [{"rate": 0.4, "gamma": 0.99}]
    assert controller.observe(report(0, [member(0, (), frames=10**9)])) == []
    assert follow(recorded, hold_final=True, member="1").initial(1)[0]["rate"] == 0.3


def test_values_are_held_within_the_present_bounds(tmp_path):
    assert follow(write_run(tmp_path, [], initial=(7.0,)), member="0").initial(1)[0]["rate"] == 1.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"member": "2"}, r"--schedule.member 2 .*`best`.* 0\.\.1"),
        ({"member": "x"}, "--schedule.member x .*`best`"),
    ],
)
def test_members_that_are_not_there(recorded, options, message):
    with pytest.raises(ConfigError, match=message):
        follow(recorded, **options)


def test_runs_that_cannot_be_used(tmp_path):
    with pytest.raises(ConfigError, match=r"--schedule.run .*nowhere"):
        follow(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"--schedule.run ''"):
        follow("")
    with pytest.raises(ConfigError, match=r"--schedule.member best .*objective"):
        follow(write_run(tmp_path, []))
    (tmp_path / "other").mkdir()
    with closing(Journal(tmp_path / "other" / "journal.jsonl")) as journal:
        journal.initial([{"speed": 1.0}])
    with pytest.raises(ConfigError, match=r"--schedule.run .*\(speed\)"):
        follow(tmp_path / "other", member="0")


def test_hypers_that_are_not_read_here_are_left_out_if_they_never_change(tmp_path):
    for name, alpha in (("constant", 0.99), ("tuned", 0.9)):
        (tmp_path / name).mkdir()
        with closing(Journal(tmp_path / name / "journal.jsonl")) as journal:
            journal.initial([{"rate": 0.1, "rmsprop_alpha": 0.99}])
            later = Mutate(0, {"rate": 0.2, "rmsprop_alpha": alpha}, "")
            journal.round(report(100, [member(0, (1.0,), frames=100)]), [later])
    assert follow(tmp_path / "constant", member="0").initial(1) == [{"rate": 0.1, "gamma": 0.99}]
    with pytest.raises(ConfigError, match=r"--schedule.run .*\(rmsprop_alpha\)"):
        follow(tmp_path / "tuned", member="0")
