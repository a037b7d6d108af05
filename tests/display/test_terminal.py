"""The terminal, live and plain."""

import io
import os
import pty
import sys
from pathlib import Path

import pytest
from rich.console import Console

from pbt_rl.actors.messages import Applied
from pbt_rl.display.ranking import clock, count, footer_lines, number, table_lines, value
from pbt_rl.display.terminal import Leaderboard, Terminal, applied_text, is_live_terminal, print_leaderboard
from tests.helpers.views import member, view


def population(size):
    return [member(i, float(i), learning_rate=1e-4 * (i + 1), gamma=0.98) for i in range(size)]


def terminal(width=80, height=24):
    return Console(
        file=io.StringIO(), force_terminal=True, width=width, height=height, highlight=False, emoji=False
    )


def test_the_table_ranks_members_and_shows_changed_values():
    lines = table_lines(view(member(0, 1.0), member(1, 4.0, learning_rate=3.1e-4), member(2, None)), 80)
    assert [line.split()[:3] for line in lines] == [
        ["#", "member", "objective"],
        ["1", "1", "4.00"],
        ["2", "0", "1.00"],
        ["3", "2", "-"],
    ]
    assert lines[1].endswith("learning_rate 2.5e-4→3.1e-4")
    assert lines[2].endswith("learning_rate 2.5e-4")
    assert "gamma" not in "".join(lines)


def test_wide_terminals_show_more_columns():
    narrow, wide = (table_lines(view(member(0)), width)[0] for width in (80, 140))
    assert "entropy" in wide
    assert "entropy" not in narrow


@pytest.mark.parametrize("width", [20, 60, 80, 140])
@pytest.mark.parametrize("size", [1, 4, 20])
def test_no_line_is_wider_than_the_terminal(width, size):
    assert max(map(len, table_lines(view(*population(size)), width))) <= width


def test_values_that_do_not_fit_are_counted():
    moved = member(0, learning_rate=1e-3, gamma=0.9, shaping__life_lost=-1.1, unroll=16.0)
    assert table_lines(view(moved), 80)[1].endswith("learning_rate 2.5e-4→0.001  +3")
    assert table_lines(view(moved), 200)[1].endswith("gamma 0.99→0.9")


def test_members_that_do_not_fit_are_counted():
    lines = table_lines(view(*population(16)), 80, max_members=5)
    assert len(lines) == 1 + 5
    assert lines[-1] == "… 12 more"
    assert len(table_lines(view(*population(5)), 80, max_members=5)) == 1 + 5


def test_a_stopped_member_is_marked():
    lines = table_lines(view(member(0, stopped=True, learning_rate=1e-3)), 90)
    assert lines[0].endswith("frames   status  values (start→now)")
    assert lines[1].endswith("stopped  learning_rate 2.5e-4→0.001")


def test_the_footer_counts():
    assert footer_lines(view()) == [
        "replacements 3 | mutations 5 | actors 2 (1 restarted), learners replaced 1",
        "rollouts 1 optimiser steps old, 6 at most | discarded rollouts 4",
        "CPU: environment 75% | learning 25%",
    ]
    assert len(footer_lines(view(busy_threads={}))) == 2


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (value(2.5e-4), "2.5e-4"),
        (value(3.142e-4), "3.14e-4"),
        (value(0.99985), "0.99985"),
        (value(0.99), "0.99"),
        (value(0.9999999), "0.9999999"),
        (value(0.999996), "0.999996"),
        (value(-0.01), "-0.01"),
        (value(0.0), "0"),
        (value(1024.0), "1024"),
        (number(None), "-"),
        (number(float("nan")), "-"),
        (number(-20.7), "-20.70"),
        (number(12345.6), "12,346"),
        (number(0.0), "0.00"),
        (number(4.2e-5), "4.2e-5"),
        (count(950), "950"),
        (count(999), "999"),
        (count(1000), "1.00k"),
        (count(12_345), "12.3k"),
        (count(999_999), "1.00M"),
        (count(4_560_000), "4.56M"),
        (count(10**9), "1.00G"),
        (clock(3661.4), "1:01:01"),
        (clock(-1), "0:00:00"),
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
    assert "… 24 more" in text
    picture = text[text.rindex("toy/identity") :]
    assert picture.count("\n") < 24
    assert "discarded rollouts 4" in picture


