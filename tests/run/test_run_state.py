"""A run is saved after any report and resumed in fresh objects: all that follows is as if nothing had happened."""

import copy
import json
from dataclasses import replace
from random import Random

import pytest

from pbt_rl.config import MatchupConfig
from pbt_rl.controllers.options import ScheduleConfig, SearchConfig
from pbt_rl.controllers.state import restore_state, save_state
from pbt_rl.errors import ConfigError
from pbt_rl.registry import CONTROLLERS
from pbt_rl.report.audit import audit
from pbt_rl.run.resuming import controller_state, restore_run_state
from tests.helpers.journals import write
from tests.helpers.resumable import TIME_SLICES, Run, small_config


def config(controller="pbt", frames=1_500, search=None, matchup=None, schedule=None, run=TIME_SLICES, **pbt):
    groups = {
        "search": SearchConfig(**{"phases": 4, "phase_frames": 300} | (search or {})),
        "matchup": MatchupConfig(**matchup or {}),
        "schedule": schedule or ScheduleConfig(),
    }
    return small_config(controller, frames, run | groups, **pbt)


ALL_AT_ONCE = {"num_policies": 6, "devices": "cpu,cpu"}
GAMES = {"num_policies": 6, "slots": 4, "slot_frames": 150, "devices": "cpu", "actors": 1}
CASES = {
    "synchronous": (config(), {}),
    "asynchronous": (config(ready="asynchronous", exploit="binary-tournament", explore="factors"), {}),
    "partially-synchronous": (config(ready="partially-synchronous", exploit="truncation"), {}),
    "backtrack": (
        config(exploit="backtrack", exploit_option=("rules.0.pool=0.5", "rules.0.quantile=0.3")),
        {},
    ),
    "sigma-gap": (config(exploit="sigma-gap", explore="resample"), {}),
    "mf-pbt": (config("mf-pbt", frequencies=(1, 3)), {}),
    "pairwise": (config(exploit="truncation", explore="pairwise"), {}),
    "evaluated": (config(evaluate_episodes=6, exploit="truncation", run=ALL_AT_ONCE), {}),
    "evaluated-tasks": (config(evaluate_episodes=3, run=ALL_AT_ONCE), {"tasks": ("a", "b")}),
    "tasks": (config(), {"tasks": ("a", "b", "c")}),
    "elo": (config(matchup={"objective": "elo"}, replace_gap=0.0, run=GAMES), {"agents": 2}),
    "win-rate": (
        config(matchup={"objective": "win-rate", "scheme": "prioritised"}, run=GAMES),
        {"agents": 2},
    ),
    "hypertrick": (config("hypertrick"), {}),
    "successive-halving": (config("successive-halving"), {}),
    "static": (config("successive-halving", search={"allocation": "static"}), {}),
    "hyperband": (config("hyperband", search={"resource": 9, "phase_frames": 200}), {}),
    "asha": (config("asha", search={"resource": 9, "phase_frames": 100}), {}),
    "episodes": (config("hypertrick", search={"phase_episodes": 6}), {}),
    "random": (config("random"), {}),
    "grid": (config("random", search={"sampling": "grid"}), {}),
    "schedule": (None, {}),
}
REPORTS = 400


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """The folder of a recorded run, for the schedule."""
    run = Run(config())
    while not run.over:
        run.report()
    return write(tmp_path_factory.mktemp("recorded"), run.events())


@pytest.fixture
def case(request, recorded):
    options, around = CASES[request.param]
    return options or config("schedule", schedule=ScheduleConfig(run=str(recorded))), around


def every_case(function):
    return pytest.mark.parametrize("case", CASES, indirect=True)(function)


def without_time(state):
    return {name: part for name, part in state.items() if name != "spent"}


def test_every_controller_is_in_a_case():
    controllers = {options.controller for options, _ in CASES.values() if options}
    assert {"schedule"} | controllers == CONTROLLERS.keys()


@every_case
def test_a_run_that_is_resumed_after_every_report_is_as_if_nothing_had_happened(case):
    options, around = case
    run = Run(options, **around)
    again = Run(options, **around)
    assert run.take_log() == again.take_log()
    decided = 0
    for number in range(REPORTS):
        again = again.resumed()
        assert again.same_plan
        again.take_log()
        run.report()
        again.report()
        log = run.take_log()
        decided += "reason" in log
        assert again.take_log() == log, f"report {number}"
        assert without_time(again.state()) == without_time(run.state())
        if run.over:
            break
    assert again.comparisons.dispatch.remembered == run.comparisons.dispatch.remembered
    assert run.over
    assert decided > 1


