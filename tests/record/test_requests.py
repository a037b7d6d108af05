"""Requests to a run that trains: whole or not there, answered once, and withdrawn if nobody answers."""

import threading
import time
from dataclasses import replace

import pytest

from pbt_rl.errors import ConfigError
from pbt_rl.record import requests
from pbt_rl.record.lock import FolderLock
from pbt_rl.record.requests import Inbox, Request, ask

REQUEST = Request({"pbt.mutation-rate": 0.5}, {"gamma": 0.9}, (1,))


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    monkeypatch.setattr(requests, "LOOK_SECONDS", 0.0)


@pytest.fixture
def run(tmp_path):
    lock = FolderLock(tmp_path)
    yield tmp_path
    lock.release()


def answering(inbox, answer, deadline=10.0):
    """Answer the next request in a thread, as a run does; returns the thread and what it took."""
    taken = []

    def serve():
        until = time.monotonic() + deadline
        while not taken and time.monotonic() < until:
            found = inbox.take()
            if found is not None:
                taken.append(found[1])
                answer(found[0])
            time.sleep(0.01)

    thread = threading.Thread(target=serve)
    thread.start()
    return thread, taken


def test_what_is_asked_arrives_and_the_answer_comes_back(run):
    inbox = Inbox(run)
    thread, taken = answering(inbox, lambda name: inbox.changed(name, ["gamma is 0.9"]))
    assert ask(run, REQUEST) == ["gamma is 0.9"]
    thread.join()
    assert taken == [REQUEST]
    assert not (run / requests.FOLDER).exists(), "nothing is left"


def test_a_run_takes_requests_although_the_clock_is_set_back(run, monkeypatch):
    inbox, now = Inbox(run), time.time_ns()
    for hours in (1, 2):
        monkeypatch.setattr(time, "time_ns", lambda hours=hours: now - hours * 3600 * 10**9)
        thread, taken = answering(inbox, lambda name: inbox.changed(name, ["done"]))
        assert ask(run, REQUEST, patience_seconds=2.0) == ["done"]
        thread.join()
        assert taken == [REQUEST]


def test_a_refusal_is_the_error_of_the_command(run):
    inbox = Inbox(run)
    thread, _ = answering(inbox, lambda name: inbox.refused(name, "gamma is legal up to 1"))
    with pytest.raises(ConfigError, match=r"^gamma is legal up to 1$"):
        ask(run, REQUEST)
    thread.join()


def test_a_run_that_does_not_answer_finds_nothing_later(run):
    inbox = Inbox(run)
    with pytest.raises(ConfigError, match=r"nothing was changed in .*: it did not answer within 0 s"):
        ask(run, REQUEST, patience_seconds=0.1)
    assert inbox.take() is None


def test_a_run_that_takes_a_request_and_cannot_answer_is_given_up(run, monkeypatch):
    monkeypatch.setattr(requests, "GRACE_SECONDS", 0.2)
    thread, taken = answering(Inbox(run), lambda name: None)
    with pytest.raises(ConfigError, match=r"took the request and does not answer; its journal says"):
        ask(run, REQUEST, patience_seconds=0.3)
    thread.join()
    assert taken == [REQUEST]


def test_a_folder_that_nobody_writes_is_refused_at_once(tmp_path):
    with pytest.raises(
        ConfigError, match="is not training now: values of members can be set only while it does"
    ):
        ask(tmp_path, REQUEST)
    with pytest.raises(ConfigError, match=r"is not training now: give the options to `pbt-rl resume"):
        ask(tmp_path, replace(REQUEST, values={}))
    assert not list(tmp_path.iterdir())


def test_a_run_that_ends_meanwhile_is_said(tmp_path):
    lock = FolderLock(tmp_path)
    threading.Timer(0.2, lock.release).start()
    with pytest.raises(ConfigError, match=r"nothing was changed in .*: it has ended"):
        ask(tmp_path, REQUEST)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"options": {}}',
        '{"options": {}, "values": {"gamma": "x"}}',
        '{"options": 3, "values": {}}',
    ],
)
def test_what_is_no_request_is_named_and_removed(run, text):
    inbox = Inbox(run)
    folder = run / requests.FOLDER
    folder.mkdir()
    path = folder / f"{time.time_ns()}-1.json"
    path.write_text(text)
    name, problem = inbox.take()
    assert name == path.name
    assert isinstance(problem, ConfigError)
    assert str(path) in str(problem)
    assert inbox.take() is None


def test_half_written_files_and_requests_from_before_are_no_requests(run):
    folder = run / requests.FOLDER
    folder.mkdir()
    (folder / f"{time.time_ns()}-1.json").write_text('{"options": {}, "values": {}}')
    inbox = Inbox(run)
    (folder / f".{time.time_ns()}-1.json.77").write_text('{"opt')
    (folder / "notes.txt").write_text("mine")
    assert inbox.take() is None
    assert sorted(path.name[0] for path in folder.iterdir()) == [".", "n"], "the old one is gone"


def test_a_request_that_cannot_be_removed_is_taken_once(run, monkeypatch):
    inbox = Inbox(run)
    folder = run / requests.FOLDER
    folder.mkdir()
    (folder / f"{time.time_ns()}-1.json").write_text('{"options": {}, "values": {}}')

    def fail(*_args, **_options):
        raise PermissionError(13, "no", "x")

    monkeypatch.setattr("pathlib.Path.unlink", fail)
    assert isinstance(inbox.take()[1], ConfigError), "else it would be carried out again and again"
    assert inbox.take() is None
