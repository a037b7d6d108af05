"""`pbt-rl watch`: what it reads, what it serves to whom, and what a browser makes of it."""

import http.client
import json
import re
import shutil
import signal
import subprocess
import threading
from contextlib import contextmanager

import pytest

from pbt_rl.display.watch import state as watch_state
from pbt_rl.display.watch.reader import Reader
from pbt_rl.display.watch.server import Server
from pbt_rl.errors import ConfigError
from pbt_rl.record.history import read_run
from tests.helpers.journals import PBT, run_of, write
from tests.helpers.runs import start

EVIL = "<img src=x onerror=alert(1)>"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def events():
    """Four members over six comparisons; then what a run that goes on writes every ten seconds."""
    found = run_of(4, pbt=PBT, limit=70_000)[:-1]
    newest = next(event for event in reversed(found) if event["event"] == "round")
    known = [{n: m[n] for n in ("member", "generation", "frames")} for m in newest["report"]["members"]]
    members = [m | {"objective": 7.0, "episodes": 9, "complete": m["member"] != 2} for m in known]
    threads = {"learning": 0.6, "inference": 0.2, "waiting": 3.0}
    progress = {"event": "progress", "members": members, "busy_threads": threads}
    return [*found, {"time": found[-1]["time"] + 5.0, "frames": found[-1]["frames"], **progress}]


@contextmanager
def served(reader, host="127.0.0.1"):
    """The server, and a function that asks it: (status, headers, text)."""
    with Server(host, 0, reader.latest) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()

        def get(path="/", method="GET", **headers):
            connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
            try:
                connection.request(method, path, headers=headers)
                answer = connection.getresponse()
                return answer.status, answer.headers, answer.read().decode()
            finally:
                connection.close()

        try:
            yield server, get
        finally:
            server.shutdown()
            thread.join()


def patient(reader):
    """Let the reader look again at once."""
    reader._next = 0.0
    return reader.latest()


# -- what is read -------------------------------------------------------------------------------------------


def test_the_state_has_all_that_the_page_shows(tmp_path, events):
    shown = Reader(write(tmp_path / "run", events)).latest()
    json.dumps(shown)
    assert (shown["env"], shown["controller"], shown["ended"]) == ("toy/simulated", "pbt", None)
    assert len(shown["members"]) == len(shown["curves"]) == 4
    assert shown["counts"]["replacements"] == sum(d["decision"] == "replace" for d in shown["decisions"]) > 0
    assert all(d["reason"] for d in shown["decisions"])
    assert {s["name"] for s in shown["schedules"]} == set(shown["varied"])
    assert len(shown["forest"]["labels"]) == 4
    by_member = {m["member"]: m for m in shown["members"]}
    assert [by_member[i]["complete"] for i in range(4)] == [True, True, False, True]
    assert shown["curves"]["2"][-1][1] is None, "a gap where the window is not complete"
    assert shown["curves"]["1"][-1][1] == 7.0


def test_clock_time_left_and_speed_are_those_that_the_terminal_showed(tmp_path, events):
    start, *others, progress = events
    told = {"training_seconds": 40.0, "seconds_left": 110.0, "frames_per_second": 700.0}
    begun = {**start, "config": {**start["config"], "train_for_seconds": 120.0}}
    shown = Reader(write(tmp_path / "run", [begun, *others, {**progress, **told}])).latest()
    assert (shown["seconds"], shown["seconds_left"], shown["frames_per_second"]) == (40.0, 110.0, 700.0)
    assert shown["since"] == 0, "it does not run"
    assert shown["budget_frames"] is None, "100M frames are not what ends this run"
    shown = Reader(write(tmp_path / "other", events)).latest()
    assert shown["budget_frames"] == 100_000_000


