import json
import math
import os
import re
import subprocess
import sys
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pbt_rl.controllers import (
    Evaluation,
    Gap,
    HyperSpec,
    HyperTrick,
    Lineage,
    Mutate,
    PbtController,
    Perturb,
    Replace,
    Restart,
    Stop,
    Synchronous,
    Truncation,
)
from pbt_rl.controllers.decide import audit_decisions
from pbt_rl.errors import ConfigError, RunFailed
from pbt_rl.record.journal import read_journal
from pbt_rl.tune import run
from tests.helpers.journals import read_events
from tests.helpers.runs import ROOT
from tests.helpers.toys import Deadly, Fragile, Script, Walker, goes_on

TABLE = {"rate": HyperSpec("rate", 0.1, 0.01, 10.0, "log", tuned=True)}


ONE = Walker(0)


class Coroutine:
    async def step(self, hypers):
        """Train, if somebody awaits it."""


def pbt(seed=0, fraction=0.3, period=5, episodes=0):
    exploit, explore = Truncation(fraction, Gap(0, 0), others_mutate=False), Perturb(TABLE, 1.0, 1.2, 1.5)
    rules = {"ready": Synchronous(period, 0, 1), "exploit": exploit, "explore": explore}
    return PbtController(TABLE, seed, **rules, evaluation=Evaluation(episodes))


def weights(result):
    return [o if o is None else round(o) for o in result.objectives]


def test_weights_and_hypers_are_copied_as_asked_and_all_decisions_hold_at_once():
    asked = [("weights", 0.0), ("hypers", 2.0), ("both", 2.0)]
    copies = [Replace(m, 3, what, {"rate": rate}, "") for m, (what, rate) in enumerate(asked)]
    decisions = {5: [*copies, goes_on(3)]}
    result = run(Walker, Script([0, 0, 0, 2.0], decisions), steps=10, num_members=4)
    # At 5 steps member 3 weighs 3 + 5 * 2; then 0 stands still, 1 starts from its own 1.
    assert weights(result) == [13, 11, 23, 23]
    assert [o.generation for o in result.members] == [1, 1, 1, 0]
    assert result.values == [{"rate": 0.0}, {"rate": 2.0}, {"rate": 2.0}, {"rate": 2.0}]
    assert [result.lineage.ancestry(m)[0].key for m in range(4)] == [(3, 0), (1, 0), (3, 0), (3, 0)]
    swap = {5: [Replace(0, 1, "both", {"rate": 0.0}, ""), Replace(1, 0, "both", {"rate": 0.0}, "")]}
    assert weights(run(Walker, Script([3.0, 0.0], swap), steps=6, num_members=2)) == [1, 15]


def test_a_copy_shares_nothing_with_its_donor():
    class Listed(Walker):
        def __init__(self, index):
            super().__init__(index)
            self.list = [0]

        def state(self):
            return self.list

        def load(self, state):
            self.list = state

        def step(self, hypers):
            self.list[0] += hypers["rate"]

        def evaluate(self):
            return self.list[0]

    copy = {2: [Replace(0, 1, "weights", {"rate": 100.0}, "")]}
    assert weights(run(Listed, Script([0, 1.0], copy), steps=4, num_members=2)) == [202, 4]


def test_mutate_keeps_the_weights_and_empties_the_window():
    script = Script([1.0, 1.0], {3: [Mutate(0, {"rate": 2.0}, "")]})
    assert weights(run(Walker, script, steps=6, num_members=2, window=10)) == [7, 5]
    after = script.reports[4]
    assert after.frames == 4
    assert [(m.episodes, len(m.objectives), m.generation) for m in after.members] == [(1, 1, 1), (4, 4, 0)]
    assert after.members[0].best == after.members[0].objectives[0]


