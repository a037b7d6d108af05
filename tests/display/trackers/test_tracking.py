"""Trackers: each in a thread of its own, which may block or raise; the tables of `--track csv`."""

import csv
import sys
import textwrap
import time
from dataclasses import replace

import pytest

from pbt_rl.config import Config
from pbt_rl.display.trackers.outlets import TrackedRun, Trackers, check
from pbt_rl.display.trackers.to_csv import CsvTracker
from pbt_rl.errors import ConfigError
from pbt_rl.record.folder import RunFolder
from tests.helpers.views import STATS, member, view

OWN = """
import time

class Kept:
    def __init__(self, run):
        self.file = (run.folder.path / "kept.txt").open("w")
    def show(self, view):
        print(view.seconds, file=self.file, flush=True)
    def close(self, ended):
        print(ended, file=self.file, flush=True)

class Dying(Kept):
    def __init__(self, run):
        pass
    def show(self, view):
        raise RuntimeError("no quota")

class Bare:
    where = "curves are in the sky"
    def show(self, view):
        open("bare.txt", "a").write(f"{view.seconds} ")
    def close(self, ended):
        open("bare.txt", "a").write(ended)

class Unmade(Kept):
    def __init__(self, run):
        raise RuntimeError("wrong password")

class Exiting(Kept):
    def __init__(self, run):
        raise SystemExit("no key")

class Blocking(Dying):
    def show(self, view):
        time.sleep(1000)

class Placeless(Kept):
    where = property(lambda self: 1 / 0)

class Clearing(Dying):
    def show(self, view):
        view.members.clear()
    def close(self, ended):
        pass

class Useless:
    pass
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text(textwrap.dedent(OWN))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own", raising=False)
    return tmp_path


def run_in(folder, seconds=0.0):
    return TrackedRun("demo", RunFolder(folder), {"env": "toy/identity"}, 2, seconds)


def trackers(folder, *names):
    """The trackers, and the list of what they say on screen."""
    said = []
    return Trackers(names, run_in(folder), said.append), said


def moment(seconds, **changes):
    return view(member(0), member(1), seconds=seconds, **changes)


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_missing_package_is_named_before_anything_starts(monkeypatch):
    monkeypatch.setattr("pbt_rl.display.trackers.outlets.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"pbt-rl\[wandb\]"):
        check(Config(env="toy/identity", track=("csv", "wandb")))
    check(Config(env="toy/identity", track=("csv",)))


def test_an_own_tracker_gets_the_views_and_the_end(own):
    tracking, said = trackers(own, "own:Kept")
    for seconds in (100.0, 100.2, 102.0):  # the second one comes before the gap of half a second has passed
        tracking.update(moment(seconds))
    tracking.update(moment(102.1, replacements=4))
    tracking.update(moment(102.2, replacements=4))
    tracking.finish("frames", may_wait=True)
    assert (own / "kept.txt").read_text().split() == ["100.0", "102.0", "102.1", "102.2", "frames"]
    assert said == []


def test_a_class_without_a_constructor_is_a_tracker(own, monkeypatch):
    monkeypatch.chdir(own)
    tracking, said = trackers(own, "own:Bare")
    tracking.update(moment(1.0))
    tracking.finish("frames", may_wait=True)
    assert (own / "bare.txt").read_text() == "1.0 frames"
    assert said == ["tracker own:Bare: curves are in the sky"] * 2, "at the start and at the end"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("Unmade", "RuntimeError: wrong password"),
        ("Exiting", "SystemExit: no key"),
        ("Placeless", "ZeroDivisionError: division by zero"),
    ],
)
def test_one_that_cannot_be_made_does_not_end_the_run(own, name, why):
    tracking, said = trackers(own, f"own:{name}", "own:Kept")
    tracking.update(moment(1.0))
    tracking.finish("frames", may_wait=True)
    (line,) = said
    assert line.startswith(f"tracker own:{name} ")
    assert f"({why}; " in line
    assert why in (own / "logs" / "tracker_0.log").read_text()
    assert (own / "kept.txt").read_text().split() == ["1.0", "frames"]


def test_one_that_dies_is_said_once_and_the_others_go_on(own):
    tracking, said = trackers(own, "own:Dying", "own:Kept")
    tracking.update(moment(1.0))
    deadline = time.monotonic() + 20
    while not said and time.monotonic() < deadline:
        tracking.update(moment(1.001))
        time.sleep(0.02)
    tracking.update(moment(9.0))
    tracking.finish("frames", may_wait=True)
    (line,) = said
    assert line.startswith("tracker own:Dying ")
    assert "(RuntimeError: no quota; " in line
    assert "Traceback" in (own / "logs" / "tracker_0.log").read_text()
    assert (own / "kept.txt").read_text().split()[-2:] == ["9.0", "frames"]


def test_one_that_changes_its_view_does_not_change_those_of_others(own):
    tracking, _ = trackers(own, "own:Clearing")
    one = replace(moment(1.0), members=[member(0)])
    tracking.update(one)
    tracking.finish("frames", may_wait=True)
    assert len(one.members) == 1


def test_one_that_blocks_is_never_waited_for(own):
    tracking, said = trackers(own, "own:Blocking")
    began = time.monotonic()
    for i in range(100):
        tracking.update(moment(10.0 * i))
    assert time.monotonic() - began < 5.0
    (slow,) = said
    assert "own:Blocking " in slow
    tracking.finish("frames", may_wait=False)
    assert time.monotonic() - began < 15.0
    assert ["own:Blocking " in text for text in said] == [True] * 2


def test_one_that_is_not_in_its_module_is_an_error(own):
    with pytest.raises(ConfigError, match="'Nothing'"):
        trackers(own, "own:Kept", "own:Nothing")


# -- the tables ---------------------------------------------------------------------------------------------


def test_the_tables_hold_a_row_per_member_and_view(tmp_path):
    tracker = CsvTracker(run_in(tmp_path))
    tracker.show(view(member(0, 1.5), member(1, None, stopped=True), seconds=3.0, frames=5))
    tracker.show(view(member(0, 2.5), member(1, 7.0), seconds=4.0, frames=6))
    tracker.close("frames")
    members = rows(tmp_path / "tracking" / "members.csv")
    told = [[r[name] for name in ("seconds", "member", "status", "episodes/objective")] for r in members]
    assert told[:2] == [["3.0", "0", "", "1.5"], ["3.0", "1", "stopped", ""]]
    assert told[2:] == [["4.0", "0", "", "2.5"], ["4.0", "1", "", "7.0"]]
    assert members[0]["learning/entropy"] == "1.7"
    population = rows(tmp_path / "tracking" / "population.csv")
    assert [r["episodes/objective_best"] for r in population] == ["1.5", "7.0"]


def test_rows_of_lost_training_are_cut_off_when_a_run_goes_on(tmp_path):
    for begin, first in ((0.0, 1.0), (2.0, 3.0)):
        tracker = CsvTracker(run_in(tmp_path, begin))
        for seconds in (first, first + 1, first + 2):
            tracker.show(view(member(0), seconds=seconds))
        tracker.close("failed")
    for name in ("members", "population"):
        table = rows(tmp_path / "tracking" / f"{name}.csv")
        assert [r["seconds"] for r in table] == ["1.0", "2.0", "3.0", "4.0", "5.0"]


def test_tables_are_not_written_through_links(tmp_path):
    (tmp_path / "tracking").mkdir()
    (tmp_path / "mine.csv").write_text("seconds\n1\n")
    (tmp_path / "tracking" / "members.csv").symlink_to(tmp_path / "mine.csv")
    tracker = CsvTracker(run_in(tmp_path))
    tracker.show(view(member(0), seconds=2.0))
    tracker.close("frames")
    assert (tmp_path / "mine.csv").read_text() == "seconds\n1\n"
    assert len(rows(tmp_path / "tracking" / "members.csv")) == 1


def test_columns_that_come_later_are_empty_before(tmp_path):
    tracker = CsvTracker(run_in(tmp_path))
    tracker.show(view(member(0, stats={}), seconds=1.0))
    tracker.show(view(member(0, stats=STATS | {"stats/won": 0.5}), seconds=2.0))
    tracker.show(view(member(0, stats={}), seconds=3.0))
    tracker.close("frames")
    table = rows(tmp_path / "tracking" / "members.csv")
    assert [r["stats/won"] for r in table] == ["", "0.5", ""]
    assert [r["hypers/gamma"] for r in table] == ["0.99"] * 3