def test_final_games_choose_the_best_and_remarks_are_shown(tmp_path, events):
    *_, last = events
    moment = {"time": last["time"] + 1, "frames": last["frames"]}
    games = [
        {"member": m, "mean": 10.0 if m == 2 else float(m), "spread": 1.0, "episodes": 20} for m in range(4)
    ]
    more = [
        moment | {"event": "remark", "text": "the run could not be saved: no space"},
        moment | {"event": "pack_lost", "pack": 0, "kind": "killed", "cause": "x", "members": []},
        moment | {"event": "pack_lost", "pack": 0, "kind": "hung", "cause": "x", "members": []},
        moment | {"event": "final", "members": games},
        moment | {"event": "end", "ended": "seconds"},
    ]
    shown = Reader(write(tmp_path / "run", [*events, *more])).latest()
    assert (shown["best"], shown["final_episodes"], shown["ended"]) == (2, 20, "seconds")
    assert {m["member"]: m["final"] for m in shown["members"]} == {g["member"]: g["mean"] for g in games}
    lost, said = shown["remarks"]
    assert lost.startswith("2 learners died or hung and were replaced")
    assert said == "the run could not be saved: no space"
    assert shown["score"] == 10.0


@pytest.mark.parametrize(("tasks", "error"), [([], 0.5), (["near", "far", "dark", "wet"], 1.0)])
def test_the_error_of_games_beside_training_is_over_the_tasks_if_there_are_any(
    tmp_path, events, tasks, error
):
    """The spread is that of the means of four tasks, however many episodes each of them has."""
    first, *others = events
    first = {**first, "spec": {**first["spec"], "tasks": tasks}}
    moment = {name: others[-1][name] for name in ("time", "frames")}
    games = {"event": "evaluation", "at_frames": 5, "member": 1, "mean": 3.0, "spread": 2.0, "episodes": 16}
    games |= {"all_frames": 10, "generation": 0, "seconds": 1.0}
    shown = Reader(write(tmp_path / "run", [first, *others, moment | games])).latest()
    assert shown["evaluations"] == [[5, 3.0, error, 16, 1]]


def test_the_schedules_of_a_long_run_are_as_many_points_as_a_screen_shows(tmp_path, events, monkeypatch):
    """All of them were 7 kB per comparison of 64 members: 35 MB every two seconds after 5,000 comparisons."""
    run = write(tmp_path / "run", events)
    history = read_run(run)
    whole = {s["name"]: s["lines"] for s in Reader(run).latest()["schedules"]}
    for name, lines in whole.items():
        for line in lines:
            nodes = history.lineage.line(history.last[line["member"]].key)
            end = history.lineage.end_trained(nodes[-1].key)
            steps = [[n.trained, n.values[name]] for n in nodes]
            changed = [
                p for before, p in zip([None, *steps], steps, strict=False) if not before or before[1] != p[1]
            ]
            assert [list(p) for p in line["points"]] == [*changed, [end, steps[-1][1]]]
    assert max(len(line["points"]) for lines in whole.values() for line in lines) > 3
    monkeypatch.setattr(watch_state, "MOST_POINTS", 1)
    for schedule in Reader(run).latest()["schedules"]:
        for line, before in zip(schedule["lines"], whole[schedule["name"]], strict=True):
            assert len(line["points"]) <= 3
            assert line["points"][0] == before["points"][0]
            assert line["points"][-2:] == before["points"][-2:]


def test_a_journal_that_grows_is_read_on_and_one_that_was_cut_anew(tmp_path, events):
    run = write(tmp_path / "run", events[:8])
    journal = run / "journal.jsonl"
    reader = Reader(run)
    before = reader.latest()["seconds"]
    with journal.open("a") as file:
        file.write("".join(json.dumps(e) + "\n" for e in events[8:]) + '{"event": "torn')
    assert patient(reader)["seconds"] > before
    assert reader.latest()["counts"]
    whole = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(whole[:8]))  # as a resume cuts it
    assert patient(reader)["seconds"] == before


def test_a_journal_that_was_cut_and_has_grown_beyond_since_is_read_anew(tmp_path, events):
    run = write(tmp_path / "run", events)
    reader, journal = Reader(run), run / "journal.jsonl"
    whole = journal.read_text().splitlines(keepends=True)
    later = {"event": "note", "time": events[8]["time"], "frames": 1, "text": "x" * len("".join(whole))}
    journal.write_text("".join(whole[:8]) + json.dumps(later) + "\n")
    shown = patient(reader)
    assert shown == Reader(run).latest()
    assert shown["seconds"] < events[-1]["time"] - events[0]["time"]