def test_restart_makes_a_fresh_member_of_the_next_index_or_takes_the_first_state_of_a_given_one():
    restart = {3: [Restart(0, {"rate": 0.0}, "")], 4: [Restart(0, {"rate": 0.0}, "")]}
    result = run(Walker, Script([5.0, 5.0], restart), steps=5, num_members=2)
    assert weights(result)[0] == 3  # indices 0 and 1 at the start, then 2, then 3
    assert result.lineage.ancestry(0)[0].key == (0, 2)
    walkers = [Walker(0), Walker(1)]
    result = run(walkers, Script([5.0, 5.0], {3: [Restart(1, {"rate": 0.0}, "")]}), steps=5)
    assert weights(result)[1] == round(walkers[1].weight) == 1


def test_a_stopped_member_keeps_its_weights_and_its_slot_goes_to_the_next():
    class Ends(Script):
        def observe(self, report):
            super().observe(report)
            if len(self.reports) == 1:
                return [goes_on(m, 4) for m in range(3)]
            return [Stop(m.member, "") for m in report.members if m.frames == 4]

    result = run(Walker, Ends([1.0, 2.0, 3.0]), steps=100, num_members=3, slots=1)
    assert weights(result) == [4, 9, 14]
    assert all(o.stopped and o.steps == 4 for o in result.members)
    assert [e.member for e in result.history] == [0] * 4 + [1] * 4 + [2] * 4
    assert result.best == 2
    assert round(result.best_state[0]) == 14


def test_a_member_waits_at_its_limit_for_a_decision():
    script = Script([1.0, 1.0], {0: [goes_on(0, 3)], 3: [goes_on(0)]})
    run(Walker, script, steps=8, num_members=2, evaluate_every=2)
    frames = [tuple(m.frames for m in r.members) for r in script.reports]
    # Evaluated at its limit, off the beat; the clock is the least frames, so the decision comes at 3.
    assert frames[:4] == [(0, 0), (2, 2), (3, 4), (4, 6)]
    script = Script([1.0, 1.0], {0: [goes_on(0, 3)], 3: [Mutate(0, {"rate": 2.0}, "")]})
    assert weights(run(Walker, script, steps=8, num_members=2)) == [3 + 2 * 5, 9], (
        "any decision ends the wait"
    )


def test_a_remembered_state_comes_back():
    remembers = {2: frozenset({(0, 0)}), 6: frozenset()}
    decisions = {
        2: [Mutate(0, {"rate": 5.0}, "")],
        4: [Replace(1, 0, "weights", {"rate": 0.0}, "", donor_generation=0), goes_on(0)],
        6: [Replace(0, 0, "both", {"rate": 0.0}, "", donor_generation=0)],
    }
    script = Script([1.0, 7.0], decisions, remembers)
    result = run(Walker, script, steps=8, num_members=2)
    assert weights(result) == [2, 2]
    assert result.lineage.present(1).parent == (0, 0)


def test_a_copy_of_the_donor_is_of_its_present_state_though_its_generation_is_remembered():
    remembers = {2: frozenset({(0, 0)})}
    now = Replace(1, 0, "weights", {"rate": 0.0}, "")
    then = Replace(2, 0, "weights", {"rate": 0.0}, "", donor_generation=0)
    decisions = {2: [goes_on(0)], 4: [now, then]}
    result = run(Walker, Script([1.0, 7.0, 7.0], decisions, remembers), steps=6, num_members=3)
    assert weights(result) == [6, 4, 2]
    remembers = {2: frozenset({(0, 0)})}
    decisions = {2: [Replace(1, 0, "weights", {"rate": 0.0}, "", donor_generation=0)]}
    assert weights(run(Walker, Script([1.0, 7.0], decisions, remembers), steps=4, num_members=2)) == [4, 2]


def test_members_take_turns():
    script = Script([1.0] * 3)
    result = run(Walker, script, steps=4, num_members=3, slots=1, slot_steps=2)
    assert [e.member for e in result.history] == [0, 0, 1, 1, 2, 2, 2, 0, 0, 1, 1, 2]
    assert all(o.steps == 4 for o in result.members)