def finished(run):
    for _ in range(REPORTS):
        if run.over:
            return True
        run.report()
    return False


@pytest.mark.parametrize(
    ("case", "machine"),
    [
        ("backtrack", {"devices": "cpu"}),
        ("synchronous", {"devices": "cpu,cpu,cpu"}),
        ("hypertrick", {"devices": "cpu", "slots": 3}),
        ("hyperband", {"slots": 8}),
        ("win-rate", {"slots": 2}),
    ],
    indirect=["case"],
)
def test_on_another_plan_the_least_trained_hold_the_slots(case, machine):
    options, around = case
    run = Run(options, **around)
    for _ in range(7):
        run.report()
    again = run.resumed(config=replace(options, **machine))
    assert not again.same_plan
    after = again.population
    assert save_state(after) == save_state(run.population)
    for number, pack in enumerate(again.comparisons.slots.packs):
        held = [m for m in again.comparisons.slots.members_of(number) if m is not None]
        able = [m for m in map(after.members.__getitem__, pack.members) if not m.stopped]
        able = [m for m in able if m.until_frames is None or m.frames < m.until_frames]
        least = sorted(able, key=lambda m: (m.frames, m.id))[: pack.slots]
        assert sorted(held) == sorted(m.id for m in least)
        assert {m for m in pack.members if after.members[m].parked} == set(pack.members) - set(held)
    assert finished(again)


def test_more_actors_change_the_matchups_alone_and_those_that_were_due_are_made():
    options, around = CASES["win-rate"]
    run = Run(options, **around)
    for _ in range(5):
        run.report()
    assert run.resumed().matchups == [json.loads(json.dumps(p)) for p in run.comparisons.matchups._present]
    again = run.resumed(config=replace(options, actors=2))
    assert again.same_plan
    assert len(again.matchups[0]) == 2 * len(run.matchups[0])
    run.comparisons.matchups.due = True
    again = run.resumed()
    again.report()
    assert again.comparisons.matchups._present != run.comparisons.matchups._present


@pytest.mark.parametrize("first", [[0], [2, 2]])
def test_matchups_that_do_not_give_every_row_one_agent_are_refused(first):
    options, around = CASES["win-rate"]
    run = Run(options, **around)
    state = run.state()
    state["matchups"]["_present"][0][0][0] = first
    with pytest.raises(ValueError, match="matchups"):
        run.resumed(state)


def test_changed_options_hold_from_the_resume_on():
    run = Run(config())
    for _ in range(6):
        run.report()
    pbt = replace(run.config.pbt, period_frames=100, min_episodes=1, explore="factors")
    sooner = replace(run.config, pbt=pbt)
    same, again = run.resumed(), run.resumed(config=sooner)
    assert finished(same)
    assert finished(again)
    rounds = [sum(e["event"] == "round" for e in r.fleet.journal) for r in (same, again)]
    assert rounds[1] > rounds[0]


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"ready": "asynchronous"}, "controller.ready: .*Synchronous, .*Asynchronous: use"),
        ({"exploit": "backtrack"}, None),
        ({"explore": "pb2"}, None),
        ({"enabled": False}, "PbtController, .*StaticController: use"),
    ],
)
def test_a_rule_may_be_exchanged_only_if_it_has_noted_nothing(changes, match):
    run = Run(config())
    for _ in range(6):
        run.report()
    other = replace(run.config, pbt=replace(run.config.pbt, **changes))
    if match is None:
        assert run.resumed(config=other).take_log()
        return
    with pytest.raises(ValueError, match=match):
        run.resumed(config=other)


def test_data_of_other_values_or_of_another_number_of_members_are_refused():
    run = Run(config(explore="pb2"))
    other = replace(run.config, pbt=replace(run.config.pbt, tune=("gamma",)))
    with pytest.raises(ValueError, match=r"PB2 .*--pbt.tune"):
        run.resumed(config=other)
    state = Run(config()).state()
    with pytest.raises(ValueError, match=r"population.members: 8 .* 6"):
        Run(config(run={**TIME_SLICES, "num_policies": 6}), state=state)


