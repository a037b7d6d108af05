"""`scripts/lab/games.py`: curves survive a stop, what is whole is not run again, and areas and tables are right."""

import json
import os
import signal
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts" / "lab"
sys.path.insert(0, str(SCRIPTS))

import games  # noqa: E402
from games_list import GAMES, SAMPLE_FACTORY, Game, Peer  # noqa: E402
from peers.curve import WINDOW, Curve, Point, Window, read_points  # noqa: E402

TINY = Game("tiny", 3000, {"ours": ("--env", "toy/identity")}, Peer("atari", "x", ()))


def points_of(*pairs):
    return [Point(frames, score, 100, frames / 10, frames / 5) for frames, score in pairs]


def test_a_curve_has_a_point_at_each_mark_and_at_the_end(tmp_path):
    curve = Curve(tmp_path / "curve.jsonl", 100)
    curve.resume(0)
    for frames in (10, 60, 120, 180, 230):
        curve.note(frames, frames / 10, 1)
    curve.note(250, None, 0, last=True)
    curve.note(240, 24.0, 1, last=True)
    assert [(p.frames, p.score) for p in read_points(curve.path)] == [
        (10, 1),
        (120, 12),
        (230, 23),
        (240, 24),
    ]


def test_a_curve_that_goes_on_drops_what_the_checkpoint_lacks_but_keeps_its_time(tmp_path):
    path = tmp_path / "curve.jsonl"
    lines = [Point(100, 1.0, 9, 50.0, 70.0), Point(200, 2.0, 9, 90.0, 130.0)]
    path.write_text("".join(f"{json.dumps(vars(point))}\n" for point in lines))
    curve = Curve(path, 100)
    curve.resume(150)
    curve.note(240, 7.0, 9)
    curve.note(260, 8.0, 9)
    first, last = read_points(path)
    assert first == lines[0]
    assert (last.frames, last.score) == (260, 8.0)
    assert last.cpu_seconds > 90
    assert last.wall_seconds >= 130


def test_the_window_of_a_peer_is_the_last_games_across_a_stop(tmp_path):
    window = Window(tmp_path / "window.json")
    assert window.mean is None
    for score in range(WINDOW + 10):
        window.add(score)
    window.save()
    again = Window(tmp_path / "window.json")
    again.add(1000)
    assert len(again) == WINDOW
    assert again.mean == pytest.approx((sum(range(11, WINDOW + 10)) + 1000) / WINDOW)


def test_the_area_is_the_mean_over_the_frames():
    assert games.area(points_of((0, 0.0), (100, 10.0)), 100) == pytest.approx(5)
    assert games.area(points_of((0, 0.0), (50, 10.0)), 100) == pytest.approx(7.5)
    assert games.area(points_of((50, 4.0), (100, 8.0), (110, 100.0)), 100) == pytest.approx(5)


def test_rows_are_read_as_they_were_written_and_shown(tmp_path):
    path = tmp_path / "games.csv"
    for seed, score in ((0, 20.0), (1, 30.0)):
        games.append(path, "boxing", "ours", seed, points_of((500_000, 0.0), (1_000_000, score)))
    games.append(path, "boxing", SAMPLE_FACTORY, 0, points_of((1_000_000, 7.0)))
    runs = games.read_runs(path)
    assert runs["boxing"]["ours"][1] == points_of((500_000, 0.0), (1_000_000, 30.0))
    ours, peer = games.table(runs).splitlines()[2:]
    assert "| 20, 30 | **25** | 6.25 | 100000 | 0.015 |" in ours
    assert "| 7 | **7** | 7 |" in peer
    assert games.differences(runs) == ""
    games.append(path, "boxing", SAMPLE_FACTORY, 1, points_of((1_000_000, 19.0)))
    shown = games.differences(games.read_runs(path))
    # 13 and 11; 5 - 7 and 7.5 - 19. 12.706 * sqrt(2) / sqrt(2), and 4.75 of it.
    assert "2 seeds: last score +12 +- 12.71, mean over the run -6.75 +- 60.35" in shown
    games.picture(tmp_path / "games.png", runs)
    assert (tmp_path / "games.png").stat().st_size > 1000


def test_a_run_in_hand_is_left_alone_and_a_whole_one_is_not_trained(tmp_path, monkeypatch):
    monkeypatch.setitem(games.GAMES, "tiny", TINY)
    monkeypatch.setattr(games, "peers_python", lambda _: pytest.fail("it was trained"))
    chosen = Namespace(out=tmp_path, venv=tmp_path)
    with games.held(tmp_path / "tiny-ours-0"):
        assert games.trained("tiny", "ours", 0, chosen, 0.0) == []
    curve = Curve(tmp_path / "tiny-ours-0" / "curve.jsonl", 1)
    curve.note(2999, 5.0, 100)
    assert games.finished(tmp_path / "tiny-ours-0", TINY) == []
    curve.note(3000, 5.0, 100)
    assert [p.frames for p in games.trained("tiny", "ours", 0, chosen, 0.0)] == [2999, 3000]


def test_a_part_that_fails_says_where_its_output_is(tmp_path):
    with pytest.raises(RuntimeError, match=r"exit code 3, see .*output\.txt"):
        games.run([sys.executable, "-c", "raise SystemExit(3)"], {}, tmp_path, 30)


def test_a_command_that_is_told_to_end_leaves_no_process(tmp_path):
    script = tmp_path / "command.py"
    script.write_text(
        "import sys\n"
        "from pathlib import Path\n"
        f"sys.path.insert(0, {str(SCRIPTS)!r})\n"
        "import games\n"
        "child = 'import os, time; print(os.getpid(), flush=True); time.sleep(300)'\n"
        "games.run_missing = lambda _: games.run([sys.executable, '-c', child], {}, Path.cwd(), 300)\n"
        "sys.argv[1:] = ['run']\n"
        "sys.exit(games.main())\n"
    )
    command = subprocess.Popen([sys.executable, str(script)], cwd=tmp_path)
    output = tmp_path / "output.txt"
    while not (output.exists() and output.read_text()):
        assert command.poll() is None
        time.sleep(0.05)
    command.terminate()
    assert command.wait(30) == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(int(output.read_text()), 0)


def test_every_game_says_what_both_learn():
    for game in GAMES.values():
        assert next(iter(game.ours)) == "ours"
        assert game.systems[-1] == SAMPLE_FACTORY
        assert any(option.startswith("--env=") for option in game.peer.options)


def test_a_score_of_atari_waits_for_no_environment(tmp_path, monkeypatch):
    monkeypatch.setattr(games, "peers_python", lambda _: Path(sys.executable))
    command, _ = games.our_command(GAMES["pong"], "ours", tmp_path, tmp_path)
    assert command[command.index("--score") + 1] == "raw_return"


@pytest.mark.long
def test_one_of_ours_that_was_stopped_goes_on(tmp_path, monkeypatch):
    monkeypatch.setitem(games.GAMES, "tiny", TINY)
    monkeypatch.setattr(games, "peers_python", lambda _: Path(sys.executable))
    chosen = Namespace(out=tmp_path, venv=tmp_path)
    assert games.trained("tiny", "ours", 0, chosen, time.monotonic()) == []
    begun = read_points(tmp_path / "tiny-ours-0" / "curve.jsonl")
    points = games.trained("tiny", "ours", 0, chosen, time.monotonic() + 60)
    assert points[-1].frames >= 3000
    assert [p.frames for p in points] == sorted({p.frames for p in points})
    assert not begun or points[-1].cpu_seconds > begun[-1].cpu_seconds
