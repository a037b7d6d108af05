"""`tune.run` as a user begins: a space, nothing else; progress, rows, a folder that goes on and can be audited."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import os
import pickle
import re
from itertools import pairwise

import numpy as np
import pytest

import pbt_rl
from pbt_rl import tune
from pbt_rl.controllers import (
    HyperSpec,
    PbtController,
    PerturbFactors,
    StaticController,
    Synchronous,
    Truncation,
)
from pbt_rl.controllers.exploit import Gap
from pbt_rl.errors import ConfigError, RunFailed
from pbt_rl.record.journal import read_journal
from pbt_rl.tune import audit, run
from pbt_rl.tune.result import MemberProgress, Progress, Screen
from pbt_rl.tune.space import decode, table_of
from tests.helpers.toys import Walker

SPACE = {"rate": (0.01, 10.0), "depth": (1, 4), "kind": ["slow", "fast"]}


class Chosen(Walker):
    """Its rate doubles with the kind `fast`."""

    def step(self, hypers):
        assert isinstance(hypers["depth"], int)
        super().step({"rate": hypers["rate"] * {"slow": 1, "fast": 2}[hypers["kind"]] * hypers["depth"]})


def test_a_space_is_enough():
    result = run(Chosen, SPACE)
    assert len(result.members) == 8
    assert [m.steps for m in result.members] == [100] * 8
    assert result.ended == "steps"
    assert sum(m.generation for m in result.members) > 0, "members were replaced"
    assert result.best_hypers == result.members[result.best].hypers
    assert result.best_hypers["kind"] in SPACE["kind"]
    assert result.best_hypers["kind"] == "fast", "the better choice has spread"


@pytest.mark.parametrize(
    ("given", "scale", "middle"),
    [
        ((1e-4, 1e-2), "log", 1e-3),
        ((0.5, 1.5), "linear", 1.0),
        ((-1.0, 1.0), "linear", 0.0),
        ((1, 4), "integer", 2.0),
        (["a", "b", "c"], "choice", 0.0),
    ],
)
def test_what_a_value_of_a_space_means(given, scale, middle):
    spec = table_of({"x": given})["x"]
    assert (spec.scale, spec.default) == (scale, pytest.approx(middle))
    assert spec.tuned
    own = HyperSpec("x", 1.0, 0.0, 2.0, "linear", tuned=False)
    assert table_of({"x": own})["x"] == own


RATE = {"rate": (0.1, 0.9)}


@pytest.mark.parametrize(
    ("space", "options", "message"),
    [
        ({}, {}, "space={}"),
        ({"x": (2.0, 1.0)}, {}, r"space\['x'\]=\(2\.0, 1\.0\)"),
        ({"x": ["only"]}, {}, r"space\['x'\]=\['only'\]"),
        ({"x": 3}, {}, r"space\['x'\]=3"),
        ({"x": (0.0, 1.0), "step": (0.0, 1.0)}, {}, r"space\['step'\]"),
        ({3: (0.0, 1.0)}, {}, "space=3 .*name"),
        ({"x": (0.0, 1.0), "x.y": (0.0, 1.0)}, {}, r"space=\['x\.y'\] .*rename 'x'"),
        ({"x": HyperSpec("x", 5.0, 0.0, 1.0, "linear", tuned=True)}, {}, r"space\['x'\]=.*default within"),
        ({"x": HyperSpec("x", 0.5, 0.1, 1.0, "loguniform", tuned=True)}, {}, r"space\['x'\]=.*scale"),
        ({"x": HyperSpec("x", 0.5, 0.0, 1.0, "linear", tuned=False)}, {}, "space=.*no value is tuned"),
        (RATE, {"slot_steps": 0}, "slot_steps=0"),
        (RATE, {"slot_steps": "5"}, "slot_steps='5'"),
        (RATE, {"on_progress": 3}, "on_progress=3"),
        (RATE, {"folder": 3}, "folder 3 .*path"),
        (PbtController, {}, "controller=<class"),
        (RATE, {"quantile": 0.9}, "quantile=0.9"),
        (RATE, {"factors": ()}, r"factors=\(\)"),
    ],
)
def test_a_space_or_a_rule_that_cannot_be_used(space, options, message):
    with pytest.raises(ConfigError, match=message):
        run(Walker, space, steps=20, **options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"period": 20}, "period=20"),
        ({"evaluate_every": 30}, "evaluate_every=30"),
        ({"num_members": 1}, "num_members=1"),
        ({"period": 10}, ""),
    ],
)
def test_members_that_are_never_compared_are_told_of(options, said, capsys):
    run(Walker, RATE, steps=20, progress=False, **options)
    assert capsys.readouterr().err.partition("because ")[2].partition(":")[0].partition(",")[0] == said


def test_arrays_are_choices():
    arrays = [np.zeros(2), np.ones(2), np.ones(2)]
    space = {**RATE, "array": arrays}
    result = run(Walker, space, steps=4, num_members=2, explore=lambda v: {**v, "array": arrays[1]})
    assert any(result.best_hypers["array"] is one for one in arrays)


def test_choices_may_be_objects_that_json_does_not_have(tmp_path):
    choices = [np.zeros(2), math.sqrt, Walker, b"x", {1, 2}, {(1, 2): 3}, 1j]
    space = {**RATE, "what": choices}
    for steps in (10, 20):
        result = run(Walker, space, steps=steps, num_members=4, folder=tmp_path, progress=False)
    assert any(result.best_hypers["what"] is one for one in choices)
    assert audit(tmp_path, space) == []


@pytest.mark.parametrize("every", [1, 5])
def test_each_step_has_the_values_of_its_member(every):
    class Greedy(Walker):
        def step(self, hypers):
            given.append((hypers["rate"], hypers["opt"]["depth"]))
            hypers["rate"] *= 0.5
            hypers["opt"].clear()
            hypers.pop("kind")

    given = []
    space = {"rate": (0.1, 0.9), "opt.depth": (1, 9), "kind": ["a", "b"]}
    run(Greedy, space, steps=5, num_members=1, evaluate_every=every, progress=False)
    assert len(given) == 5
    assert len({*given}) == 1


def test_a_range_of_texts_is_one_clear_error():
    with pytest.raises(ConfigError, match="loguniform"):
        tune.loguniform("1e-4", 1)


def test_an_explore_function_has_nested_values_as_step_has_them():
    space = {**RATE, "opt.rate": (0.1, 1.0), "opt.betas.0": (0.1, 1.0), "opt.betas.1": (1, 9)}
    seen = []

    def explore(values):
        seen.append(values["opt"])
        return {**values, "opt": {"rate": 0.5, "betas": (0.25, 3)}}

    result = run(Walker, space, steps=20, num_members=4, period=2, explore=explore, progress=False)
    assert {"rate": 0.5, "betas": (0.25, 3)} in [member.hypers["opt"] for member in result.members]
    assert all(isinstance(opt["betas"], tuple) for opt in seen)
    with pytest.raises(ConfigError, match=r"^explore=<lambda> returned .*: opt.betas.1 is missing"):
        run(
            Walker,
            space,
            steps=20,
            num_members=4,
            period=2,
            explore=lambda v: {**v, "opt": {"rate": 0.5, "betas": (0.1,)}},
        )


def test_names_with_numbers_that_are_no_places_stay_names():
    table = table_of({"x.0": (0.0, 1.0), "x.5": (0.0, 1.0)})
    assert decode(table, {"x.0": 0.25, "x.5": 0.5}) == {"x": {"0": 0.25, "5": 0.5}}


def test_an_audit_with_the_space_of_another_run_is_one_clear_error(tmp_path):
    run(Walker, RATE, steps=4, num_members=2, folder=tmp_path / "x", progress=False)
    with pytest.raises(ConfigError, match=r"controller=.* the values rate"):
        audit(tmp_path / "x", {"r": (0.1, 0.9)})


def test_rows_hold_the_values_of_their_time(tmp_path):
    result = run(Chosen, SPACE, steps=20, num_members=4, evaluate_every=5)
    rows = result.rows()
    assert len(rows) >= 16, "a member that was changed at the end is evaluated once more"
    for row in rows:
        node = result.lineage[row["member"], row["generation"]]
        assert row["kind"] == SPACE["kind"][int(node.values["kind"])]
        assert row["rate"] == node.values["rate"]
    result.to_csv(tmp_path / "rows.csv")
    with (tmp_path / "rows.csv").open() as file:
        read = list(csv.DictReader(file))
    assert [r["kind"] for r in read] == [r["kind"] for r in rows]
    assert [float(r["objective"]) for r in read] == [r["objective"] for r in rows]
    assert json.loads(json.dumps(result.to_dict()))["rows"] == rows


def test_a_callback_sees_every_round_and_may_end_the_run():
    seen = []

    def on_progress(now):
        seen.append((now.steps, now.best.objective))
        return pbt_rl.Stop("enough") if now.steps == 3 else None

    result = run(Chosen, SPACE, steps=10, num_members=3, on_progress=on_progress)
    assert [steps for steps, _ in seen] == [1, 2, 3]
    assert result.ended == "enough"
    assert [m.steps for m in result.members] == [3, 3, 3]
    assert seen[-1][1] == max(result.objectives)
    with pytest.raises(TypeError, match=r"pbt_rl\.Stop"):
        run(Chosen, SPACE, steps=10, on_progress=lambda _: True)


def test_the_screen_shows_a_line_when_it_is_time(capsys):
    first = MemberProgress(0, 0, 5, 1.5, {"rate": 0.1234567, "kind": "slow"})
    members, screen = [first, MemberProgress(1, 0, 5, None, {})], Screen()
    screen.show(Progress(5, 10, 2, members))
    assert capsys.readouterr().err == ""
    screen._next = 0
    screen.show(Progress(6, 10, 2, members))
    line = capsys.readouterr().err
    assert re.match(r"step 6 .*\b10 \| best 1\.5 \(member 0: rate 0\.123, kind slow\) \| .*2 \| ", line)


TABLE = {"rate": HyperSpec("rate", 0.1, 0.01, 10.0, "log", tuned=True)}


def outcomes(result):
    return [(m.values, m.objective, m.steps, m.generation) for m in result.members]


def test_a_folder_goes_on_as_if_nothing_had_happened(tmp_path):
    options = {"num_members": 4, "steps": 40, "seed": 3}
    whole = run(Chosen, SPACE, **options, folder=tmp_path / "whole")

    def stop(now):
        return pbt_rl.Stop("cut off") if now.steps == 17 else None

    cut = run(Chosen, SPACE, **options, folder=tmp_path / "cut", on_progress=stop)
    assert [m.steps for m in cut.members] == [17] * 4
    went_on = run(Chosen, SPACE, **options, folder=tmp_path / "cut")
    assert outcomes(went_on) == outcomes(whole)
    assert went_on.rows() == whole.rows()
    ends = [e for e in read_journal(tmp_path / "cut" / "journal.jsonl") if e["event"] == "end"]
    assert [e["ended"] for e in ends] == ["steps"], "the end where it was cut off is cut from the record"
    assert audit(tmp_path / "cut", SPACE) == []
    again = run(Chosen, SPACE, **options, folder=tmp_path / "cut")
    assert outcomes(again) == outcomes(whole), "nothing is left to do"
    longer = run(Chosen, SPACE, **options | {"steps": 50}, folder=tmp_path / "cut")
    assert [m.steps for m in longer.members] == [50] * 4
    assert audit(tmp_path / "cut", SPACE) == []


def test_a_run_with_more_steps_keeps_its_periods(tmp_path):
    """They follow from the steps that it was begun with, however often it goes on."""
    rounds = {}
    for name, lengths in (("once", (40, 120)), ("twice", (40, 80, 120))):
        for steps in lengths:
            run(Chosen, SPACE, num_members=4, seed=3, steps=steps, folder=tmp_path / name)
        events = read_journal(tmp_path / name / "journal.jsonl")
        rounds[name] = [e["frames"] for e in events if e["event"] == "round"]
        assert audit(tmp_path / name, SPACE) == []
    assert rounds["twice"] == rounds["once"]
    assert {b - a for a, b in pairwise(rounds["once"])} == {4}


@pytest.mark.parametrize(
    ("before", "now", "named"),
    [
        ({}, {"controller": {**SPACE, "kind": ["fast", "slow"]}}, "kind"),
        ({}, {"controller": {**SPACE, "kind": ["slow", "other"]}}, "kind"),
        ({}, {"controller": {**SPACE, "rate": (0.01, 10.000001)}}, "rate"),
        ({"explore": dict}, {"explore": lambda values: values}, "explore"),
        ({}, {"steps": 9}, "steps=9 cannot be used: .* step 10"),
        ({}, {"seed": 2}, "seed is 2"),
    ],
)
def test_a_changed_setting_of_a_saved_run_is_refused(before, now, named, tmp_path):
    options = {"num_members": 3, "steps": 10, "folder": tmp_path / "x", "controller": SPACE}
    whole = run(Chosen, **options | before)
    journal = (tmp_path / "x" / "journal.jsonl").read_bytes()
    with pytest.raises(ConfigError, match=named):
        run(Chosen, **options | before | now)
    assert (tmp_path / "x" / "journal.jsonl").read_bytes() == journal
    assert outcomes(run(Chosen, **options | before)) == outcomes(whole)


def test_a_changed_controller_of_a_saved_run_is_refused(tmp_path):
    def controller(**changes):
        settings = {
            "ready": Synchronous(2, 0, 1),
            "exploit": Truncation(0.25, Gap(0.0, 0.0), others_mutate=False),
        } | changes
        return PbtController(TABLE, 0, explore=PerturbFactors(TABLE, (1.2, 0.8)), **settings)

    options = {"num_members": 4, "steps": 10, "folder": tmp_path / "x"}
    run(Walker, controller(), **options)
    for changes in (
        {"ready": Synchronous(3, 0, 1)},
        {"exploit": Truncation(0.5, Gap(0.0, 0.0), others_mutate=False)},
    ):
        with pytest.raises(ConfigError, match="settings is"):
            run(Walker, controller(**changes), **options)
    run(Walker, controller(), **options | {"steps": 12})


@dataclasses.dataclass
class Weighted(StaticController):
    """Its setting is an array, which cannot be compared as a whole."""

    weights: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(3))


@pytest.mark.parametrize("controller", [lambda: Weighted(TABLE, np.arange(3)), lambda: {"rate": (0.1, 1.0)}])
def test_an_equal_call_is_accepted_whatever_the_settings_are(controller, tmp_path):
    options = {"num_members": 2, "steps": 10, "evaluate_every": 3, "folder": tmp_path / "x"}
    whole = run(Walker, controller(), **options)
    assert outcomes(run(Walker, controller(), **options)) == outcomes(whole)


def test_a_run_that_was_killed_before_its_first_save_begins_anew(tmp_path):
    options = {"num_members": 3, "steps": 20, "folder": tmp_path / "x"}
    run(Chosen, SPACE, **options)
    whole = (tmp_path / "x" / "journal.jsonl").read_bytes()
    (tmp_path / "x" / "state.pickle").unlink()
    (tmp_path / "x" / "journal.jsonl").write_bytes(whole[: len(whole) // 2])
    run(Chosen, SPACE, **options)
    assert [e["event"] for e in read_journal(tmp_path / "x" / "journal.jsonl")].count("start") == 1
    assert audit(tmp_path / "x", SPACE) == []
    (tmp_path / "x" / "journal.jsonl").write_bytes(whole[:9])
    (tmp_path / "x" / "state.pickle").unlink()
    run(Chosen, SPACE, **options)
    assert audit(tmp_path / "x", SPACE) == []


class Edited(Walker):
    def load(self, state):
        raise KeyError("position")


class Shrunk:
    """The class lost three of its methods."""

    def __init__(self, index):
        self.index = index

    def step(self, hypers):
        """Do nothing."""


class Stateless(Walker):
    def state(self):
        raise KeyError("position")


@pytest.mark.parametrize("steps", [12, 20])
@pytest.mark.parametrize("broken", [Edited, Shrunk])
def test_a_folder_is_left_as_it_is_if_its_members_cannot_be_restored(broken, steps, tmp_path):
    options = {"num_members": 3, "folder": tmp_path / "x", "progress": False}
    before = run(Walker, SPACE, steps=12, **options)
    files = {file.name: file.read_bytes() for file in (tmp_path / "x").iterdir()}
    with pytest.raises(RunFailed, match=str(tmp_path / "x")):
        run(broken, SPACE, steps=steps, **options)
    assert {file.name: file.read_bytes() for file in (tmp_path / "x").iterdir()} == files
    assert run(Walker, SPACE, steps=12, **options).objectives == before.objectives


def test_a_state_is_never_replaced_by_one_without_members(tmp_path):
    options = {"num_members": 3, "folder": tmp_path / "x", "progress": False, "steps": 12}
    before = run(Walker, SPACE, **options)
    with pytest.raises(RunFailed, match=r"KeyError.*position"):
        run(Stateless, SPACE, **options)
    assert run(Walker, SPACE, **options).objectives == before.objectives


class Interrupted(Walker):
    """Ctrl-C comes in the midst of a step."""

    at = 7

    def step(self, hypers):
        super().step(hypers)
        if len(self.taken) == self.at:
            raise KeyboardInterrupt


def test_a_run_that_is_interrupted_goes_on_from_its_last_round(tmp_path, capsys):
    options = {"num_members": 2, "steps": 12, "folder": tmp_path / "x"}
    with pytest.raises(KeyboardInterrupt):
        run(Interrupted, SPACE, **options)
    assert re.search(r"x: .*step [1-6] of 12", capsys.readouterr().err)
    result = run(Walker, SPACE, **options)
    assert result.objectives == run(Walker, SPACE, num_members=2, steps=12).objectives
    assert audit(tmp_path / "x", SPACE) == []


@pytest.mark.parametrize(
    ("name", "said"), [("num_samples", "num_members"), ("metric", "evaluate"), ("wrkers", "workers")]
)
def test_arguments_of_others_are_answered(name, said):
    with pytest.raises(ConfigError, match=f"{name} .*{said}"):
        run(Walker, SPACE, **{name: 1})


@pytest.mark.parametrize("workers", [0, 2])
def test_a_space_that_lacks_what_members_read_is_one_clear_error(workers):
    with pytest.raises(ConfigError, match=r"hypers\['rate'\].* 'rates'"):
        run(Walker, {"rates": (0.1, 1.0)}, steps=3, num_members=2, workers=workers)


def test_the_folder_and_the_journal_of_another_run_are_left_alone(tmp_path):
    record = '{"event": "start", "time": 1.0, "frames": 0, "config": {"env": "toy/identity"}}\n'
    (tmp_path / "journal.jsonl").write_text(record)
    with pytest.raises(ConfigError, match="another run"):
        run(Chosen, SPACE, steps=2, folder=tmp_path)
    assert (tmp_path / "journal.jsonl").read_text() == record
    path = tmp_path / "other" / "journal.jsonl"
    path.parent.mkdir()
    path.touch()
    run(Chosen, SPACE, steps=3, num_members=3, journal=str(path))
    first = path.read_bytes()
    with pytest.raises(ConfigError, match="give folder="):
        run(Chosen, SPACE, steps=3, num_members=3, journal=path)
    assert path.read_bytes() == first
    assert [e["event"] for e in read_journal(path)].count("start") == 1


def test_a_folder_in_use_is_left_to_the_run_that_has_it(tmp_path):
    """A notebook's cell that is run twice, a script that is started in two terminals."""
    refused = []

    def second(_now):
        with pytest.raises(ConfigError, match=rf"\b{os.getpid()}\b") as error:
            run(Chosen, SPACE, steps=2, num_members=2, folder=tmp_path)
        refused.append(error)

    run(Chosen, SPACE, steps=2, num_members=2, folder=tmp_path, on_progress=second)
    assert refused
    run(Chosen, SPACE, steps=3, num_members=2, folder=tmp_path)
    assert audit(tmp_path, SPACE) == []


