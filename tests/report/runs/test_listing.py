"""The table of runs, from files that may be of any kind."""

import json
import math
import os
import random
import re
from contextlib import closing

import pytest

from pbt_rl import Stop, tune
from pbt_rl.cli.runs import run as command
from pbt_rl.cli.runs import table
from pbt_rl.config import Config
from pbt_rl.errors import ConfigError
from pbt_rl.record.journal import Journal
from pbt_rl.record.run_lock import lock_run_folder
from pbt_rl.report.listing import RunRow, list_runs
from tests.helpers.mangle import mangled
from tests.helpers.runs import python
from tests.helpers.toys import Walker

NOW = 1_000_000.0


STATES = ("running", "ended", "resumable", "interrupted", "failed")


def members(*objectives):
    known = {"generation": 0, "frames": 1000, "episodes": 5}
    return [{"member": i, "objective": o} | known for i, o in enumerate(objectives)]


def ends(*objectives):
    """The members of a summary."""
    return [{"id": one.pop("member"), **one} for one in members(*objectives)]


def write(out, name, *, ended=None, summary=None, checkpoint=False, changed=NOW, events=()):
    locked = lock_run_folder(Config("toy/identity", num_policies=2, name=name, out=out))
    locked.started()
    locked.release(failed=False)
    folder = locked.folder
    with closing(Journal(folder.journal)) as journal:
        journal.start({}, 0, {})
        journal.write("progress", 1000, members=members(1.0, 2.5))
        for event, content in events:
            journal.write(event, 1000, **content)
        if ended is not None:
            journal.write("end", 30, ended=ended)
    if summary is not None:
        folder.write_summary({"ended": summary, "members": ends(7.0, None)})
    if checkpoint:
        (folder.checkpoints / "at_5").mkdir(parents=True)
        (folder.checkpoints / "at_5" / "manifest.json").write_text("{}")
    for path in (folder.config, folder.journal, folder.summary):
        if path.exists():
            os.utime(path, (changed, changed))
    return folder


def only(out):
    [row] = list_runs(out)
    return row


def test_the_states_of_runs(tmp_path):
    write(tmp_path, "frames", ended="frames", summary="frames", checkpoint=True)
    write(tmp_path, "no-summary", ended="frames", checkpoint=True)
    write(tmp_path, "reached", ended="objective", summary="objective", checkpoint=True)
    write(tmp_path, "killed", checkpoint=True)
    write(tmp_path, "killed-early")
    write(tmp_path, "ctrl-c", ended="interrupted by SIGINT", summary="interrupted by SIGINT", checkpoint=True)
    write(tmp_path, "ctrl-c-early", ended="interrupted by SIGINT", summary="interrupted by SIGINT")
    write(tmp_path, "failed", ended="failed", summary="failed")
    write(tmp_path, "resumed", summary="frames", checkpoint=True)
    for name, checkpoint in (("unsaved", True), ("never-saved", False)):
        folder = write(tmp_path, name, ended="frames", checkpoint=checkpoint)
        folder.write_summary({"ended": "frames", "members": ends(7.0), "saved_at_frames": None})
    os.utime(tmp_path / "resumed" / "summary.json", (NOW - 100, NOW - 100))  # of an earlier end
    emptied = write(tmp_path, "emptied", checkpoint=True)
    emptied.journal.write_bytes(b"")
    running = write(tmp_path, "running", ended="frames", summary="frames")
    locked = lock_run_folder(Config("toy/identity", num_policies=2, name="running", out=tmp_path))
    assert locked.folder.path == running.path
    (tmp_path / "no-run").mkdir()
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "config.json").touch()
    (tmp_path / "file").touch()
    (tmp_path / "link-to-itself").symlink_to(tmp_path / "link-to-itself")
    rows = {row.name: row for row in list_runs(tmp_path)}
    locked.release(failed=False)
    names = {
        "ended": "frames no-summary reached",
        "broken": "emptied",
        "resumable": "killed ctrl-c resumed unsaved",
        "interrupted": "killed-early ctrl-c-early",
        "failed": "failed never-saved",
        "running": "running",
    }
    wanted = {name: state for state, some in names.items() for name in some.split()}
    assert {name: row.state.partition(": journal.jsonl ")[0] for name, row in rows.items()} == wanted
    assert rows["frames"] == RunRow("frames", "toy/identity", 2, 1000, 7.0, "ended", NOW)
    assert rows["killed"] == RunRow("killed", "toy/identity", 2, 1000, 2.5, "resumable", NOW)
    assert rows["running"].best == 2.5, "of now, not of the end before"


def test_runs_of_tune_are_listed_though_they_have_no_config(tmp_path):
    space = {"rate": (1e-4, 1e-1)}
    options = {"num_members": 2, "progress": False}
    tune.run(Walker, space, steps=4, **options, folder=tmp_path / "fit")
    tune.run(Walker, space, steps=4, **options, folder=tmp_path / "cut", on_progress=lambda _: Stop("enough"))
    tune.run(Walker, space, steps=4, **options, journal=tmp_path / "unsaved" / "journal.jsonl")
    (tmp_path / "no-run").mkdir()
    (tmp_path / "no-run" / "journal.jsonl").write_text('{"event": "start", "config": {}}\n')
    rows = {row.name: (row.env, row.members, row.frames, row.state) for row in list_runs(tmp_path)}
    assert rows.pop("no-run")[-1].startswith("broken: config.json ")
    expected = {"fit": (4, "ended"), "cut": (1, "resumable"), "unsaved": (4, "ended")}
    assert rows == {name: ("pbt_rl.tune.run", 2, *seen) for name, seen in expected.items()}


