"""The terminal, live and plain."""

import io
import os
import pty
import re
import sys
from dataclasses import replace

import pytest
from rich.console import Console

from pbt_rl.controllers.changes import Change
from pbt_rl.display import ranking
from pbt_rl.display.terminal import Leaderboard, Terminal, decision_line, is_live_terminal, print_leaderboard
from tests.helpers.views import INITIAL, member, view


def population(size):
    return [member(i, float(i), learning_rate=1e-4 * (i + 1), gamma=0.98) for i in range(size)]


def terminal(width=80, height=24):
    return Console(
        file=io.StringIO(), force_terminal=True, width=width, height=height, highlight=False, emoji=False
    )


def figures(line):
    """The numbers of each part of a line."""
    return [re.findall(r"[+-]?\d[\d:.]*k?", part) for part in line.split(" | ")]


def progress(shown):
    return figures(" | ".join(ranking.progress(shown)))


def test_the_table_ranks_members_and_shows_changed_values():
    lines = ranking.table_lines(
        view(member(0, 1.0), member(1, 4.0, learning_rate=3.1e-4), member(2, None)), 80
    )
    assert [line.split()[:2] for line in lines] == [
        ["member", "objective"],
        ["1", "4.00"],
        ["0", "1.00"],
        ["2", "-"],
    ]
    assert lines[1].endswith("learning_rate 2.5e-4→3.1e-4")
    assert lines[2].endswith("learning_rate 2.5e-4")
    assert "gamma" not in "".join(lines)


def young(number, early, ended=28, **changes):
    """A member that not every environment has ended an episode of."""
    unknown = replace(member(number, None), complete=False, early=early, ended=ended, environments=32)
    return replace(unknown, **changes)


def test_scores_are_shown_from_the_first_episode_and_marked():
    early = view(young(0, 0.18), young(1, None, ended=0), seconds_left=None)
    lines = ranking.table_lines(early, 80)
    assert [line.split()[:3] for line in lines[1:]] == [["0", "~0.18", "28/32"], ["1", "-", "0/32"]]
    assert ranking.title_lines(early)[0] == "best ~0.18 (member 0, 28 of 32 environments)"
    assert "best" not in ranking.title_lines(view(young(1, None, ended=0), seconds_left=None))[0]
    assert "ended" not in ranking.table_lines(view(member(0)), 80)[0]


def test_the_first_line_says_how_it_goes_and_what_comes_next():
    shown = view(member(0, 2.0), member(3, 392.0), seconds_left=64.0, comparison_in_seconds=11.0)
    best, left = ["392.0", "3"], ["1:04"]
    assert figures(ranking.title_lines(shown, "+12.00 in 60 s")[0]) == [
        best,
        ["+12.00", "60"],
        left,
        ["0:11"],
    ]
    assert figures(ranking.title_lines(replace(shown, comparison_in_seconds=65.0))[0]) == [best, left, []]


def test_frames_are_those_of_each_member_and_a_standstill_is_said():
    shown = view(member(0, frames=36_700), member(1, frames=36_900), training_seconds=70.0)
    assert progress(shown) == [["1:10"], ["36.7k"], ["800"]]
    stalled = replace(shown, stalled_seconds=8.2)
    assert progress(stalled) == progress(replace(stalled, learns=True)) == [["1:10"], ["36.7k"], ["8"]]
    assert ranking.progress(stalled) != ranking.progress(replace(stalled, learns=True))
    turns = view(member(0, frames=1000), member(1, frames=5000), member(2, frames=1, stopped=True))
    assert progress(turns)[1] == ["1.00k", "5.00k"]


def test_the_footer_says_what_went_wrong():
    (line,) = ranking.footer_lines(view())
    assert re.fullmatch(r"actors .*1 \| learners .*1", line)
    well = view(actors_restarted=0, learners_replaced=0)
    (line,) = ranking.footer_lines(replace(well, discarded_share=0.06))
    assert figures(line) == [["6", "4"]]
    assert ranking.footer_lines(well) == []


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (ranking.value(2.5e-4), "2.5e-4"),
        (ranking.value(0.9999999), "0.9999999"),
        (ranking.value(-0.01), "-0.01"),
        (ranking.value(1024.0), "1024"),
        (ranking.number(float("nan")), "-"),
        (ranking.number(-20.7), "-20.70"),
        (ranking.number(12345.6), "12,346"),
        (ranking.count(1000), "1.00k"),
        (ranking.count(999_999), "1.00M"),
        (ranking.count(10**9), "1.00G"),
        (ranking.clock(3661.4), "1:01:01"),
        (ranking.clock(-1), "0:00"),
    ],
)
def test_numbers_are_short(written, text):
    assert written == text


def test_the_live_picture_fits_the_terminal_and_keeps_events_as_they_are():
    console = terminal(80, 24)
    display = Terminal(["run runs/demo"], plain=False, console=console)
    display.start()
    display.event("actor 1 died: [bold]x[/bold] :smile:")
    display.update(view(*population(40)))
    display.stop()
    text = console.file.getvalue()
    display.stop()
    display.update(view(*population(40)))
    assert console.file.getvalue() == text
    assert "run runs/demo" in text
    assert "[bold]x[/bold] :smile:" in text
    assert "… 23 more" in text
    picture = text[text.rindex("best 39.00") :]
    assert picture.count("\n") < 24
    assert "actors restarted: 1" in picture


