"""Figures of searches over configurations, and of members that share slots by turns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from pbt_rl.report.read import History, Turn
from pbt_rl.report.style import FAINT, INK, TOP, Drawn, ink_on, new_figure, time_axis

NO_SLOTS = "The run did not record which member held which slot."
OWN_SLOTS = "Every member held its own slot from the start to the end."
NO_PHASES = "This run is not a search: its members are not trained phase by phase."


def occupancy(history: History) -> Drawn:
    """Draw the turns in each slot: a bar is a member, its colour the phase (without phases, the member)."""
    if not history.turns:
        return NO_SLOTS
    if len(history.turns) == history.slots and not history.is_search:
        return OWN_SLOTS
    height = min(8.0, max(1.8, 0.24 * history.slots + 1.1))
    figure = new_figure(height)
    axes = figure.subplots()
    unit = time_axis(axes, history.seconds)
    colours = _colours(history)
    font_size = min(7.5, max(4.5, 0.5 * 72 * height / (history.slots + 5)))
    for turn in history.turns:
        _draw_turn(axes, history, turn, unit, colours, font_size)
    axes.set_ylim(history.slots - 0.4, -0.6)
    axes.yaxis.set_major_locator(MaxNLocator(12, integer=True))
    axes.set_ylabel("slot")
    axes.grid(visible=False)
    if history.is_search:
        shown = sorted({round(i) for i in np.linspace(0, len(colours) - 1, min(len(colours), 14))})
        axes.legend(
            handles=[Patch(color=colours[i], label=f"phase {i}" if i == 0 else f"{i}") for i in shown],
            ncols=14,
            loc="lower left",
            bbox_to_anchor=(0, 1.0),
            borderaxespad=0.2,
            handlelength=1,
        )
    return figure


def _colours(history: History) -> list[str]:
    """Return a colour per phase of a search, else per member."""
    members = (*history.last, *(turn.member for turn in history.turns))
    count = 1 + max((p.number for p in history.phases), default=max(members))
    shares = [number / max(count - 1, 1) for number in range(count)]
    if history.is_search:
        return [to_hex(mpl.colormaps["viridis_r"](0.08 + 0.92 * share)) for share in shares]
    return [to_hex(mpl.colormaps["turbo"](share)) for share in shares]


def _draw_turn(
    axes: Axes, history: History, turn: Turn, unit: float, colours: Sequence[str], font_size: float
) -> None:
    pieces = list(_pieces(history, turn))
    for begin, end, number in pieces:
        axes.barh(
            turn.slot, (end - begin) / unit, 0.86, left=begin / unit, color=colours[number], linewidth=0
        )
    begin, seconds = turn.begin_seconds, turn.end_seconds - turn.begin_seconds
    axes.barh(
        turn.slot, seconds / unit, 0.86, left=begin / unit, fill=False, edgecolor="white", linewidth=0.8
    )
    seconds_per_inch = history.seconds / 7.5  # of the axes, about
    if seconds > seconds_per_inch * (0.02 + 0.011 * font_size * len(str(turn.member))):
        axes.annotate(
            f"{turn.member}",
            (begin / unit, turn.slot),
            xytext=(2, 0),
            textcoords="offset points",
            va="center",
            fontsize=font_size,
            color=ink_on(colours[pieces[0][2]]) if pieces else INK,
        )


def _pieces(history: History, turn: Turn) -> Iterator[tuple[float, float, int]]:
    """Yield begin, end and phase (without phases: the member) of the parts of a turn."""
    if not history.is_search:
        yield turn.begin_seconds, turn.end_seconds, turn.member
    for phase in sorted(history.phases, key=lambda p: p.begin_seconds):
        begin, end = max(turn.begin_seconds, phase.begin_seconds), min(turn.end_seconds, phase.end_seconds)
        if phase.member == turn.member and begin < end:
            yield begin, end, phase.number


def phases(history: History) -> Drawn:
    """Draw the scores at the end of each phase, and the number of members that began it."""
    if not history.is_search:
        return NO_PHASES
    figure = new_figure(4.6)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[1.6, 1])
    numbers = list(range(1 + max(p.number for p in history.phases)))
    _draw_scores(upper, history, numbers)
    _draw_counts(lower, history, numbers)
    return figure


def _draw_scores(axes: Axes, history: History, numbers: Sequence[int]) -> None:
    rng = np.random.default_rng(0)
    for outcome, colour, marker, label in (
        ("evicted", "#b91c1c", "x", "evicted"),
        ("on", TOP, "o", "continued"),
        ("completed", "#15803d", "D", "completed"),
    ):
        scored = [p for p in history.phases if p.outcome == outcome and p.score is not None]
        jitter = rng.uniform(-0.16, 0.16, len(scored))
        axes.scatter(
            [p.number + j for p, j in zip(scored, jitter, strict=True)],
            np.array([p.score for p in scored], dtype=float),
            s=18 if marker == "o" else 22,
            marker=marker,
            c=colour,
            alpha=0.8,
            linewidths=1.0 if marker == "x" else 0,
            label=f"{label} ({len(scored)})",
        )
    for number in numbers:
        scores = [p.score for p in history.phases if p.number == number and p.score is not None]
        if scores:
            axes.plot([number - 0.3, number + 0.3], [float(np.median(scores))] * 2, color=INK, linewidth=1.4)
    axes.plot([], [], color=INK, linewidth=1.4, label="median")
    axes.set_ylabel("score at the phase's end")
    axes.legend(ncols=4, loc="lower left", bbox_to_anchor=(0, 1.0), borderaxespad=0.2)


def _draw_counts(axes: Axes, history: History, numbers: Sequence[int]) -> None:
    began = [sum(p.number == n for p in history.phases) for n in numbers]
    bars = axes.bar(numbers, began, width=0.6, color=FAINT)
    axes.bar_label(bars, fontsize=7.5, label_type="center")
    if history.options.controller in ("hypertrick", "successive-halving"):
        rate = history.options.search.eviction_rate  # Heinrich and Frosio 2019, equation 1
        expected = [len(history.last) * (1 - rate) ** n for n in numbers]
        axes.plot(numbers, expected, color=TOP, marker=".", linewidth=1, label="expected: W0 (1 - r)^p")
        axes.legend(loc="upper right")
    axes.margins(y=0.15)
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.set_ylabel("members that began it")
    axes.set_xlabel("phase")
    axes.xaxis.set_major_locator(MaxNLocator(20, integer=True))
    axes.grid(visible=False, axis="x")
