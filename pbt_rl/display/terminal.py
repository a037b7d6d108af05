"""The terminal: a live leaderboard, or plain lines where the output is no terminal."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.text import Text

from pbt_rl.display.leaderboard import footer_lines, number, progress, table_lines, time_left, title_lines
from pbt_rl.display.ranking import known_objective, ranked, standing
from pbt_rl.display.view import RunView
from pbt_rl.wire.messages import Applied, SlotChange

PLAIN_GAP_SECONDS = 10.0
_LINES_AROUND_MEMBERS = 7
"""Two of the title, the header, three of the footer, the cursor's."""


class Terminal:
    """Shows views and events. Not for use from several threads; `stop` belongs into a `finally`.

    On a terminal the table is redrawn in place and events scroll above it; `stop` removes the table, so that
    the final leaderboard stands alone. Elsewhere (a file, a pipe, a dumb terminal) every event is a line, and
    every ten seconds one line says how the run stands.
    """

    def __init__(
        self, facts: Sequence[str], *, plain: bool | None = None, console: Console | None = None
    ) -> None:
        """facts: lines to print at the start, such as the run's folder. plain: None looks at the output."""
        self._console = console or Console(highlight=False, emoji=False)
        self._facts = facts
        self.plain = not is_live_terminal(self._console) if plain is None else plain
        self._live: Live | None = None
        self._next_plain_seconds = -math.inf

    def start(self) -> None:
        """Print the facts and, on a terminal, take over its last lines."""
        for fact in self._facts:
            self.event(fact)
        if not self.plain:
            # No refresh thread: the table is drawn when a view comes, and at no other time.
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()

    def update(self, view: RunView) -> None:
        """Show the view (plain: if ten seconds of the run have passed since the last line)."""
        if self._live is not None:
            max_members = max(1, self._console.height - _LINES_AROUND_MEMBERS)
            self._live.update(Leaderboard(view, max_members), refresh=True)
        elif self.plain and view.seconds >= self._next_plain_seconds:
            self._next_plain_seconds = view.seconds + PLAIN_GAP_SECONDS
            self.event(plain_line(view))

    def event(self, text: str) -> None:
        """Print a line (or a traceback), above the table where there is one."""
        if self.plain:
            _print_plain(text)
        else:
            self._console.print(Text(text))

    def stop(self) -> None:
        """Give the terminal back. May be called twice."""
        if self._live is not None:
            self._live.stop()
            self._live = None


@dataclass(frozen=True)
class Leaderboard:
    """A view as a rich renderable, as wide as the console that draws it."""

    view: RunView
    max_members: int | None = None
    """Lines for members; None: all of them."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in title_lines(self.view):
            yield Text(line, style="bold")
        header, *rows = table_lines(self.view, options.max_width, self.max_members)
        yield Text(header, style="bold cyan underline", no_wrap=True)
        for row, member in zip(rows, ranked(self.view.members), strict=False):
            best = row is rows[0] and known_objective(member) is not None and not member.stopped
            yield Text(row, style="dim" if member.status else "green" if best else "", no_wrap=True)
        for line in footer_lines(self.view):
            yield Text(line, style="dim")


def leaderboard(view: RunView) -> RenderableType:
    """All members, ranked, with title and footer."""
    return Leaderboard(view)


def print_leaderboard(view: RunView, plain: bool) -> None:
    """Print the final leaderboard: with colours as wide as the terminal, or plain and as wide as it needs."""
    if plain:
        lines = [*title_lines(view), *table_lines(view, width=1000), *footer_lines(view)]
        _print_plain("\n".join(lines))
    else:
        Console(highlight=False, emoji=False).print(leaderboard(view))


def is_live_terminal(console: Console) -> bool:
    """Whether a table can be redrawn in place.

    That takes a real terminal (FORCE_COLOR alone does not make one) that knows the signs of the table.
    """
    return console.is_interactive and sys.stdout.isatty() and console.encoding.startswith("utf")


def plain_line(view: RunView) -> str:
    """How the run stands, on one short line."""
    objectives = standing(view.members)
    leading = (
        f"objective best {number(objectives.best)} mean {number(objectives.mean)}"
        if objectives
        else "no episode"
    )
    return " | ".join([*progress(view), leading, f"replacements {view.replacements}", *time_left(view)])


def applied_text(applied: Applied) -> str:
    """The event line of an applied decision."""
    what = "mutation" if applied.donor is None else "replacement"
    parked = ", parked" if applied.parked else ""
    source = "" if applied.donor is None else f" <- member {applied.donor}"
    return (
        f"{what} applied in {applied.milliseconds:.1f} ms: member {applied.member}{source} "
        f"(generation {applied.generation}{parked})"
    )


def slot_text(pack: int, change: SlotChange) -> str:
    """The event line of a slot that changes hands."""
    slot = f"slot {change.slot} of learner {pack}"
    if change.enters is None:
        return f"member {change.leaves} leaves {slot}; nobody waits for it"
    return f"member {change.enters} takes {slot}" + (
        "" if change.leaves is None else f" from member {change.leaves}"
    )


def _print_plain(text: str) -> None:
    """Print whatever the text holds: a sign that the output's encoding lacks becomes a question mark."""
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding), flush=True)