def test_final_evaluations_have_a_column_of_their_own(tmp_path, capsys):
    folder = write(tmp_path, "judged", ended="frames")
    games = ends(7.0, 5.0, 9.0)
    for member, mean in zip(games, (3.0, 4.5, 8.5), strict=True):
        member["final"] = {"mean": mean}
    folder.write_summary({"ended": "frames", "members": games})  # the third is a control, and not the best
    write(tmp_path, "plain", ended="frames", summary="frames")
    rows = {row.name: row for row in list_runs(tmp_path)}
    assert (rows["judged"].best, rows["judged"].final, rows["plain"].final) == (5.0, 4.5, None)
    assert command([str(tmp_path)]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split()[4:6] == ["best", "final"]
    shown = {line.split()[0]: line.split()[4:6] for line in lines}
    assert shown == {"judged": ["5.00", "4.50"], "plain": ["7.00", "-"]}


def test_a_run_itself_and_the_newest_first(tmp_path):
    write(tmp_path, "b", changed=NOW - 10)
    write(tmp_path, "a", changed=NOW - 20)
    write(tmp_path, "c", changed=NOW)
    assert [row.name for row in list_runs(tmp_path)] == ["c", "b", "a"]
    assert [row.name for row in list_runs(tmp_path / "a")] == ["a"]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("config.json", None, "missing"),
        ("config.json", b"[" * 100_000, "JSON object"),
        ("config.json", b'{"env": "x", "num_policies": -2}', "environment"),
        ("config.json", "pipe", "regular file"),
        ("journal.jsonl", None, "missing"),
        ("journal.jsonl", b"\x00" * 3000, "no event"),
        ("summary.json", b"{", "JSON object"),
        ("summary.json", b'{"members": [{"objective": "many"}]}', "summary of"),
    ],
)
def test_a_mangled_run_is_a_row_that_says_why(tmp_path, name, content, said):
    folder = write(tmp_path, "x", ended="frames", summary="frames")
    path = folder.path / name
    path.unlink()
    if content == "pipe":
        os.mkfifo(path)
    elif content is not None:
        path.write_bytes(content)
        os.utime(folder.journal, (NOW - 1, NOW - 1))
    assert re.match(rf"broken: {name} .*{said}", only(tmp_path).state)


def test_300_random_mangles_of_each_file_raise_nothing(tmp_path):
    folder = write(tmp_path, "x", ended="frames", summary="frames")
    rng = random.Random(3)
    for path in (folder.config, folder.journal, folder.summary):
        whole = path.read_bytes()
        for _ in range(300):
            path.write_bytes(mangled(whole, rng))
            row = only(tmp_path)
            assert row.state in STATES or row.state.startswith("broken: ")
            table([row], NOW, 80)
        path.write_bytes(whole)
    assert only(tmp_path).state == "ended"


def test_a_table_fits_a_terminal_and_names_cannot_command_it():
    rows = [
        RunRow("a" * 60, "gym/" + "b" * 40, 40, 123_456_789, 1234.5, "resumable", NOW - 7200),
        RunRow("short", "toy/x", None, None, None, "broken: config.json is " + "bad " * 30, NOW - 86400 * 3),
    ]
    lines = table(rows, NOW, 80)
    assert all(len(line) <= 80 for line in lines)
    assert lines[1].endswith("2 h  resumable")
    assert "123M" in lines[1]
    assert lines[2].endswith("…")
    assert "3 d  broken: " in lines[2]
    whole = table(rows, NOW, None)
    assert "a" * 60 in whole[1]
    assert whole[2].endswith("bad")
    row = RunRow("\x1b[2Jx", "\x1b]0;y", 1, 1, 1.0, "broken: \x1b[31m", NOW)
    assert "\x1b" not in "".join(table([row], NOW, None))


def test_the_command(tmp_path, capsys):
    write(tmp_path, "demo", ended="frames", summary="frames")
    held = lock_run_folder(Config("toy/identity", name="demo", out=tmp_path, overwrite=True))
    assert command([str(tmp_path)]) == 0
    header, row, aside = capsys.readouterr().out.splitlines()
    assert header.split() == ["name", "env", "members", "frames", "best", "age", "state"]
    assert row.split()[0] == "demo"
    assert ".demo.replaced." in aside
    held.release(failed=True)
    assert command([str(tmp_path)]) == 0
    row = capsys.readouterr().out.splitlines()[1]
    assert row.split()[:5] == ["demo", "toy/identity", "2", "1.00k", "7.00"]


def test_listing_imports_neither_torch_nor_what_a_config_names(tmp_path):
    (tmp_path / "mine.py").write_text("raise SystemExit('imported')\n")
    folder = write(tmp_path / "runs", "x")
    config = json.loads(folder.config.read_text()) | {"env": "mine:make"}
    folder.config.write_text(json.dumps(config))
    code = (
        "import sys; from pbt_rl.cli.runs import run; run(['runs']); "
        "print({'torch', 'numba', 'gymnasium', 'mine'} & sys.modules.keys())"
    )
    out = python(code, tmp_path)
    assert "mine:make" in out
    assert out.endswith("set()\n")
