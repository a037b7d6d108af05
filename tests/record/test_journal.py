"""The journal: strict JSON lines that survive a killed process, from which every decision can be decided again."""

import json
import math
import os
import re
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from types import MappingProxyType

import numpy as np
import pytest

from pbt_rl.config import Config, Hypers
from pbt_rl.controllers.decide import audit_decisions
from pbt_rl.controllers.decisions import (
    Continue,
    Decision,
    MemberReport,
    PopulationReport,
    Replace,
    Restart,
    Stop,
    decision_to_dict,
)
from pbt_rl.controllers.events import End, Other, Progress, Resume, Start, decode_event
from pbt_rl.controllers.hypers import hyper_table, shaping_table
from pbt_rl.controllers.lineage import Lineage
from pbt_rl.controllers.options import PbtConfig
from pbt_rl.controllers.records import NOT_JSON, converted
from pbt_rl.errors import ConfigError
from pbt_rl.record.journal import Journal, cut_journal, git_version, read_journal, versions, was_saved
from pbt_rl.run.resolved import build_controller
from tests.helpers.journals import read_events

TABLE = hyper_table(Hypers()) | shaping_table({"life_lost": -1.0})
PBT = PbtConfig(period_frames=100, start_frames=0, min_episodes=1)


@dataclass(frozen=True)
class Spec:
    env_id: str
    shape: tuple[int, ...]


