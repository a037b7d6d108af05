"""Terminal display: a live leaderboard, or plain lines if the output is not a terminal.

This module also contains functions that format decisions, and a wrapper of standard output. If the output is closed,
training continues.
"""

from __future__ import annotations

import errno
import math
import os
import shlex
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, cast

from rich.console import Console, ConsoleOptions, RenderResult
from rich.control import Control
from rich.live import Live
from rich.segment import ControlType
from rich.text import Text

from pbt_rl.config import Config
from pbt_rl.controllers.changes import Change
from pbt_rl.controllers.hypers import Values
from pbt_rl.display import ranking
from pbt_rl.display.view import Evaluation, RunView

UNITS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))


def counted(number: int, thing: str, plural: str = "") -> str:
    """Format a number with its noun, such as `1 actor` or `2 actors`. plural: plural of the noun, by default with s."""
    return f"{number} {thing if number == 1 else plural or thing + 's'}"


def age(seconds: float) -> str:
    """Format a duration in its largest unit, such as `3 h`."""
    for size, unit in UNITS:
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return "0 s"


def in_words(reason: str, change: Change) -> str:
    """Return the text that displays show as the reason of a decision.

    reason: reason in the journal. change: change of the member by the decision.
    """
    if change.score is not None and change.completed:
        return f"trained to the end, with a score of {change.score:.4g}"
    if change.score is not None and change.place is not None:
        place, members = change.place
        return f"evicted with a score of {change.score:.4g}, rank {place} of {members}"
    return reason


LOST = (errno.EIO, errno.EPIPE)
"""Errors of a write to a closed terminal, or to a pipe whose reader has ended. These errors are permanent."""


