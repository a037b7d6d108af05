"""What the displays share: the ranking, changed values, shares of processor time, and the leaderboard as lines of text.

    supervisor --- RunView, about once a second ---+--> tensorboard.TensorBoard   TensorBoard event files
                                                   +--> terminal.Terminal         live table or plain lines
    supervisor --- last RunView -------------------+--> summary.summary           content of summary.json

A display consumes views, produces text or files, and waits for nothing.

The leaderboard shows members by rank with their values, speed, and the run's statistics. It is laid out by hand because
rich's Table took 5 ms per view for 8 members (it measures and wraps every cell); this takes 1 ms. Narrow terminals get
fewer columns, and as many changed values as fit into the rest of the line.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pbt_rl.controllers.hypers import SHAPING
from pbt_rl.controllers.objectives import mean, spread
from pbt_rl.display import replayed
from pbt_rl.display.view import MemberView, RunView, run_statistics

WAITING = "waiting"
"""The stage that is idle time."""
GPU_LEARNING = "learning on the GPU"
"""The stage that is no thread's: from the beginning of an update to its end on the device."""


@dataclass(frozen=True)
class Standing:
    """Summary of the population's objectives. `spread` is the standard deviation over the members (not of a sample).

    `best` is of all members. Mean and spread are of those that are not stopped, if there are any, since stopped members
    do not change.
    """

    best: float
    mean: float
    spread: float


def known_objective(member: MemberView) -> float | None:
    """Return the member's objective; None if there is none yet, or if it is NaN or infinite."""
    objective = member.objective
    return None if objective is None or not math.isfinite(objective) else objective


def drawn_objective(member: MemberView) -> float | None:
    """Return the objective for a curve: None while its window holds only the shortest episodes since a change."""
    return known_objective(member) if member.complete else None


def ranked(members: Sequence[MemberView]) -> list[MemberView]:
    """Return the best first, then members without an objective, then stopped ones; ties by id.

    Members that have played final games come before all others, by these; last of them those whose mean is not finite.
    """

    def key(member: MemberView) -> tuple[bool, bool, bool, float, int]:
        final = member.final
        if final is not None:
            finite = math.isfinite(final.mean)
            return False, False, not finite, -final.mean if finite else 0.0, member.member
        objective = known_objective(member)
        return True, member.stopped, objective is None, -(objective or 0.0), member.member

    return sorted(members, key=key)


def best_member(members: Sequence[MemberView]) -> int | None:
    """Return the id of the member with the highest objective, stopped or not, no control; ties go to the lower id.

    After final games it is the best one of those, unless the mean of none is finite. None while no member has an
    objective.
    """
    members = [m for m in members if not m.control]
    final = [
        (-m.final.mean, m.member) for m in members if m.final is not None and math.isfinite(m.final.mean)
    ]
    if final:
        return min(final)[1]
    known = [(-objective, m.member) for m in members if (objective := known_objective(m)) is not None]
    return min(known)[1] if known else None


def standing(members: Sequence[MemberView], *, control: bool = False) -> Standing | None:
    """Summarise the known objectives of the population, or of its controls; None if there are none."""
    members = [m for m in members if m.control == control]
    all_known = [(m, objective) for m in members if (objective := known_objective(m)) is not None]
    if not all_known:
        return None
    best = max(objective for _, objective in all_known)
    known = [x for m, x in all_known if not m.stopped] or [x for _, x in all_known]
    return Standing(best, mean(known), spread(known))


def busy_shares(busy_threads: Mapping[str, float]) -> dict[str, float]:
    """Return stage -> share of all busy threads, without those that wait; empty if nothing was busy."""
    busy = {stage: threads for stage, threads in busy_threads.items() if stage not in (WAITING, GPU_LEARNING)}
    total = sum(busy.values())
    return {stage: threads / total for stage, threads in busy.items()} if total > 0 else {}


def differing(members: Sequence[MemberView]) -> frozenset[str]:
    """Return the names of the values that differ between members now."""
    seen: dict[str, float] = {}
    names = set()
    for member in members:
        for name, value in member.values.items():
            if seen.setdefault(name, value) != value:
                names.add(name)
    return frozenset(names)


