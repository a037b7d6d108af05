"""Comparisons by the time of training, which is a fact of the report."""

import re
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import pytest

from pbt_rl.controllers.decisions import PopulationReport
from pbt_rl.controllers.events import Comparison
from pbt_rl.controllers.ready import Timed
from pbt_rl.controllers.state import restore_state, save_state
from pbt_rl.record.journal import journal_events
from pbt_rl.report.audit import audit
from tests.helpers.populations import member, report


def population(seconds, *episodes):
    members = [member(i, frames=round(100 * seconds), episodes=n) for i, n in enumerate(episodes)]
    return replace(report(round(100 * seconds), members), seconds=seconds)


def held_at(rule, clock, *episodes):
    return [s for s in clock if rule.next_comparison(population(s, *(episodes or (9, 9)))) is not None]


def test_when_comparisons_are_held():
    clock = [0.7 * i for i in range(60)]  # to 41.3 s
    held = held_at(Timed(4, 10, 1), clock)
    assert len(held) == 8  # due at 10, 14, ... 38: none is lost to the reports
    assert held[0] == pytest.approx(10.5)
    assert held_at(Timed(10, 0, 1), [9, 19, 28, 29, 38, 39]) == [19, 29, 39]
    assert Timed(1, 0, 1).next_comparison(PopulationReport(10**9, (member(0), member(1)))) is None


def test_few_ready_members_are_waited_for_as_long_as_a_period():
    rule = Timed(10, 0, 5)
    assert held_at(rule, [10, 15, 19.9], 9, 9, 0, 0, 0) == []
    late = rule.next_comparison(population(20, 9, 9, 0, 0, 0))
    assert [m.member for m in late.members] == [0, 1]
    assert re.search(r"\b10 s\b.*: 2, 3, 4 \(.*\b5\b", late.note)


def test_what_was_not_held_leaves_no_state_and_the_state_is_restored():
    rule = Timed(10, 20, 5)
    before = save_state(rule)
    rule.next_comparison(population(25, 9, 0, 0))
    assert save_state(rule) == before
    rule.next_comparison(population(24, 9, 9, 9))
    other = Timed(10, 20, 5)
    restore_state(other, save_state(rule))
    assert other.seconds_left(population(26, 9, 9)) == pytest.approx(4)  # due at 30


def test_frames_left_are_those_of_the_speed_until_now():
    rule = Timed(10, 0, 1)
    assert rule.frames_left(population(4, 9, 9)) == 600
    assert rule.frames_left(population(0.0, 9, 9)) == 1
    assert rule.frames_left(population(11, 9, 9)) == 0


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A serial run that is compared every tenth of a second."""
    folder = tmp_path_factory.mktemp("runs")
    options = (
        "--env toy/identity --mode serial --num-policies 4 --control 1 --learner.batch 128 --train-for-seconds 1.5 "
        "--pbt.ready timed --pbt.period-seconds 0.1 --pbt.min-episodes 1 --pbt.exploit truncation --final-episodes 0 "
        "--figures no"
    )
    command = [sys.executable, "-m", "pbt_rl", "train", *options.split(), "--out", folder, "--name", "own"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return folder / "own"


def test_the_journal_keeps_the_times_and_the_audit_decides_by_them(run, capsys):
    times = [e.report.seconds for e in journal_events(run) if isinstance(e, Comparison)]
    assert len(times) >= 2  # where the machine is busy; else more than ten
    assert all(b - a >= 0.05 for a, b in pairwise(times))
    assert audit(run) == 0
    assert "agree" in capsys.readouterr().out