class Output:
    """Output stream that drops text if writing fails, for example because the disk is full.

    If the terminal was closed or the pipe's reader has died, the stream's file descriptor is redirected to /dev/null.
    Environments of a serial run then print to /dev/null, too.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write the text. Ignore OS errors."""
        self._attempt(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        """Flush the stream. Ignore OS errors."""
        self._attempt(self._stream.flush)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _attempt(self, act: Callable[[], object]) -> None:
        try:
            act()
        except OSError as error:
            if error.errno in LOST:
                self._replace()

    def _replace(self) -> None:
        with suppress(OSError):  # a user's stream may have no file descriptor
            number = self._stream.fileno()
            nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            os.dup2(nowhere, number)
            os.close(nowhere)


PLAIN_GAP_SECONDS = 10.0
PLAIN_WIDTH = 200
"""Maximum characters of a line about a decision in plain output."""
TREND_SECONDS = 60
LEAST_TREND_SECONDS = 10
_LINES_AROUND_MEMBERS = 6
"""Number of terminal lines that show no member: two for the title, one for the header, two for the footer, one for the
cursor."""


class Terminal:
    """Display of views and events. Call all methods from the same thread, and call `stop` in a `finally`.

    On a terminal, the table is redrawn in place, and events scroll above the table. `stop` removes the table. On other
    outputs (file, pipe, dumb terminal), each event is a line, and a line summarises the run every ten seconds. During
    start-up, each new stage of the start-up is a line.
    """

    def __init__(
        self, heading: Sequence[str], *, plain: bool | None = None, console: Console | None = None
    ) -> None:
        """heading: lines to print at the start, such as the run's folder.

        plain: print lines instead of a table. None: print lines if the output is not a terminal.
        """
        self._console = console or _console()
        self.heading = heading
        self.plain = not is_live_terminal(self._console) if plain is None else plain
        self._live: Live | None = None
        self._next_plain_seconds = -math.inf
        self._waited_for = ""
        self._scores: deque[tuple[float, float]] = deque()
        """Pairs (training seconds, best score) of the last minute."""
        self._shown: Leaderboard | None = None
        self._drawn: list[int] = []
        """Width of each line of the table on the screen, in terminal cells."""
        self._drawn_width = 0

    def start(self) -> None:
        """Print the heading and, on a terminal, start the live table."""
        for line in self.heading:
            self.event(line)
        if not self.plain:
            # No refresh thread: the table is drawn only when a view arrives.
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()

    def update(self, view: RunView) -> None:
        """Show a view. In plain output, print a line only every ten seconds and at each new stage of the start-up."""
        if self._live is not None:
            max_members = max(1, self._console.height - _LINES_AROUND_MEMBERS)
            self._follow_resize()
            self._shown = Leaderboard(view, max_members, self._trend(view))
            self._live.update(self._shown, refresh=True)
            self._note_drawn()
        elif self.plain and (view.seconds >= self._next_plain_seconds or view.waits_for != self._waited_for):
            self._waited_for = view.waits_for
            self._next_plain_seconds = view.seconds + PLAIN_GAP_SECONDS
            self.event(plain_line(view))

    def _trend(self, view: RunView) -> str:
        """Format the change of the best score over the last minute. Return "" if the change is unknown."""
        named, now, scores = ranking.best_member(view.members), view.training_seconds, self._scores
        score = next((ranking.drawn_objective(m) for m in view.members if m.member == named), None)
        if score is None:
            return ""
        scores.append((now, score))
        while scores[0][0] < now - TREND_SECONDS:
            scores.popleft()
        since, change = now - scores[0][0], score - scores[0][1]
        told = f"{'+' * (change >= 0)}{ranking.number(change)} in {since:.0f} s"
        return told if since >= LEAST_TREND_SECONDS else ""

    def _follow_resize(self) -> None:
        """Erase additional lines of the table if the terminal became narrower.

        A narrower terminal wraps the lines of the table. Call this before printing, because rich does not count wrapped
        lines.
        """
        width = self._console.width
        if width < self._drawn_width:
            lines = sum(max(1, math.ceil(length / width)) for length in self._drawn)
            wrapped = ((ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_UP, 1)) * (
                lines - len(self._drawn)
            )
            self._console.control(Control(ControlType.CARRIAGE_RETURN, *wrapped))
            self._drawn_width = width

    def _note_drawn(self) -> None:
        """Record the width and the lines of the table on the screen."""
        self._drawn_width = self._console.width
        lines = [] if self._shown is None else self._shown.lines(self._drawn_width)
        self._drawn = [text.cell_len for text in lines]

    def event(self, text: str) -> None:
        """Print a text, such as a line or a traceback. If there is a table, the text appears above it."""
        if self.plain:
            _print_plain(text)
        else:
            if self._live is not None:
                self._follow_resize()
            self._console.print(Text(text))
            self._note_drawn()

    def decision(self, change: Change, before: Values, scores: Mapping[int, float | None]) -> None:
        """Print an applied decision as one line. The parameters are those of `decision_line`."""
        width = PLAIN_WIDTH if self.plain else self._console.width
        self.event(decision_line(change, before, scores, width))

    def stop(self) -> None:
        """Remove the table from the terminal. Safe to call twice."""
        if self._live is not None:
            self._live.stop()
            self._live = None


@dataclass(frozen=True)
class Leaderboard:
    """Leaderboard that `rich` can print, as wide as the console."""

    view: RunView
    max_members: int | None = None
    """Maximum number of member lines. None: a line for each member."""
    trend: str = ""
    """Text about the change of the best score."""
    over: bool = False
    """True after the end of the run. The title then leaves out the best member, which the caller prints below."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from self.lines(options.max_width)

    def lines(self, width: int) -> list[Text]:
        """Return the lines, each at most `width` terminal cells wide."""
        header, *rows = ranking.table_lines(self.view, width, self.max_members)
        styled = [(line, "bold") for line in ranking.title_lines(self.view, self.trend)[self.over :]]
        styled.append((header, "bold cyan underline"))
        for row, member in zip(rows, ranking.ranked(self.view.members), strict=False):
            best = row is rows[0] and ranking.known_objective(member) is not None and not member.stopped
            style = "magenta" if member.control else "green" if best else ""
            styled.append((row, "dim" if member.status else style))
        styled += [(line, "dim") for line in ranking.footer_lines(self.view)]
        texts = [Text(line, style=style, no_wrap=True) for line, style in styled]
        for text in texts:
            text.truncate(width, overflow="ellipsis")
        return texts


def print_leaderboard(view: RunView, plain: bool) -> None:
    """Print the leaderboard at the end of a run. plain: print it without colours, and as wide as needed."""
    if plain:
        lines = [
            *ranking.title_lines(view)[1:],
            *ranking.table_lines(view, width=1000),
            *ranking.footer_lines(view),
        ]
        _print_plain("\n".join(lines))
    else:
        _console().print(Leaderboard(view, over=True))


def is_live_terminal(console: Console) -> bool:
    """Check whether a table can be redrawn in place: the output is a terminal, and its encoding is a UTF encoding."""
    return console.is_interactive and sys.stdout.isatty() and console.encoding.startswith("utf")


def plain_line(view: RunView) -> str:
    """Summarise the run in one short line."""
    if view.waits_for:
        return ranking.title_lines(view)[0]
    said = [*ranking.progress(view), ranking.best(view), ranking.replacements(view), ranking.time_left(view)]
    return ranking.SEPARATOR.join(filter(None, said))


def decision_line(
    change: Change, before: Values, scores: Mapping[int, float | None], width: int = PLAIN_WIDTH
) -> str:
    """Format a change in at most `width` characters: member, donor, scores of both, changed values.

    A change without a donor has one score.
    before: values of the member before the change. scores: member -> score in the comparison.
    """
    who, score = f"{change.member}", ranking.number(scores.get(change.member))
    if change.source is None:
        who += " restarted" if change.weights == "fresh" else " mutated"
    else:
        donor, generation = change.source
        who += f" <- {donor}" + (f" (generation {generation})" if change.remembered else "")
        score += f" -> {ranking.number(scores.get(donor))}"
    text = f"{who}   {score}   "
    changed = ranking.changed_values(before, change.values or before, width - len(text))
    return (text + changed).rstrip()[:width]


def next_commands(folder: Path, config: Config, ended: str, *, trained: bool, saved: bool) -> list[str]:
    """Return useful shell commands for a run that has ended, each with a comment.

    ended: reason for the end, such as `frames`. trained: True if the run has frames. saved: True if there is a
    checkpoint.
    """
    twice = {
        "frames": f" --train-for-frames {2 * config.train_for_frames}",
        "seconds": f" --train-for-seconds {2 * config.train_for_seconds:g}",
    }
    run, lines = shlex.quote(str(folder)), []
    if trained:
        lines.append(f"pbt-rl report {run}  # one page of curves and ancestry")
    if saved:
        lines.append(f"pbt-rl eval {run}  # play its best member")
    if saved and ended not in ("objective", "all members are done"):
        lines.append(f"pbt-rl resume {run}{twice.get(ended, '')}  # continue")
    return lines


def evaluation_text(evaluation: Evaluation) -> str:
    """Format a line about an evaluation during training."""
    return (
        f"evaluation at {evaluation.frames:,} frames: member {evaluation.member} has {evaluation.mean:.4g} "
        f"(std {evaluation.spread:.4g}) in {counted(evaluation.episodes, 'evaluation episode')}"
    )


def _console() -> Console:
    return Console(file=cast("TextIO", Output(sys.stdout)), highlight=False, emoji=False)


def _print_plain(text: str) -> None:
    """Print a text. Print `?` instead of characters that the output's encoding cannot represent."""
    encoding = sys.stdout.encoding or "utf-8"
    print(
        text.encode(encoding, "replace").decode(encoding), file=cast("TextIO", Output(sys.stdout)), flush=True
    )
