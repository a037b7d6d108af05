"""What a run says before its first frames."""

from dataclasses import replace

from pbt_rl.display.terminal import Terminal
from tests.helpers.views import member, view


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
    assert lines[:2] == ["starting (0 s): the learner loads torch", "starting (2 s): environments are made"]
    assert "100 frames/s in all" in lines[2]
    assert len(lines) == 3
