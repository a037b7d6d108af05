"""`pbt-rl watch`: what it reads, what it serves to whom, and what a browser makes of it."""

import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import threading
from contextlib import contextmanager

import pytest

from pbt_rl.errors import ConfigError
from pbt_rl.report import live as module
from pbt_rl.report.live import BEING_DRAWN, Live
from pbt_rl.report.server import Server
from tests.helpers.journals import PBT, run_of, write
from tests.helpers.runs import HANG_SECONDS, start
from tests.helpers.waiting import wait_until

EVIL = "<img src=x onerror=alert(1)>"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def events():
    """Four members over six comparisons; then what a run that goes on writes every ten seconds."""
    found = run_of(4, pbt=PBT, limit=70_000)[:-1]
    newest = next(event for event in reversed(found) if event["event"] == "round")
    known = [{n: m[n] for n in ("member", "generation", "frames")} for m in newest["report"]["members"]]
    members = [m | {"objective": 7.0, "episodes": 9, "complete": m["member"] != 2} for m in known]
    members[2] |= {"ended": 3, "environments": 8}
    threads = {"learning": 0.6, "inference": 0.2, "waiting": 3.0}
    progress = {"event": "progress", "members": members, "busy_threads": threads}
    return [*found, {"time": found[-1]["time"] + 5.0, "frames": found[-1]["frames"], **progress}]


@contextmanager
def served(live):
    """The server, and a function that asks it: (status, headers, content)."""
    with Server("127.0.0.1", 0, live) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()

        def get(path="/", method="GET"):
            connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
            try:
                connection.request(method, path)
                answer = connection.getresponse()
                return answer.status, answer.headers, answer.read()
            finally:
                connection.close()

        try:
            yield server, get
        finally:
            server.shutdown()
            thread.join()
            live.close()


def renewed(live):
    """The page after what is new was read, without its pictures."""
    live._next = 0.0
    live._drawing.poll = dict
    live.step()
    return live.page


# -- what is read -------------------------------------------------------------------------------------------


def test_the_page_is_that_of_the_report_and_tells_where_the_run_is(tmp_path, events, monkeypatch):
    told = {"training_seconds": 40.0, "seconds_left": 110.0, "frames_per_second": 700.0}
    first, *others, progress = events
    run = write(tmp_path / "run", [first, *others, {**progress, **told}])
    shown = Live(run).page
    assert "not running" in shown
    assert "0:40 " in shown
    assert "700 frames/s" not in shown, "nobody trains it"
    assert BEING_DRAWN in shown
    assert "key figures" in shown
    assert "~7</td><td class=number>3 of 8</td>" in shown, (
        "not every environment of member 2 has ended an episode"
    )
    monkeypatch.setattr(module, "is_held", lambda _: True)
    os.utime(run / "journal.jsonl", (1e9, 1e9))
    monkeypatch.setattr(module.time, "time", lambda: 1e9 + 10.0)
    shown = Live(run).page
    assert 'class="badge good">running<' in shown
    assert re.search(r"\b0:50 .*\b1:40 ", shown), "the record is ten seconds old"
    assert "700 frames/s" in shown
    stalled = {**progress, **told, "stalled": "learning a batch for 52 s"}
    assert stalled["stalled"] in Live(write(tmp_path / "other", [first, *others, stalled])).page


def test_a_journal_that_grows_or_was_cut_is_read_again(tmp_path, events):
    run = write(tmp_path / "run", events[:8])
    journal = run / "journal.jsonl"
    live = Live(run)
    before = live.page
    with journal.open("a") as file:
        file.write("".join(json.dumps(e) + "\n" for e in events[8:]) + '{"event": "torn')
    assert renewed(live) != before
    whole = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(whole[:8]))  # as a resume cuts it
    assert renewed(live) == before


@pytest.mark.parametrize("change", ["missing", "folder", "noise", "empty"])
def test_what_is_no_run_is_one_clear_error(tmp_path, events, change):
    run = write(tmp_path / "run", events)
    journal = run / "journal.jsonl"
    match change:
        case "missing":
            journal.unlink()
        case "folder":
            journal.unlink()
            journal.mkdir()
        case "noise":
            journal.write_bytes(b"\xff\xfe\n[1]\n")
        case "empty":
            journal.write_text("")
    with pytest.raises(ConfigError, match=re.escape(str(run))):
        Live(run)