def shown_values(member: MemberView, different: frozenset[str]) -> list[str]:
    """Return the names to show: changed since the start (largest relative change first), then `different` ones."""

    def change(name: str) -> float:
        now, then = member.values[name], member.initial.get(name, member.values[name])
        if now == then:
            return 0.0
        return abs(math.log(now / then)) if now * then > 0 else math.inf

    changes = {name: change(name) for name in member.values}
    names = [name for name in changes if changes[name] > 0 or name in different]
    return sorted(names, key=lambda name: -changes[name])


GAP = "  "
SEPARATOR = " | "
UNKNOWN = "-"
CONTROL = "control"
YOUNG = "~"
"""Before an objective whose window holds only the shortest episodes since the member's change."""


@dataclass(frozen=True)
class Column:
    """One column. wide: shown only on wide terminals."""

    title: str
    cell: Callable[[MemberView], str]
    wide: bool = False


def _stat(name: str) -> Callable[[MemberView], str]:
    return lambda member: number(member.stats.get(name))


def _objective(member: MemberView) -> str:
    known = known_objective(member)
    return number(known) if member.complete or known is None else YOUNG + number(known)


COLUMNS = (
    Column("member", lambda m: str(m.member)),
    Column("objective", _objective),
    Column("episodes", lambda m: count(m.episodes)),
    Column("return", _stat("raw_return"), wide=True),
    Column("length", _stat("length_steps"), wide=True),
    Column("gen", lambda m: str(m.generation)),
    Column("frames", lambda m: count(m.frames)),
    Column("entropy", _stat("entropy"), wide=True),
    Column("kl", _stat("kl"), wide=True),
)
MATCHUP_COLUMNS = (Column("elo", _stat("elo")), Column("wins", _stat("win_rate")))
"""Shown only if members play games: the rating, and the share of the last games that was won."""
STATUS = Column("status", lambda m: " ".join(filter(None, [CONTROL * m.control, m.status])))
"""Shown only if a member has one, or is a control."""
FINAL = Column("final", lambda m: number(None if m.final is None else m.final.mean))
"""Shown only after final games: their mean objective."""
VALUES_TITLE = "values (start→now)"
WIDE_COLUMNS = 110
"""Width of a terminal, in characters, from which on the wide columns are shown."""


def table_lines(view: RunView, width: int, max_members: int | None = None) -> list[str]:
    """Return the header and one line per member, best first, at most `width` characters each.

    Of more than `max_members` members the best are shown, and the last line counts the rest.
    """
    members = ranked(view.members)
    hidden = 0
    if max_members is not None and len(members) > max_members:
        hidden = len(members) - max(max_members - 1, 1)
        members = members[: len(members) - hidden]
    columns = [column for column in COLUMNS if not column.wide or width >= WIDE_COLUMNS]
    if view.seats > 1:
        columns[2:2] = MATCHUP_COLUMNS
    if any(member.final for member in view.members):
        columns.insert(1, FINAL)
    if any(member.status or member.control for member in view.members):
        columns.append(STATUS)
    table = [["#", *(column.title for column in columns)]]
    table += [[str(rank), *(column.cell(m) for column in columns)] for rank, m in enumerate(members, start=1)]
    widths = [max(map(len, cells)) for cells in zip(*table, strict=True)]
    lines = [GAP.join(cell.rjust(w) for cell, w in zip(cells, widths, strict=True)) for cells in table]

    room = width - len(lines[0]) - len(GAP)
    different = differing(view.members)
    last = [VALUES_TITLE, *(_values_cell(member, different, room) for member in members)]
    lines = [(line + GAP + cell).rstrip()[:width] for line, cell in zip(lines, last, strict=True)]
    return [*lines, f"… {hidden} more"] if hidden else lines


def title_lines(view: RunView) -> list[str]:
    """Return a line with the environment and the run's name, and a line with time and speed."""
    return [
        SEPARATOR.join([view.env_id, view.name]),
        SEPARATOR.join([*progress(view), *time_left(view)]),
    ]


def progress(view: RunView) -> list[str]:
    """Return time, frames and speed, each as text."""
    speed = f"starting: {view.waits_for}" if view.waits_for else f"{view.frames_per_second:,.0f} frames/s"
    return [clock(view.seconds), f"{count(view.frames)} frames", speed]