def test_time_goes_on_where_it_stopped():
    run = Run(config())
    for _ in range(6):
        run.report()
    assert (run.throughput.seconds, run.throughput.training_seconds) == (12.0, 11.0)
    again = run.resumed()
    again.now += 5.0
    assert (again.throughput.seconds, again.throughput.training_seconds) == (17.0, 11.0)
    again.report()
    assert (again.throughput.seconds, again.throughput.training_seconds) == (19.0, 12.0)
    assert 0 < again.throughput.rate() < 700


WRONG = (None, "x", "nan", -1, 1.5, 10**400, True, [], {}, [[]], {"class": "x"}, [1, 2], 10**9)


def places(state, at=()):
    """Paths to everything in a state."""
    yield at
    inner = state.items() if isinstance(state, dict) else enumerate(state) if isinstance(state, list) else ()
    for key, value in inner:
        yield from places(value, (*at, key))


def mangled(text, paths, rng):
    """The state with one change at a random place, of any depth alike."""
    state = owner = json.loads(text)
    depth = rng.choice([len(path) for path in paths[:: len(paths) // 50]])
    path = rng.choice([path for path in paths if len(path) == depth])
    for key in path[:-1]:
        owner = owner[key]
    way = rng.choice(("replace", "replace", "drop", "double"))
    if way == "replace":
        owner[path[-1]] = rng.choice(WRONG)
    elif way == "drop":
        del owner[path[-1]]
    elif isinstance(owner, list):
        owner.append(owner[path[-1]])
    else:
        owner[f"{path[-1]}_"] = owner[path[-1]]
    return state


@pytest.mark.parametrize("case", ["backtrack", "elo", "hyperband"], indirect=True)
def test_a_mangled_state_is_one_clear_error(case):
    run = Run(case[0], **case[1])
    for _ in range(9):
        run.report()
    state, rng, refused = run.state(), Random(0), []
    text, paths = json.dumps(state), sorted(places(state), key=len)[1:]
    other = Run(case[0], **case[1])
    parts = (other.population, other.comparisons, other.throughput)
    for _ in range(100):
        try:
            broken = mangled(text, paths, rng)
            restore_state(other.controller, controller_state(broken), "controller")
            restore_run_state(broken, *parts)
        except ValueError as error:
            refused.append(str(error))
    assert len(refused) > 50
    assert all(text and "\n" not in text for text in refused)
    restore_run_state(state, *parts)


@pytest.mark.parametrize("state", [None, {}, {"controller": {}}])
def test_what_is_no_state_is_refused(state):
    with pytest.raises(ValueError, match="not a valid _RunState"):
        controller_state(state)


def resumed_journal(changed, **pbt):
    """Events of a run that was stopped after six reports, resumed with changed options, and ended."""
    run = Run(config(exploit="backtrack", frames=3_000))
    for _ in range(6):
        run.report()
    again = run.resumed(config=replace(run.config, pbt=replace(run.config.pbt, **pbt)))
    assert finished(again)
    after, end = again.events(), {"event": "end", "ended": "frames"}
    resume = {"event": "resume", "config": after[0]["config"], "changed": changed}
    events = [*run.events(), end, resume, *after[2:], end]
    return [{"time": float(i), "frames": 0} | e for i, e in enumerate(events)]


CHANGED = {"pbt.period-frames": [300, 150]}
EASIER = {"period_frames": 150, "exploit_option": ("rules.0.quantile=0.2", "rules.0.pool=0.5")}


@pytest.mark.parametrize("again", [{}, EASIER])
def test_the_audit_of_a_resumed_run_agrees(capsys, tmp_path, again):
    events = resumed_journal(CHANGED if again else {}, **again)
    assert sum(e["event"] == "round" for e in events) > 5
    assert audit(write(tmp_path, events)) == 0


def test_the_audit_takes_the_options_from_the_event(tmp_path):
    events = resumed_journal(CHANGED, **EASIER)
    resume = next(e for e in events if e["event"] == "resume")
    assert audit(write(tmp_path, [{**e, "changed": {}} if e is resume else e for e in events])) == 1
    asynchronous = copy.deepcopy(resume)
    asynchronous["config"]["pbt"]["ready"] = "asynchronous"
    write(tmp_path, [asynchronous if e is resume else e for e in events])
    with pytest.raises(ConfigError, match="resumed: controller"):
        audit(tmp_path)