def build(pbt=PBT, seed=4):
    return build_controller(Config(env="toy/identity", pbt=pbt), TABLE, seed)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A run as the supervisor records it, random scores, NaN and infinities among them, and broken members."""
    path, rng = tmp_path_factory.mktemp("recorded") / "journal.jsonl", Random(11)
    controller = build()
    with closing(Journal(path)) as journal:
        journal.start(PBT, 4, Spec("toy/random", (4, 84, 84)))
        values = controller.initial(6)
        journal.initial(values)
        for frames in range(0, 3000, 25):
            luck = [(objectives(rng), rng.randrange(4), rng.random() < 0.1) for _ in range(6)]
            members = tuple(
                MemberReport(i, frames, scores, episodes, 0, values[i], broken=broken)
                for i, (scores, episodes, broken) in enumerate(luck)
            )
            report = PopulationReport(frames, members)
            decisions = controller.observe(report)
            if decisions:
                journal.round(report, decisions)
            for d in decisions:
                if not isinstance(d, Continue):
                    values[d.member] = d.values
        journal.write("end", 3000, ended="frames")
    return path


def objectives(rng):
    kinds = (math.nan, math.inf, -math.inf)
    return tuple(rng.choice([rng.gauss(0, 1), rng.gauss(0, 1), *kinds]) for _ in range(2))


def test_the_audit_of_a_recorded_run_agrees_bit_for_bit(recorded):
    events = read_journal(recorded)
    decisions = [d["decision"] for e in events if e["event"] == "round" for d in e["decisions"]]
    assert {*decisions} == {"continue", "mutate", "replace", "restart"}
    assert audit_decisions(read_events(events), build()) == []
    other_seed = audit_decisions(read_events(events), build(seed=5))
    assert other_seed[0].index == 1
    assert len(other_seed) > 2
    other_rule = audit_decisions(read_events(events), build(replace(PBT, replace_fraction=0.0)))
    assert any(isinstance(d, Replace) for m in other_rule for d in m.recorded)
    values = events[1]["values"][3]
    values["learning_rate"] = math.nextafter(values["learning_rate"], 1)
    assert audit_decisions(read_events(events), build())[0].index == 1, "one digit was changed"


def test_every_line_is_strict_json_with_kind_time_and_frames(recorded):
    text = recorded.read_text()
    assert '"nan"' in text, "the run was meant to hold NaN"

    def refuse(constant):
        raise AssertionError(constant)

    events = [json.loads(line, parse_constant=refuse) for line in text.splitlines()]
    assert all({"event", "time", "frames"} <= e.keys() for e in events)
    assert [e["event"] for e in events[:3]] == ["start", "initial", "round"]
    assert events[-1]["event"] == "end"
    assert events[0]["config"]["period_frames"] == 100
    assert events[0]["spec"] == {"env_id": "toy/random", "shape": [4, 84, 84]}
    assert events[0]["seed"] == 4
    rounds = [e for e in events if e["event"] == "round"]
    assert not any("values" in m for e in rounds for m in e["report"]["members"])


def test_lineages_come_from_the_journal(recorded):
    lineage = Lineage.from_events(read_events(read_journal(recorded)))
    assert lineage.members == list(range(6))
    assert max(lineage.present(i).depth for i in range(6)) > 3
    assert 1 <= len(lineage.surviving_roots()) < 6


def test_values_of_many_types(tmp_path):
    content = {
        "path": Path("a/b"),
        "numbers": (np.float32(0.5), np.int64(3), np.bool_(True), np.float64("nan"), -math.inf),
        "table": MappingProxyType({"spec": Spec("e", (1,))}),
        "nothing": None,
    }
    with closing(Journal(tmp_path / "j")) as journal:
        journal.write("many", 7, **content)
        with pytest.raises(TypeError):
            journal.write("bad", 7, what=object())
        journal.write("after", 8)
    many, after = read_journal(tmp_path / "j")
    assert many["path"] == "a/b"
    assert many["numbers"] == [0.5, 3, True, "nan", "-inf"]
    assert many["table"] == {"spec": {"env_id": "e", "shape": [1]}}
    assert many["nothing"] is None
    assert after["event"] == "after"


def test_a_path_that_is_no_text_does_not_make_a_journal_unreadable(tmp_path):
    with closing(Journal(tmp_path / "j")) as journal:
        journal.start({"out": os.fsdecode(b"runs/\xff"), "name": "h\u00fctte \U0001f600"}, 0, None)
    start = decode_event((tmp_path / "j").read_bytes(), 1)
    assert start.config == {"out": "runs/?", "name": "h\u00fctte \U0001f600"}
    journal = Journal(tmp_path / "k")
    journal.write("one", 1)
    assert len(read_journal(tmp_path / "k")) == 1, "on disk at once"
    journal.close()
    journal.close()


@pytest.mark.parametrize("tail", [b'{"event": "round", "deci', b"\xff\xfe", b"12", b'{"event": "cut"}'])
def test_an_unfinished_last_line_is_tolerated(tmp_path, tail):
    path = tmp_path / "j"
    with closing(Journal(path)) as journal:
        journal.write("one", 1)
    with path.open("ab") as file:
        file.write(tail)
    whole = 2 if b"cut" in tail else 1
    assert len(read_journal(path)) == whole


def test_a_broken_line_inside_is_an_error(tmp_path):
    (tmp_path / "j").write_text('{"event": "one"}\n{"eve\n{"event": "two"}\n')
    with pytest.raises(ValueError, match="line 2"):
        read_journal(tmp_path / "j")


def kinds(path):
    assert path.read_bytes().endswith(b"\n"), "whole lines only"
    return [e["event"] for e in read_journal(path)]


@pytest.fixture
def at_once(monkeypatch):
    monkeypatch.setattr("pbt_rl.record.append.RETRY_SECONDS", 0.0)


def test_events_wait_while_the_disk_is_full_and_are_written_in_order(tmp_path, faulty_disk, at_once):
    path, said = tmp_path / "j", []
    journal = Journal(path, said.append)
    journal.write("one", 1)
    faulty_disk.room = 30
    for number in range(5):
        journal.write("two", 2, number=number)
        assert kinds(path) == ["one"]
    assert len(said) == 1
    assert "No space" in said[0]
    faulty_disk.room = None
    journal.write("three", 3)
    assert kinds(path) == ["one", *["two"] * 5, "three"]
    assert [e["number"] for e in read_journal(path)[1:6]] == [0, 1, 2, 3, 4]
    assert [str(path) in text for text in said] == [True] * 2
    journal.close()


def test_a_full_disk_is_not_tried_at_every_event_and_what_never_can_be_written_is_counted(
    tmp_path, faulty_disk
):
    journal = Journal(tmp_path / "j", lambda _: None)
    faulty_disk.room = 0
    for _ in range(100):
        journal.write("event", 1)
    assert faulty_disk.attempts == 1
    faulty_disk.room = None
    journal.close()
    assert kinds(tmp_path / "j") == ["event"] * 100
    said = []
    journal = Journal(tmp_path / "j", said.append)
    faulty_disk.room = 0
    for _ in range(3):
        journal.write("event", 1)
    journal.close()
    journal.close()
    (lost,) = said[1:]
    assert re.search(rf"\b3 .*{tmp_path}/j .*No space", lost)


def test_beyond_the_bound_progress_is_dropped_before_rounds(tmp_path, faulty_disk, monkeypatch):
    monkeypatch.setattr("pbt_rl.record.journal.MAX_WAITING_BYTES", 20_000)
    journal = Journal(tmp_path / "j", lambda _: None)
    faulty_disk.room = 0
    for number in range(300):
        journal.write("progress", number, text="x" * 100)
        if number % 10 == 0:
            journal.write("round", number, number=number)
        assert journal._waiting_bytes <= 20_000
        assert journal._waiting_bytes == sum(len(line) for _, line in journal._waiting)
    faulty_disk.room = None
    journal.close()
    first, *rest = read_journal(tmp_path / "j")
    assert (first["event"], first["frames"]) == ("lost", 0), "of the first that was dropped"
    assert first["counts"] == {"progress": 300 - sum(e["event"] == "progress" for e in rest)}
    assert [e["number"] for e in rest if e["event"] == "round"] == [*range(0, 300, 10)]
    assert [e["frames"] for e in rest] == sorted(e["frames"] for e in rest)


def test_rounds_alone_do_not_exceed_the_bound_either(tmp_path, faulty_disk, monkeypatch):
    monkeypatch.setattr("pbt_rl.record.journal.MAX_WAITING_BYTES", 20_000)
    journal = Journal(tmp_path / "j", lambda _: None)
    faulty_disk.room = 0
    for number in range(300):
        journal.write("round", number, text="x" * 100)
        assert journal._waiting_bytes <= 20_000
    faulty_disk.room = None
    journal.close()
    first, *rest = read_journal(tmp_path / "j")
    assert first["counts"] == {"round": 300 - len(rest)}
    assert rest[-1]["frames"] == 299


def test_a_run_that_cannot_be_recorded_does_not_start(tmp_path, faulty_disk):
    journal = Journal(tmp_path / "j", pytest.fail)
    faulty_disk.room = 10
    with pytest.raises(OSError, match="No space"):
        journal.start({}, 0, {})
    assert (tmp_path / "j").read_bytes() == b""


def test_a_journal_is_continued_from_a_position(tmp_path, faulty_disk):
    path = tmp_path / "j"
    with closing(Journal(path)) as journal:
        journal.write("one", 1)
        journal.sync()
        position = journal.position()
        assert position == path.stat().st_size
        journal.write("two", 2)
    cut_journal(path, position)
    with closing(Journal(path)) as journal:
        assert journal.position() == position
        journal.write("three", 3)
    assert kinds(path) == ["one", "three"]
    journal = Journal(tmp_path / "k", lambda _: None)
    faulty_disk.room = 0
    journal.write("one", 1)
    assert journal.position() == 0
    with pytest.raises(OSError, match="No space"):
        journal.sync()
    faulty_disk.room = None
    journal.sync()
    assert journal.position() == (tmp_path / "k").stat().st_size > 0


@pytest.mark.parametrize(("position", "said"), [(1000, "1,000"), (5, "byte 5")])
def test_a_journal_that_does_not_fit_the_position_is_not_cut(tmp_path, position, said):
    path = tmp_path / "j"
    with closing(Journal(path)) as journal:
        journal.write("one", 1)
    before = path.read_bytes()
    with pytest.raises(ConfigError, match=said):
        cut_journal(path, position)
    assert path.read_bytes() == before
    with pytest.raises(ConfigError, match=r"nowhere .*missing"):
        cut_journal(tmp_path / "nowhere", position)


def test_a_journal_that_is_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "journal.jsonl")
    with pytest.raises(ConfigError, match=r"journal\.jsonl"):
        was_saved(tmp_path)


# -- versions -----------------------------------------------------------------------------------------------


def test_versions_name_what_is_installed_without_importing_torch():
    assert {"pbt_rl", "python", "torch", "gymnasium"} <= versions().keys()
    git = git_version()
    assert git is None or len(git.removesuffix("-dirty")) == 40


def test_they_stand_in_the_first_event(tmp_path):
    journal = Journal(tmp_path / "j")
    journal.start({}, 0, {})
    journal.close()
    (line,) = (tmp_path / "j").read_text().splitlines()
    event = json.loads(line)
    assert event["versions"]["numpy"] == np.__version__
    assert list(event) == ["event", "time", "frames", "config", "seed", "versions", "git", "spec"]


# -- events -------------------------------------------------------------------------------------------------

AT = {"time": 1.0, "frames": 2}


def decoded(**event):
    return decode_event(json.dumps(AT | event).encode(), 7)


def test_events_that_nothing_is_read_from_are_known_by_their_kind():
    assert decoded(event="applied", member=3) == Other(1.0, 2, "applied")
    assert decoded(event="of another version", ended=1) == Other(1.0, 2, "of another version")
    assert decoded(event="end", ended="frames") == End(1.0, 2, "frames")


@pytest.mark.parametrize(
    ("event", "said"),
    [
        ({"event": "end"}, "`ended`"),
        ({"event": "end", "ended": 3}, r"at `\$.ended`"),
        ({"event": "end", "ended": "x", "time": "nan"}, r"at `\$.time`"),
        ({"event": "end", "ended": "x", "frames": 2**70}, r"at `\$.frames`"),
        ({"event": 3}, r"at `\$.event`"),
        ({"event": "x", "frames": -1}, r"at `\$.frames`"),
        ({"event": "initial", "values": [{"gamma": "inf"}]}, r"at `\$.values\[0\]"),
        ({"event": "start", "config": {"a": {"b": []}} | {"c": [[[[[[[[[1]]]]]]]]]}}, " 8 levels"),
    ],
)
def test_an_event_that_does_not_fit_is_one_error_with_its_line(event, said):
    with pytest.raises(ConfigError, match=f"^line 7 .*{said}"):
        decoded(**event)


@pytest.mark.parametrize("line", [b"", b'{"event": "en', b"\xff\xfe", b'{"x": "\\ud800"}'])
def test_a_line_that_is_no_json_is_told_apart(line):
    with pytest.raises(NOT_JSON):
        decode_event(line, 1)


def test_json_that_is_nested_without_end_is_one_error():
    with pytest.raises(ConfigError, match=r"^line 1 .*nested"):
        decode_event(b'{"event": "start", "config": ' + b"[" * 100_000, 1)


def test_numbers_that_are_written_as_texts_are_numbers():
    known = {"member": 0, "generation": 0, "frames": 0, "episodes": 0}
    event = decoded(event="progress", members=[known | {"objective": text} for text in ("nan", "-inf", None)])
    assert isinstance(event, Progress)
    first, second, third = (member.objective for member in event.members)
    assert math.isnan(first)
    assert (second, third) == (-math.inf, None)


def test_a_start_knows_the_environment_if_there_is_one():
    spec = {"shaping": {"kill": 1}, "tasks": ["a", "b"], "frame_skip": 4}
    start = decoded(event="start", config={}, spec=spec)
    assert isinstance(start, Start)
    assert (start.shaping, start.tasks) == ({"kill": 1.0}, 2)
    bare = decoded(event="start", config={}, spec=None)
    assert (bare.shaping, bare.tasks) == ({}, 0)
    assert isinstance(decoded(event="resume", config={}, changed={"pbt.lr": [1, 2]}), Resume)


@pytest.mark.parametrize(
    "decision",
    [
        Continue(1, "phase 2", 10, phase=2),
        Restart(1, {"lr": 0.5}, "rung 1", None, 1),
        Stop(1, "completed: 3", completed=True, score=3.0),
        Stop(1, "evicted: 3 is at place 2 of 4", score=3.0, place=(2, 4)),
    ],
)
def test_what_a_search_says_of_a_member_comes_back(decision):
    record = json.loads(json.dumps(decision_to_dict(decision)))
    assert converted(record, Decision, "a decision") == decision


def test_decisions_of_other_controllers_do_not_speak_of_phases():
    assert decision_to_dict(Continue(1, "stays")).keys() == {"decision", "member", "reason", "until_frames"}
    assert decision_to_dict(Stop(1, "broken")).keys() == {"decision", "member", "reason"}