def time_left(view: RunView) -> list[str]:
    """Return the time left as text; nothing if it is unknown."""
    bound = "at most " if view.seconds_left_at_most else ""
    return [] if view.seconds_left is None else [f"{bound}{clock(view.seconds_left)} left"]


def next_comparison(view: RunView) -> list[str]:
    """Return when members are compared next as text; nothing if it is unknown."""
    if view.comparison_in_seconds is None:
        return []
    if view.comparison_in_seconds == 0:
        return ["next comparison waits for episodes"]
    return [f"next comparison in {clock(view.comparison_in_seconds)}"]


def footer_lines(view: RunView) -> list[str]:
    """Return the statistics of the run, and the CPU shares once they are known; a line each."""
    lines: dict[int, list[str]] = {0: [], 1: []}
    for shown, _ in run_statistics(view).values():
        if shown.text is not None:
            lines[shown.footer_line].append(shown.text(view))
    lines[0] += next_comparison(view)
    shares = sorted(busy_shares(view.busy_threads).items(), key=lambda item: -item[1])
    cpu = ["CPU: " + SEPARATOR.join(f"{stage} {share:.0%}" for stage, share in shares)] if shares else []
    return [
        *control_lines(view),
        *replayed.lines(view),
        *(SEPARATOR.join(texts) for texts in lines.values()),
        *cpu,
    ]


def _values_cell(member: MemberView, different: frozenset[str], room: int) -> str:
    """Return as many values as fit into `room` characters, largest change first, then the number of the others."""
    texts = [_change(member, name) for name in shown_values(member, different)]
    for shown in range(len(texts), 0, -1):
        rest = len(texts) - shown
        cell = GAP.join([*texts[:shown], *([f"+{rest}"] if rest else [])])
        if len(cell) <= room:
            return cell
    return f"{len(texts)} values"[: max(room, 0)] if texts else ""


def _change(member: MemberView, name: str) -> str:
    now, then = value(member.values[name]), value(member.initial.get(name, member.values[name]))
    return (
        f"{name.removeprefix(SHAPING)} {then}→{now}" if then != now else f"{name.removeprefix(SHAPING)} {now}"
    )


def number(x: float | None) -> str:
    """Format a measurement for a glance: 3 or 4 digits, thousands separated."""
    if x is None or not math.isfinite(x):
        return UNKNOWN
    if x != 0 and abs(x) < 0.1:
        return short_exponent(f"{x:.1e}") if abs(x) < 0.001 else f"{x:.4f}"
    if abs(x) < 100:
        return f"{x:.2f}"
    return f"{x:.1f}" if abs(x) < 10_000 else f"{x:,.0f}"


def value(x: float) -> str:
    """Format a hyperparameter: three digits; just below 1 (discounts, betas) as many as distinguish it from 1."""
    if 0.9 < x < 1:
        return f"{x:.{max(5, math.ceil(-math.log10(1 - x)) + 1)}f}".rstrip("0")
    if x != 0 and not 0.001 <= abs(x) < 100_000:
        mantissa, exponent = f"{x:.2e}".split("e")
        return short_exponent(f"{mantissa.rstrip('0').rstrip('.')}e{exponent}")
    return f"{x:.3g}" if abs(x) < 1000 else f"{x:.0f}"


def short_exponent(text: str) -> str:
    """Shorten `2.5e-04` to `2.5e-4`."""
    mantissa, exponent = text.split("e")
    return f"{mantissa}e{int(exponent)}"


def count(n: int) -> str:
    """Format a count: 950, 12.3k, 4.56M, 1.23G."""
    for size, suffix in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if n >= size * 0.9995 and n >= 1000:  # 999.5 k and more round up to 1.00 M
            return f"{n / size:#.3g}".rstrip(".") + suffix
    return str(n)


def clock(seconds: float) -> str:
    """Format a duration: h:mm:ss."""
    whole = max(0, round(seconds))
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def control_lines(view: RunView) -> list[str]:
    """Return a line with both groups beside each other; none without controls, or before both have an objective."""
    own, others = standing(view.members), standing(view.members, control=True)
    if own is None or others is None:
        return []
    groups = (("population", own), (CONTROL, others))
    return [
        "in training: "
        + SEPARATOR.join(
            f"{name}: best {number(s.best)}, mean {number(s.mean)} ± {number(s.spread)}" for name, s in groups
        )
    ]