@pytest.mark.parametrize("slots", [0, 2])
def test_members_are_evaluated_on_purpose_before_a_comparison_without_training(tmp_path, slots):
    path = tmp_path / "journal.jsonl"
    turns = {"slots": slots, "slot_steps": 5}
    result = run(Walker, pbt(episodes=3), steps=10, num_members=4, window=3, **turns, journal=path)
    events = read_journal(path)
    rounds = [e for e in events if e["event"] == "round"]
    compared = [e for e in rounds if any(d["decision"] == "replace" for d in e["decisions"])]
    assert [e["frames"] for e in compared] == [5, 10]
    for event in compared:
        reported = event["report"]["members"]
        assert {m["frames"] for m in reported} == {event["frames"]}, "nobody trained meanwhile"
        assert all(len(set(m["objectives"])) == 1 and len(m["objectives"]) == 3 for m in reported)
    assert [m.steps for m in result.members] == [10] * 4
    assert audit_decisions(read_events(events), pbt(episodes=3)) == []


def test_a_member_that_raises_is_broken_and_the_run_goes_on(tmp_path):
    repair = {4: [Replace(0, 1, "both", {"rate": 1.0}, ""), Mutate(2, {"rate": 0.5}, "")]}
    script = Script([9.0, 1.0, 9.0], repair)
    result = run(Fragile, script, steps=6, num_members=3, journal=tmp_path / "journal.jsonl")
    assert [m.broken for m in script.reports[1].members] == [True, False, True]
    assert math.isnan(script.reports[1].members[0].objectives[0])
    assert [m.frames for m in script.reports[3].members] == [3, 3, 3]
    assert [m.episodes for m in script.reports[5].members] == [1, 5, 2], "NaN when it changed, and now"
    # New weights repair a member; new hypers alone do not: its state after the error is unknown.
    assert [o.broken for o in result.members] == [False, False, True]
    assert (weights(result)[:2], result.objectives[2]) == ([7, 7], None)
    cause = [e for e in read_journal(tmp_path / "journal.jsonl") if e["event"] == "member_broken"]
    assert [(e["member"], "diverged" in e["cause"]) for e in cause] == [(0, True), (2, True)]


def test_a_broken_member_is_replaced_and_is_never_a_donor(tmp_path):
    run(Fragile, pbt(seed=3, fraction=0.5), steps=40, num_members=4, journal=tmp_path / "j")
    healed = 0
    for event in read_journal(tmp_path / "j"):
        if event["event"] == "round":
            broken = {m["member"] for m in event["report"]["members"] if m["broken"]}
            copies = [d for d in event["decisions"] if d["decision"] == "replace"]
            assert not broken & {d["donor"] for d in copies if d["donor_generation"] is None}
            healed += len(broken & {d["member"] for d in copies})
    assert healed


@pytest.mark.parametrize("error", [FloatingPointError, SystemExit])
def test_the_first_failure_of_a_member_is_shown(error, capsys, monkeypatch):
    monkeypatch.setattr(Fragile, "error", error)
    run(Fragile, Script([9.0, 1.0, 9.0]), steps=6, num_members=3, progress=False)
    shown = capsys.readouterr().err
    place = rf"{error.__name__}: diverged \(toys.py, line \d+\)"
    assert re.search(rf"step\(\) of member 0 .*{place}", shown)
    assert re.search(rf"step\(\) of member 2 .*{place}", shown)
    assert shown.count("Traceback") == 1
    assert "workers.py" not in shown


@pytest.mark.parametrize(
    ("value", "said"),
    [("-0.5", "'-0.5'"), (None, "None"), ({"loss": 1.0}, "'loss'"), ((1.0, 2), "tuple of 2")],
)
def test_an_objective_that_is_no_number_is_named_as_what_it_is(value, said, capsys):
    class Odd(Walker):
        def evaluate(self):
            return value

    with pytest.raises(RunFailed):
        run(Odd, pbt(), steps=4, num_members=2, progress=False)
    shown = capsys.readouterr().err.splitlines()[0]
    assert re.match(rf".*evaluate\(\) of member 0 .*{said}", shown)


