"""What a journal says is typed, or one clear error."""

import json
import math

import pytest

from pbt_rl.controllers.decisions import Continue, Decision, Restart, Stop, decision_to_dict
from pbt_rl.controllers.records import NOT_JSON, converted
from pbt_rl.errors import ConfigError
from pbt_rl.record.events import End, Other, Progress, Resume, Start, decode_event

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
        ({"event": "start", "config": {"a": {"b": []}} | {"c": [[[[[[[[[1]]]]]]]]]}}, "more than 8 levels"),
    ],
)
def test_an_event_that_does_not_fit_is_one_error_with_its_line(event, said):
    with pytest.raises(ConfigError, match=f"^line 7 of the journal cannot be used: .*{said}"):
        decoded(**event)


@pytest.mark.parametrize("line", [b"", b'{"event": "en', b"\xff\xfe", b'{"x": "\\ud800"}'])
def test_a_line_that_is_no_json_is_told_apart(line):
    with pytest.raises(NOT_JSON):
        decode_event(line, 1)


def test_json_that_is_nested_without_end_is_one_error():
    with pytest.raises(ConfigError, match="line 1 of the journal cannot be used: it is nested too deeply"):
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