def test_plain_lines_come_every_ten_seconds(capsys):
    display = Terminal(["run runs/demo"], plain=True)
    display.start()
    for second in range(1, 31):
        times = {"seconds": float(second), "training_seconds": float(second)}
        display.update(view(member(0, 2.0), member(1, 4.0), **times))
    display.event("actor 1 restarted")
    display.stop()
    lines = capsys.readouterr().out.splitlines()
    assert (lines[0], lines[-1]) == ("run runs/demo", "actor 1 restarted")
    assert [figures(line) for line in lines[1:-1]] == [
        [[f"0:{second:02d}"], ["1.00k"], ["800"], ["4.00", "1"], ["3"], ["1:00:00"]] for second in (1, 11, 21)
    ]


def test_plain_lines_come_as_soon_as_the_run_waits_for_something_else(capsys):
    first = replace(
        view(member(0)), seconds=0.1, frames=0, frames_per_second=0.0, waits_for="the learner loads torch"
    )
    terminal = Terminal([], plain=True)
    for shown in (
        first,
        replace(first, seconds=1.0),
        replace(first, seconds=90.0, stalled_seconds=2.0, waits_for="environments are made"),
        replace(first, seconds=93.0, waits_for="", frames=512, frames_per_second=100.0),
        replace(first, seconds=94.0, waits_for="", frames=900, frames_per_second=100.0),
    ):
        terminal.update(shown)
    lines = capsys.readouterr().out.splitlines()
    assert [figures(line) for line in lines[:2]] == [[["0"]], [["2"]]]
    assert [line.split(": ")[-1] for line in lines[:2]] == [first.waits_for, "environments are made"]
    assert "100 frames/s" in lines[2]
    assert len(lines) == 3


def test_a_pipe_is_no_live_terminal_even_with_forced_colours(capsys):
    assert not is_live_terminal(Console(force_terminal=True))


def test_the_final_leaderboard_shows_every_member(capsys):
    print_leaderboard(view(*population(30)), plain=True)
    plain = capsys.readouterr().out
    assert "\x1b" not in plain
    assert "episodes" in plain
    console = terminal(80, 10)
    console.print(Leaderboard(view(*population(30))))
    for text in (plain, console.file.getvalue()):
        assert all(f"learning_rate 2.5e-4→{ranking.value(1e-4 * (i + 1))}" in text for i in range(30))
        assert "more" not in text


def test_a_decision_is_one_line():
    values = INITIAL | {"learning_rate": 3e-4, "gamma": 0.9}
    scores = {0: 33.0, 2: 229.0}
    copy = Change(0, "replace", 1, "copy", (2, 0), values=values)
    assert decision_line(copy, INITIAL, scores) == (
        "0 <- 2   33.00 -> 229.0   learning_rate 2.5e-4 -> 3e-4  gamma 0.99 -> 0.9"
    )
    assert decision_line(copy, INITIAL, scores, 60) == (
        "0 <- 2   33.00 -> 229.0   learning_rate 2.5e-4 -> 3e-4  +1"
    )
    assert len(decision_line(copy, INITIAL, scores, 20)) <= 20
    old = replace(copy, source=(2, 5), remembered=True)
    assert decision_line(old, INITIAL, scores).startswith("0 <- 2 (generation 5)   33.00 -> 229.0")
    mutated = Change(2, "mutate", 1, values=INITIAL | {"gamma": 0.9})
    assert decision_line(mutated, INITIAL, scores) == "2 mutated   229.0   gamma 0.99 -> 0.9"
    anew = Change(1, "restart", 1, "fresh", values=INITIAL)
    assert decision_line(anew, INITIAL, {1: None}) == "1 restarted   -"


@pytest.mark.parametrize("width", [20, 60, 80, 140])
@pytest.mark.parametrize("size", [1, 4, 40])
def test_the_live_picture_fits_its_width_and_height(width, size):
    shown = view(*population(size), seconds_left=1e6, comparison_in_seconds=3e5, env_id="x" * 90)
    assert max(map(len, ranking.table_lines(shown, width))) <= width
    lines = Leaderboard(shown, 24 - 6).lines(width)
    assert max(line.cell_len for line in lines) <= width
    assert len(lines) <= 23


@pytest.mark.parametrize("event", [False, True])
def test_a_terminal_that_became_narrower_is_cleaned_up(event):
    """The cursor goes up by the lines that the old table fills now, wrapped, and everything below is erased."""
    console = terminal(100, 40)
    display = Terminal([], plain=False, console=console)
    display.start()
    display.update(view(*population(4)))
    before = [line.cell_len for line in Leaderboard(view(*population(4))).lines(100)]
    console.width = 50
    at = len(console.file.getvalue())
    if event:
        display.event("a replacement")
    else:
        display.update(view(*population(4)))
    moved = console.file.getvalue()[at:]
    display.stop()
    wrapped = sum(-(-length // 50) for length in before)
    assert wrapped > len(before)
    assert moved.count("\x1b[1A") == wrapped - 1


# -- an output that is lost ---------------------------------------------------------------------------------


def lost(monkeypatch, kind):
    """Put a terminal or a pipe in the place of the standard output; return what closes its other end."""
    other, ours = pty.openpty() if kind == "terminal" else os.pipe()
    stream = os.fdopen(ours, "w", encoding="utf-8")
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setenv("TERM", "xterm")
    return lambda: os.close(other)


@pytest.mark.parametrize(("kind", "plain"), [("terminal", False), ("terminal", True), ("pipe", True)])
def test_training_goes_on_if_nobody_sees_the_output_any_more(monkeypatch, kind, plain):
    """A terminal that closes (without SIGHUP after `disown`), a `tee` that dies."""
    close = lost(monkeypatch, kind)
    shown = Terminal(["run folder: x"], plain=plain)
    shown.start()
    shown.update(view(member(0)))
    close()
    shown.update(view(member(0), seconds=100.0))
    shown.event("a line")
    shown.stop()
    print_leaderboard(view(member(0)), plain)
    print("from an environment of a serial run, or at the end of the command")
    sys.stdout.flush()
    sys.stdout.close()
