"""The bench of replacements: what it decides, and how it divides the time."""

import importlib
import sys
from dataclasses import dataclass

import pytest

from pbt_rl.controllers.decisions import Mutate, Replace
from tests.helpers.runs import ROOT

UNTIL = {"sent": 1.0, "received": 11.0, "begun": 11.5, "written": 16.0, "proved": 17.0, "answered": 20.0}


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts" / "lab"))
    yield importlib.import_module("replacement_bench")
    del sys.modules["replacement_bench"]


@dataclass
class Seen:
    member: int
    values: dict


@dataclass
class Report:
    frames: int
    members: tuple


def test_it_decides_when_it_is_due_and_no_donor_changes(bench):
    controller = bench.Exchanges({}, seed=0, every=100)
    members = tuple(Seen(member, {"gamma": 0.9}) for member in range(4))
    assert controller.observe(Report(499, members)) == []
    kinds = set()
    for frames in range(500, 3000, 100):
        decisions = controller.observe(Report(frames, members))
        assert controller.observe(Report(frames + 99, members)) == []
        kinds |= {type(decision) for decision in decisions}
        changed = {decision.member for decision in decisions}
        donors = {decision.donor for decision in decisions if isinstance(decision, Replace)}
        assert not changed & donors
        assert len(decisions) == (1 if isinstance(decisions[0], Mutate) else 2)
    assert kinds == {Mutate, Replace}


def test_stages_are_the_times_between_and_kinds_stand_apart(bench, monkeypatch, capsys):
    slow = {name: 2 * at for name, at in UNTIL.items()}
    events = [{"donor": 1, "milliseconds_until": UNTIL}, {"donor": 2, "milliseconds_until": slow}]
    monkeypatch.setattr(bench, "applied", lambda *_: [*events, {"donor": None, "milliseconds_until": UNTIL}])
    figures = bench.replacements("atari/breakout", 1.0)
    copies, values = figures["replacements"], figures["changes of values"]
    assert copies["number"] == 2
    assert values["number"] == 1
    assert copies["received"] == {"median": 15.0, "max": 20.0}
    assert copies["new weights serve"] == {"median": 24.0, "max": 32.0}
    assert copies["in all"] == {"median": 30.0, "max": 40.0}
    assert values["answered"] == {"median": 3.0, "max": 3.0}
    assert (
        "received            15.0 median   20.0 max   the learner has done what came before"
        in capsys.readouterr().out
    )


def test_a_run_without_a_change_is_said(bench, monkeypatch, capsys):
    monkeypatch.setattr(bench, "applied", lambda *_: [])
    bench.replacements("atari/breakout", 1.0)
    assert "replacements: 0" in capsys.readouterr().out