@pytest.mark.parametrize("change", ["missing", "link", "folder", "noise", "empty"])
def test_what_is_no_run_is_one_clear_error(tmp_path, events, change):
    run = write(tmp_path / "run", events)
    journal = run / "journal.jsonl"
    match change:
        case "missing":
            journal.unlink()
        case "link":
            journal.rename(tmp_path / "elsewhere")
            journal.symlink_to(tmp_path / "elsewhere")
        case "folder":
            journal.unlink()
            journal.mkdir()
        case "noise":
            journal.write_bytes(b"\xff\xfe\n[1]\n")
        case "empty":
            journal.write_text("")
    with pytest.raises(ConfigError, match=re.escape(str(run))):
        Reader(run)


# -- who is served what -------------------------------------------------------------------------------------


def test_the_page_needs_nothing_from_elsewhere(tmp_path, events):
    with served(Reader(write(tmp_path / "run", events))) as (server, get):
        assert server.url == f"http://127.0.0.1:{server.server_port}/"
        for path, kind in (("/", "text/html"), ("/page.js", "text/javascript"), ("/page.css", "text/css")):
            status, headers, text = get(path)
            assert (status, headers["Content-Type"]) == (200, f"{kind}; charset=utf-8")
            assert "Access-Control-Allow-Origin" not in headers
            assert re.findall(r"https?://\S+", text.replace("http://www.w3.org/2000/svg", "")) == []
            assert "innerHTML" not in text
        assert get("/state.json")[0] == 200
        for path in ("/journal.jsonl", "/../config.json", "/page.html/..", "/%2e%2e/config.json"):
            assert get(path)[0] == 404
        assert get("/", method="POST")[0] == 501


def test_a_run_that_becomes_unreadable_is_said_and_served_again(tmp_path, events):
    run = write(tmp_path / "run", events)
    reader = Reader(run)
    with served(reader) as (_, get):
        (run / "journal.jsonl").rename(tmp_path / "aside")
        reader._next = 0.0
        status, _, text = get("/state.json")
        assert status == 503
        assert "run has no journal.jsonl: restore the file" in json.loads(text)["error"]
        (tmp_path / "aside").rename(run / "journal.jsonl")
        assert get("/state.json")[0] == 200


# -- the command, and a browser -----------------------------------------------------------------------------


def test_the_command_serves_until_ctrl_c(tmp_path, events):
    write(tmp_path / "runs" / "x", events)
    command = start(tmp_path, "watch", "runs/x")
    command.wait_for("Ctrl-C ends it")
    (port,) = re.findall(r"http://127\.0\.0\.1:(\d+)/", command.out)
    connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=10)
    connection.request("GET", "/state.json")
    assert json.loads(connection.getresponse().read())["name"] == "x"
    connection.close()
    assert command.end(signal.SIGINT) == 0
    assert command.err == ""
    left = {path.name for path in (tmp_path / "runs" / "x").iterdir()}
    assert left == {"config.json", "journal.jsonl"}, "nothing is written"


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
def test_a_browser_draws_it_and_texts_stay_texts(tmp_path, events):
    changed = json.loads(json.dumps(events))
    changed[0]["config"]["env"] = EVIL
    for event in changed:
        for decision in event.get("decisions", ()):
            decision["reason"] = EVIL
    with served(Reader(write(tmp_path / "run", changed))) as (server, _):
        options = f"--headless --no-sandbox --disable-gpu --virtual-time-budget=4000 --dump-dom {server.url}"
        drawn = subprocess.run(
            [CHROMIUM, f"--user-data-dir={tmp_path / 'profile'}", *options.split()],
            capture_output=True,
            text=True,
            timeout=100,
            check=True,
        ).stdout
    assert "<img" not in drawn
    assert "&lt;img src=x" in drawn
    assert drawn.count('class="dot"') == 4
    assert drawn.count("<svg") >= 3
    assert "not running: " in drawn