def test_the_place_of_a_failure_is_in_the_users_code(capsys):
    class NoIndex(Walker):
        def __init__(self):
            super().__init__(0)

    with pytest.raises(RunFailed):
        run(NoIndex, pbt(), steps=4, num_members=2, progress=False)
    shown = capsys.readouterr().err.splitlines()[0]
    assert re.search("member 0 .*TypeError", shown)
    assert "workers.py" not in shown


@pytest.mark.parametrize("value", ["0.5", None, math.nan])
def test_an_explore_function_that_returns_no_number_is_named_as_the_argument(value):
    with pytest.raises(ConfigError, match=r"^explore=<lambda> returned rate=.*: give a number"):
        run(
            Walker, {"rate": (0.1, 1.0)}, steps=40, num_members=4, period=2, explore=lambda _: {"rate": value}
        )


class Locked(Walker):
    def state(self):
        return threading.Lock()


@pytest.mark.parametrize("folder", [None, "locked"])
def test_a_state_that_cannot_be_pickled_ends_the_run(folder, tmp_path):
    with pytest.raises(ConfigError, match=r"state\(\) of member 0 .*lock"):
        run(Locked, pbt(), steps=40, num_members=4, folder=folder and tmp_path / folder)


@pytest.mark.parametrize(
    ("members", "error", "said"),
    [
        ([Walker(0)] * 2, ConfigError, "one object"),
        (lambda _: ONE, ConfigError, "0 and 1 are"),
        (type("Async", (Walker,), {"step": Coroutine().step}), RunFailed, "never run"),
    ],
)
def test_members_that_cannot_be_trained(members, error, said):
    with pytest.raises(error, match=said):
        run(members, {"rate": (0.1, 1.0)}, steps=4, num_members=2)


def test_a_run_of_broken_members_only_fails_with_the_traceback():
    with pytest.raises(RunFailed, match="diverged"):
        run(Fragile, Script([9.0, 9.0]), steps=5, num_members=2)
    restart = {n: [Restart(0, {"rate": 0.0}, "")] for n in range(1, 7)}
    result = run(Fragile, Script([0.0, 0.0], restart), steps=7, num_members=2)
    assert [o.broken for o in result.members] == [True, False]  # its last index was 7
    copy = {2: [Replace(1, 0, "weights", {"rate": 0.0}, "")]}
    result = run(Fragile, Script([9.0, 0.0, 0.0], copy), steps=3, num_members=3)
    assert [o.broken for o in result.members] == [True, True, False], "a copy of a broken member is broken"


def test_a_nan_objective_is_never_the_best():
    class Odd(Walker):
        def evaluate(self):
            return math.nan if self.weight < 1 else math.inf if self.weight > 2 else 1.0

    result = run(Odd, Script([0.0, 0.0, 0.0]), steps=1, num_members=3)
    assert result.best == 1


def test_results_do_not_depend_on_the_workers(tmp_path):
    def train(workers):
        path = tmp_path / f"{workers}.jsonl"
        result = run(Fragile, pbt(7), steps=30, num_members=5, workers=workers, journal=path)
        return result, read_journal(path)

    (here, record), (there, theirs) = train(0), train(2)
    assert here.members == there.members
    assert here.history == there.history
    assert here.best_state == there.best_state
    one, other = ([without_time(e) for e in r if e["event"] != "member_broken"] for r in (record, theirs))
    assert one == other
    assert any(d["decision"] == "replace" for e in record if e["event"] == "round" for d in e["decisions"])


def without_time(event):
    return {k: v for k, v in event.items() if k not in ("time", "git")}


def test_a_worker_that_dies_ends_the_run():
    with pytest.raises(RunFailed, match=r"worker \d .*\b3\b"):
        run(Deadly, Script([1.0, 1.0]), steps=5, num_members=2, workers=2)