def test_plain_lines_come_every_ten_seconds(capsys):
    display = Terminal(["run runs/demo"], plain=True)
    display.start()
    for second in range(1, 31):
        display.update(view(member(0, 2.0), member(1, 4.0), seconds=float(second)))
    display.event("actor 1 restarted")
    display.stop()
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "run runs/demo",
        *(
            f"0:00:{s:02d} | 8.00k frames | 800 frames/s | objective best 4.00 mean 3.00 | replacements 3 | "
            "1:00:00 left"
            for s in (1, 11, 21)
        ),
        "actor 1 restarted",
    ]


def test_a_run_that_stands_still_has_a_plain_line_too(capsys):
    Terminal([], plain=True).update(view(member(0, None), frames_per_second=0.0, seconds_left=None))
    assert capsys.readouterr().out == "0:00:10 | 8.00k frames | 0 frames/s | no episode | replacements 3\n"


def test_a_pipe_is_no_live_terminal_even_with_forced_colours(capsys):
    assert not is_live_terminal(Console(force_terminal=True))


def test_plain_output_survives_a_poor_encoding(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    print_leaderboard(view(member(0, learning_rate=1e-3)), plain=True)
    Terminal([], plain=True).event("a child's → traceback \udcff")
    sys.stdout.flush()
    assert b"learning_rate 2.5e-4?0.001" in raw.getvalue()


def test_the_final_leaderboard_shows_every_member(capsys):
    print_leaderboard(view(*population(30)), plain=True)
    plain = capsys.readouterr().out
    assert "\x1b" not in plain
    assert "entropy" in plain
    console = terminal(80, 10)
    console.print(Leaderboard(view(*population(30))))
    for text in (plain, console.file.getvalue()):
        assert all(f"learning_rate 2.5e-4→{value(1e-4 * (i + 1))}" in text for i in range(30))
        assert "more" not in text


def test_an_applied_change_is_one_line():
    replacement = Applied(3, 0, 4, 2.34, {}, {}, {}, donor_unchanged=True)
    assert applied_text(replacement) == "replacement applied in 2.3 ms: member 3 <- member 0 (generation 4)"
    mutation = Applied(2, None, 1, 0.5, {}, {}, {}, donor_unchanged=True)
    assert applied_text(mutation) == "mutation applied in 0.5 ms: member 2 (generation 1)"


@pytest.mark.parametrize("width", [60, 80, 100])
def test_the_live_picture_fits_its_width_and_height(width):
    shown = view(*population(40), seconds_left=1e6, comparison_in_seconds=3e5, env_id="x" * 90)
    lines = Leaderboard(shown, 24 - 7).lines(width)
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


def test_a_replacement_is_shown_with_scores_and_values():
    proof = Applied(2, 1, 3, 0.25, {}, {}, {}, donor_unchanged=True)
    text = applied_text(proof, "objective 1.2 is below the donor's 4; mutated gamma 0.9 -> 0.95")
    assert text.endswith(": objective 1.2 is below the donor's 4; mutated gamma 0.9 -> 0.95")
    assert text.startswith("replacement applied in 0.2 ms: member 2 <- member 1 (generation 3)")


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


def test_a_full_disk_leaves_the_output_as_it_is(monkeypatch):
    with Path("/dev/full").open("w", encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        Terminal([], plain=True).event("a line")
        assert Path(f"/proc/self/fd/{stream.fileno()}").readlink() == Path("/dev/full")
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # what waits in the buffer can be written