def test_a_folder_that_cannot_be_used(tmp_path):
    few = {"steps": 2, "num_members": 2, "folder": tmp_path / "x"}
    run(Chosen, SPACE, **few)
    with pytest.raises(ConfigError, match=r"num_members .*3 .*2"):
        run(Chosen, SPACE, **few | {"num_members": 3})
    with pytest.raises(ConfigError, match=r"value rate .*low=1e-06, high=1.* .*low=0\.01, high=10"):
        run(Chosen, SPACE | {"rate": (1e-6, 1.0)}, **few)
    with pytest.raises(ConfigError, match="journal="):
        run(Chosen, SPACE, **few, journal=tmp_path / "j")
    for content in (b"torn", pickle.dumps({"steps": 2})):
        (tmp_path / "x" / "state.pickle").write_bytes(content)
        with pytest.raises(ConfigError, match=r"state\.pickle"):
            run(Chosen, SPACE, **few)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=str(tmp_path / "file")):
        run(Chosen, SPACE, **few | {"folder": tmp_path / "file" / "x"})
    with pytest.raises(ConfigError, match=str(tmp_path / "file")):
        audit(tmp_path / "file", SPACE)


def test_a_controller_of_ones_own_goes_on_too(tmp_path):
    table = {"rate": HyperSpec("rate", 0.1, 0.01, 10.0, "log", tuned=True)}
    first = run(Walker, StaticController(table), steps=3, num_members=2, folder=tmp_path / "x")
    more = run(Walker, StaticController(table), steps=6, num_members=2, folder=tmp_path / "x")
    straight = run(Walker, StaticController(table), steps=6, num_members=2)
    assert [m.steps for m in first.members] == [3, 3]
    assert more.objectives == straight.objectives