# -- who is served what -------------------------------------------------------------------------------------


def test_the_page_needs_nothing_from_elsewhere_and_its_pictures_come_when_they_are_drawn(tmp_path, events):
    live = Live(write(tmp_path / "run", events))
    with served(live) as (server, get):
        assert server.url == f"http://127.0.0.1:{server.server_port}/"
        status, headers, text = get()
        assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
        assert "Access-Control-Allow-Origin" not in headers
        assert re.findall(rb"https?://\S+", text) == []
        assert wait_until(lambda: b'src="objective.png?' in get()[2])
        status, headers, image = get("/objective.png?anything")
        assert (status, headers["Content-Type"], image[:8]) == (200, "image/png", PNG)
        for path in ("/journal.jsonl", "/../config.json", "/objective", "/phases.png", "/%2e%2e/config.json"):
            assert get(path)[0] == 404
        assert get("/", method="POST")[0] == 501


def test_a_run_that_becomes_unreadable_is_said_and_served_again(tmp_path, events):
    run = write(tmp_path / "run", events)
    live = Live(run)
    live._drawing.poll = dict
    with served(live) as (_, get):
        (run / "journal.jsonl").rename(tmp_path / "aside")
        live._next = 0.0
        assert wait_until(lambda: get()[0] == 503)
        assert b"journal.jsonl" in get()[2]
        (tmp_path / "aside").rename(run / "journal.jsonl")
        assert wait_until(lambda: get()[0] == 200)


# -- the command, and a browser -----------------------------------------------------------------------------


def test_the_command_serves_until_ctrl_c(tmp_path, events):
    write(tmp_path / "runs" / "x", events)
    command = start(tmp_path, "watch", "runs/x")
    command.wait_for("Ctrl-C")
    (port,) = re.findall(r"http://127\.0\.0\.1:(\d+)/", command.out)
    connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=10)
    connection.request("GET", "/")
    assert b"x: toy/simulated" in connection.getresponse().read()
    connection.close()
    assert command.end(signal.SIGINT) == 0
    assert command.err == ""
    left = {path.name for path in (tmp_path / "runs" / "x").iterdir()}
    assert left == {"config.json", "journal.jsonl"}, "nothing is written"


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
def test_a_browser_follows_it_and_texts_stay_texts(tmp_path, events, monkeypatch):
    changed = json.loads(json.dumps(events))
    changed[0]["config"]["env"] = EVIL
    for event in changed:
        for decision in event.get("decisions", ()):
            decision["reason"] = EVIL
    live, asked = Live(write(tmp_path / "run", changed)), set()
    monkeypatch.setattr(module, "MIN_GAP_SECONDS", 0.0)
    monkeypatch.setattr(module, "GAP_FACTOR", 0.0)
    with served(live) as (server, _):

        def poll():  # drawn after the browser has the page
            asked.add(server.asked)
            return {"objective": PNG} if len(asked) > 2 else {}

        live._drawing.poll = poll
        options = f"--headless --no-sandbox --disable-gpu --virtual-time-budget=20000 --dump-dom {server.url}"
        drawn = subprocess.run(
            [CHROMIUM, f"--user-data-dir={tmp_path / 'profile'}", *options.split()],
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS,
            check=True,
        ).stdout
    assert "<img src=x" not in drawn
    assert "&lt;img src=x" in drawn
    assert 'src="objective.png?' in drawn
    assert "not running: " in drawn


def test_only_errors_of_connections_are_silent(capsys):
    with Server("127.0.0.1", 0, None) as server:
        for error in (ConnectionResetError("gone"), KeyError("a defect")):
            try:
                raise error
            except type(error):
                server.handle_error(None, ("127.0.0.1", 1))
    err = capsys.readouterr().err
    assert "a defect" in err
    assert "gone" not in err