def script_of(tmp_path, text):
    """Run a script in a process of its own."""
    names = "from tests.helpers.toys import Walker, Script\nfrom pbt_rl.tune import run\n"
    (tmp_path / "script.py").write_text(names + text)
    options = {"cwd": tmp_path, "env": os.environ | {"PYTHONPATH": str(ROOT)}, "timeout": 60}
    options |= {"check": False, "capture_output": True, "text": True}
    return subprocess.run([sys.executable, "script.py"], **options)  # noqa: PLW1510


def test_a_script_without_a_guard_is_told_of_it(tmp_path):
    done = script_of(tmp_path, "run(Walker, {'rate': (0.1, 1.0)}, steps=2, num_members=2, workers=2)\n")
    assert done.returncode == 1
    assert '`if __name__ == "__main__":`' in done.stderr


def test_a_factory_that_workers_cannot_import_is_told_of(tmp_path):
    call = "run(Mine, Script([1.0, 2.0]), steps=3, num_members=2, workers=2)"
    done = script_of(
        tmp_path, f"if __name__ == '__main__':\n    class Mine(Walker):\n        pass\n    {call}\n"
    )
    assert done.returncode == 1
    assert "factory" in done.stderr.splitlines()[-1]


def test_a_factory_of_a_script_is_found_in_the_workers(tmp_path):
    mine = "class Mine(Walker):\n    pass\n"
    call = "run(Mine, Script([1.0, 2.0]), steps=3, num_members=2, workers=2)"
    done = script_of(tmp_path, f"{mine}if __name__ == '__main__':\n    print({call}.best)\n")
    assert done.stdout.strip() == "1", done.stderr


def test_the_journal_replays_and_holds_the_lineage(tmp_path):
    path = tmp_path / "runs" / "x" / "journal.jsonl"
    result = run(Walker, pbt(5), steps=60, num_members=6, journal=path, seed=5)
    events = read_journal(path)
    assert audit_decisions(read_events(events), pbt(5)) == []
    assert audit_decisions(read_events(events), pbt(6))
    lineage = Lineage.from_events(read_events(events))
    assert lineage.nodes == result.lineage.nodes
    assert lineage.objectives == pytest.approx(result.lineage.objectives)
    assert events[0]["seed"] == 5
    assert events[-1]["event"] == "end"
    assert json.loads(json.dumps(events[0]["config"]))["num_members"] == 6


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(1, 7), st.integers(1, 4), st.integers(1, 3))
def test_equal_seeds_give_equal_runs(seed, count, period, every, window):
    def once():
        options = {"num_members": count, "evaluate_every": every, "window": window}
        return run(Walker, pbt(seed, period=period), steps=20, **options)

    first, second = once(), once()
    assert first.members == second.members
    assert first.history == second.history
    assert all(o.steps == 20 and o.objective is not None for o in first.members)


def test_hypertrick_trains_phase_by_phase_with_few_slots(tmp_path):
    controller = HyperTrick(TABLE, 0, phase_frames=5, phases=4, eviction_rate=0.25)
    result = run(
        Walker, controller, steps=20, num_members=12, slots=6, evaluate_every=5, folder=tmp_path / "x"
    )
    steps = sorted(o.steps for o in result.members)
    assert set(steps) <= {5, 10, 15, 20}
    assert steps[0] < 20 == steps[-1]
    assert all(o.stopped for o in result.members)
    end = json.loads((tmp_path / "x" / "journal.jsonl").read_text().splitlines()[-1])
    assert (end["event"], end["frames"]) == ("end", 20), "the clock does not fall to 0 when all have stopped"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps=0"),
        ({"steps": 1.5}, "steps=1.5"),
        ({"seed": "x"}, "seed='x'"),
        ({"window": 0}, "window"),
        ({"slots": 9}, "slots=9"),
    ],
)
def test_misuse(options, message):
    with pytest.raises(ConfigError, match=message):
        run(Walker, Script([1.0]), **{"steps": 1, "num_members": 1, **options})


def test_a_factory_that_cannot_be_pickled_is_refused():
    class Local(Walker):
        pass

    with pytest.raises(ConfigError, match="Local"):
        run(Local, Script([1.0, 1.0]), steps=1, num_members=2, workers=2)