class Wrong(Chosen):
    """Evaluates to no number, whatever it begins with."""

    def evaluate(self):
        return {"score": 1.0}


@pytest.mark.parametrize(
    ("factory", "said"),
    [
        (Wrong, r"evaluate\(\) of member \d .*'score'"),
        (lambda _index: (yield), r"the factory of member \d .*generator.*step"),
    ],
)
def test_members_that_never_work_are_an_error_however_often_they_begin_anew(factory, said):
    with pytest.raises(RunFailed, match=said):
        run(factory, SPACE, steps=3, num_members=2)  # compared after every step


def test_the_rules_of_a_space_are_arguments(tmp_path):
    """A function has the values as `step` has them; period and share are those that were given."""
    seen = []

    def explore(values, rng):
        seen.append(values)
        return {**values, "kind": "e", "rate": 0.2 + 0.1 * rng.random()}

    space = {"rate": tune.loguniform(0.1, 0.9), "kind": list("abcde"), "depth": (1, 9)}
    given = {"period": 5, "quantile": 0.5, "factors": (2.0, 0.5)}
    given |= {"folder": tmp_path, "explore": explore, "progress": False}
    result = run(Walker, space, num_members=4, steps=20, **given)
    rounds = [e for e in read_journal(tmp_path / "journal.jsonl") if e["event"] == "round"]
    assert [e["frames"] for e in rounds][:2] == [5, 10]
    assert sum(d["decision"] == "replace" for d in rounds[0]["decisions"]) == 2, "a half copies"
    assert seen
    assert {v["kind"] for v in seen} <= set("abcde")
    assert all(isinstance(v["depth"], int) for v in seen)
    reasons = " ".join(d["reason"] for e in rounds for d in e["decisions"])
    assert re.search("kind [a-d] -> e", reasons), "a choice is shown by its meaning"
    assert len(repr(result)) < 1000
    assert result.best is not None
    assert audit(tmp_path, space, explore=explore) == []


@pytest.mark.parametrize(
    ("explore", "said"),
    [
        (lambda values: {"rate": 0.5}, "explore=.* each"),
        (lambda values: {**values, "kind": "c"}, "kind='c'"),
        (lambda values: 1 / 0, r"explore=.* ZeroDivisionError \(test_run_anything.py, line"),
    ],
)
def test_what_an_explore_function_returns_is_checked(explore, said):
    space = {"rate": (0.1, 0.9), "kind": ["a", "b"]}
    with pytest.raises(ConfigError, match=said):
        run(Walker, space, num_members=4, steps=20, explore=explore, progress=False)


def test_an_error_of_a_callback_loses_nothing(tmp_path, capsys):
    def fails(now):
        if now.steps == 5:
            raise OSError("no space for a plot")

    with pytest.raises(OSError, match="for a plot"):
        run(Walker, SPACE, num_members=2, steps=12, folder=tmp_path / "x", on_progress=fails)
    assert "step 5 of 12" in capsys.readouterr().err
