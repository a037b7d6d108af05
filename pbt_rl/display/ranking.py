"""Ranking of members, changed values, shares of processor time, and the leaderboard as lines of text.

    supervisor --- RunView, every 1 to 10 s -------+--> tensorboard.TensorBoard   TensorBoard event files
                                                   +--> terminal.Terminal         live table or plain lines
    supervisor --- last RunView -------------------+--> scalars.summary           content of summary.json

A display converts views to text or files, and waits only for its own writes.

The leaderboard shows the best score, the next comparison, the members by rank with their values, and problems. On
narrow terminals, some columns and values are left out. For a view of 8 members, this module computes the layout in
1 ms, while rich's Table takes 5 ms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pbt_rl.controllers.events import GPU_LEARNING, WAITING
from pbt_rl.controllers.hypers import SHAPING, Values
from pbt_rl.controllers.objectives import by_score, mean, spread
from pbt_rl.display.view import MemberView, RunView


@dataclass(frozen=True)
class Standing:
    """Summary of the known objectives of the population, or of the control group.

    best: largest objective. mean, spread: mean and std over the members that are not stopped, because stopped members
    do not change. If all members with an objective are stopped, mean and spread are over these members.
    """

    best: float
    mean: float
    spread: float


def known_objective(member: MemberView) -> float | None:
    """Return the member's objective, or None if the objective is missing, NaN or infinite."""
    objective = member.objective
    return None if objective is None or not math.isfinite(objective) else objective


def drawn_objective(member: MemberView) -> float | None:
    """Return the member's objective for a curve, or None if the objective is unknown or not yet complete.

    An objective is complete when every environment has ended an episode since the member's last change.
    """
    return known_objective(member) if member.complete else None


def ranked(members: Sequence[MemberView]) -> list[MemberView]:
    """Sort members, best first, in this order:

    1. members with a final evaluation, by the mean of this evaluation; non-finite means last
    2. members that are not stopped, by objective; unknown objectives last
    3. stopped members, by objective; unknown objectives last

    Members with equal scores are sorted by id.
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
    """Return the id of the population's best member, even if this member is stopped. None if no member has a score.

    Controls do not count. See `by_score`.
    """
    members = [m for m in members if not m.control]
    final_scores = {m.member: m.final.mean for m in members if m.final is not None}
    return next(iter(by_score({m.member: m.objective for m in members}, final_scores)), None)


def standing(members: Sequence[MemberView], *, control: bool = False) -> Standing | None:
    """Summarise the known objectives. Return None without a known objective.

    control: True for the members of the control group, False for the members of the population.
    """
    members = [m for m in members if m.control == control]
    all_known = [(m, objective) for m in members if (objective := known_objective(m)) is not None]
    if not all_known:
        return None
    best = max(objective for _, objective in all_known)
    known = [x for m, x in all_known if not m.stopped] or [x for _, x in all_known]
    return Standing(best, mean(known), spread(known))


def busy_shares(busy_threads: Mapping[str, float]) -> dict[str, float]:
    """Return stage -> share of all busy CPU threads, without waiting threads and GPUs. Empty if no thread was busy."""
    busy = {stage: threads for stage, threads in busy_threads.items() if stage not in (WAITING, GPU_LEARNING)}
    total = sum(busy.values())
    return {stage: threads / total for stage, threads in busy.items()} if total > 0 else {}


def differing(members: Sequence[MemberView]) -> frozenset[str]:
    """Return the names of the values (hyperparameters and shaping) that currently differ between members."""
    seen: dict[str, float] = {}
    names = set()
    for member in members:
        for name, value in member.values.items():
            if seen.setdefault(name, value) != value:
                names.add(name)
    return frozenset(names)


def shown_values(then: Values, now: Values, different: frozenset[str] = frozenset()) -> list[str]:
    """Return the names of values to show: changed values, largest relative change first; then the names in `different`.

    then, now: values before and after the change. different: names of values that differ between members.
    """

    def change(name: str) -> float:
        new, old = now[name], then.get(name, now[name])
        if new == old:
            return 0.0
        return abs(math.log(new / old)) if new * old > 0 else math.inf

    changes = {name: change(name) for name in now}
    names = [name for name in changes if changes[name] > 0 or name in different]
    return sorted(names, key=lambda name: -changes[name])


def changed_values(
    then: Values, now: Values, room: int, different: frozenset[str] = frozenset(), arrow: str = " -> "
) -> str:
    """Format changed values, largest change first, in at most `room` characters.

    If the last N values do not fit, `+N` replaces them. If no value fits, the text is the number of values.
    then, now: values before and after the change. different: names of values that are shown even if they have not
    changed. arrow: text between an old and a new value.
    """
    names = shown_values(then, now, different)
    texts = [_change(name, then.get(name, now[name]), now[name], arrow) for name in names]
    for shown in range(len(texts), 0, -1):
        rest = len(texts) - shown
        text = GAP.join([*texts[:shown], *([f"+{rest}"] if rest else [])])
        if len(text) <= room:
            return text
    return f"{len(texts)} values"[: max(room, 0)] if texts else ""


def _change(name: str, then: float, now: float, arrow: str) -> str:
    old, new = two_values(then, now)
    return f"{name.removeprefix(SHAPING)} {new if old == new else old + arrow + new}"


GAP = "  "
SEPARATOR = " | "
UNKNOWN = "-"
CONTROL = "control"
YOUNG = "~"
"""Prefix of an incomplete score: some environment has not ended an episode since the member's last change."""


@dataclass(frozen=True)
class Column:
    """Column of the leaderboard.

    cell: returns the text for a member. least_width: minimum terminal width, in characters, at which the column is
    shown.
    """

    title: str
    cell: Callable[[MemberView], str]
    least_width: int = 0


def _stat(name: str) -> Callable[[MemberView], str]:
    return lambda member: number(member.stats.get(name))


def score(member: MemberView) -> str:
    """Format the objective of a member. While the objective is incomplete: `~` and the mean so far. Before any episode:
    `-`.
    """
    known = known_objective(member)
    if known is not None and member.complete:
        return number(known)
    so_far = number(member.early if known is None else known)
    return so_far if so_far == UNKNOWN else YOUNG + so_far


COLUMNS = (
    Column("member", lambda m: str(m.member)),
    Column("objective", score),
    Column("return", _stat("raw_return")),
    Column("length", _stat("length_steps"), least_width=70),
    Column("episodes", lambda m: count(m.episodes), least_width=100),
    Column("frames", lambda m: count(m.frames), least_width=60),
)
MATCHUP_COLUMNS = (Column("elo", _stat("elo")), Column("wins", _stat("win_rate")))
"""Columns of multi-agent environments: Elo rating, and win rate in recent games."""
ENDED = Column("ended", lambda m: f"{m.ended}/{m.environments}")
"""Column: number of environments that have ended an episode since the last change. Shown while an objective is
incomplete, until the final evaluation."""
STATUS = Column("status", lambda m: " ".join(filter(None, [CONTROL * m.control, m.status])))
"""Column: status of a member. Shown if a member has a status or is in the control group."""
FINAL = Column("final", lambda m: number(None if m.final is None else m.final.mean))
"""Column: mean objective in the final evaluation. Shown if a member has a final evaluation."""
VALUES_TITLE = "values (start→now)"


def table_lines(view: RunView, width: int, max_members: int | None = None) -> list[str]:
    """Return the header and one line per member, best first. Lines have at most `width` characters.

    If there are more than `max_members` members, only the best members are shown. The last line then contains the
    number of hidden members.
    """
    members = ranked(view.members)
    hidden = 0
    if max_members is not None and len(members) > max_members:
        hidden = len(members) - max(max_members - 1, 1)
        members = members[: len(members) - hidden]
    columns = [column for column in COLUMNS if width >= column.least_width]
    if view.agents > 1:
        columns[2:2] = MATCHUP_COLUMNS
    if any(member.final for member in view.members):
        columns.insert(1, FINAL)
    elif any(not (member.complete or member.stopped) for member in view.members):
        columns.insert(2, ENDED)
    if any(member.status or member.control for member in view.members):
        columns.append(STATUS)
    table = [[column.title for column in columns], *([c.cell(m) for c in columns] for m in members)]
    widths = [max(map(len, cells)) for cells in zip(*table, strict=True)]
    lines = [GAP.join(cell.rjust(w) for cell, w in zip(cells, widths, strict=True)) for cells in table]

    room = width - len(lines[0]) - len(GAP)
    different = differing(view.members)
    values = (changed_values(m.initial, m.values, room, different, "→") for m in members)
    lines = [
        (line + GAP + cell).rstrip()[:width]
        for line, cell in zip(lines, [VALUES_TITLE, *values], strict=True)
    ]
    return [*lines, f"… {hidden} more"] if hidden else lines


def title_lines(view: RunView, trend: str = "") -> list[str]:
    """Return two title lines. First line: best score, times. Second line: progress, names of environment and run.

    During the start-up, the first line is the present stage, and the second line has the names only.
    trend: text about the change of the best score.
    """
    if view.waits_for:
        return [
            f"starting ({view.stalled_seconds:.0f} s): {view.waits_for}",
            SEPARATOR.join([view.env_id, view.name]),
        ]
    return [
        SEPARATOR.join(filter(None, [best(view), trend, time_left(view), next_comparison(view)])),
        SEPARATOR.join(filter(None, [*progress(view), replacements(view), view.env_id, view.name])),
    ]


def best(view: RunView) -> str:
    """Format the objective of the best member. If no member has an objective yet: the best mean over ended episodes.

    Controls are left out.
    """
    members = [m for m in view.members if not m.control]
    named = best_member(members)
    early = [m for m in members if m.early is not None and math.isfinite(m.early)]
    if named is not None:
        (member,) = (m for m in members if m.member == named)
    elif early:
        member = max(early, key=lambda m: (m.early, -m.member))
    else:
        return "no episode has ended"
    of = f", {member.ended} of {member.environments} environments" if score(member)[0] == YOUNG else ""
    return f"best {score(member)} (member {member.member}{of})"


def progress(view: RunView) -> list[str]:
    """Return three texts: training time, frames per member, speed."""
    frames = [m.frames for m in view.members if not m.stopped] or [m.frames for m in view.members]
    least, most = min(frames), max(frames)
    each = count(least) if most <= 1.1 * least else f"{count(least)} to {count(most)}"
    speed = stalled(view) or f"{view.frames_per_second:,.0f} frames/s in all"
    return [clock(view.training_seconds), f"{each} frames each", speed]


def stalled(view: RunView) -> str:
    """Format the seconds without new frames, and the reason. Return "" if new frames arrive."""
    what = "learning a batch" if view.learns else "no frames"
    return f"{what} for {view.stalled_seconds:.0f} s" if view.stalled_seconds else ""


def replacements(view: RunView) -> str:
    """Format the number of replacements. Return "" for a single member."""
    return f"{view.replacements} replacement{'s' * (view.replacements != 1)}" if len(view.members) > 1 else ""


def time_left(view: RunView) -> str:
    """Format the remaining time. Return "" if this time is unknown."""
    bound = "at most " * view.seconds_left_at_most
    return "" if view.seconds_left is None else f"{bound}{clock(view.seconds_left)} left"


def next_comparison(view: RunView) -> str:
    """Format the time until the next comparison, or the reason why no time is given. Return "" if both are unknown."""
    until, left = view.comparison_in_seconds, view.seconds_left
    if not until:
        return "" if until is None else "comparison needs episodes"
    return (
        "no comparison before the end"
        if left is not None and until > left
        else f"comparison in {clock(until)}"
    )


MANY_DISCARDED = 0.05
"""Discarded rollouts are shown if their share of all rollouts is at least this number."""


OF_COLUMNS = "objective: mean of the compared episodes; return, length: mean of the newest episodes"
"""Explanation of the columns. Shown only if a complete member's objective differs from `MemberView.early`."""


def footer_lines(view: RunView) -> list[str]:
    """Return up to two lines: the counts of problems if there are problems, and `OF_COLUMNS` if it is needed."""
    discarded = view.discarded_rollouts if view.discarded_share >= MANY_DISCARDED else 0
    wrong = {
        "actors restarted": view.actors_restarted,
        "learners replaced": view.learners_replaced,
        f"rollouts discarded ({view.discarded_share:.0%} of all)": discarded,
    }
    said = SEPARATOR.join(f"{what}: {times}" for what, times in wrong.items() if times)
    both = [m for m in view.members if m.complete and m.early is not None and m.objective is not None]
    differ = any(score(m) != number(m.early) for m in both)
    return [*filter(None, [said, OF_COLUMNS * differ])]


def number(x: float | None) -> str:
    """Format a measurement, such as 1.2e-4, 0.0123, 12.34, 1234.5 or 12,345. Return `-` if unknown or not finite."""
    if x is None or not math.isfinite(x):
        return UNKNOWN
    if x != 0 and abs(x) < 0.1:
        return short_exponent(f"{x:.1e}") if abs(x) < 0.001 else f"{x:.4f}"
    if abs(x) < 100:
        return f"{x:.2f}"
    return f"{x:.1f}" if abs(x) < 10_000 else f"{x:,.0f}"


DIGITS, MOST_DIGITS = 3, 6


def value(x: float, digits: int = DIGITS) -> str:
    """Format a value. A value just below 1, such as a discount, gets enough digits to differ from 1.

    digits: number of significant digits.
    """
    if 0.9 < x < 1:
        decimals = max(digits + 2, math.ceil(-math.log10(1 - x)) + digits - 2)
        return f"{x:.{decimals}f}".rstrip("0")
    if x != 0 and not 0.001 <= abs(x) < 100_000:
        mantissa, exponent = f"{x:.{digits - 1}e}".split("e")
        return short_exponent(f"{mantissa.rstrip('0').rstrip('.')}e{exponent}")
    return f"{x:.{digits}g}" if abs(x) < 1000 else f"{x:.{digits - DIGITS}f}"


def two_values(then: float, now: float) -> tuple[str, str]:
    """Format a value before and after a change, with enough digits (at most `MOST_DIGITS`) to show the difference."""
    pairs = ((value(then, digits), value(now, digits)) for digits in range(DIGITS, MOST_DIGITS + 1))
    return next((pair for pair in pairs if pair[0] != pair[1]), (value(then), value(now)))


def short_exponent(text: str) -> str:
    """Remove zeros at the start of an exponent: `2.5e-04` becomes `2.5e-4`."""
    mantissa, exponent = text.split("e")
    return f"{mantissa}e{int(exponent)}"


def count(n: int) -> str:
    """Format a count, such as 950, 12.3k, 4.56M or 1.23G."""
    for size, suffix in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if n >= size * 0.9995 and n >= 1000:  # 999.5 k and more round up to 1.00 M
            return f"{n / size:#.3g}".rstrip(".") + suffix
    return str(n)


def in_time(seconds: float) -> str:
    """Format a duration in its two largest units: 5.81 s, 2 min 30 s, 3 h, 4 days 2 h."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    whole = round(seconds) if seconds < 3600 else 60 * round(seconds / 60)
    units = [("day", 86_400), ("h", 3600), ("min", 60), ("s", 1)]
    first = next(i for i, (_, size) in enumerate(units) if whole >= size)
    parts = []
    for name, size in units[first : first + 2]:
        number, whole = divmod(whole, size)
        plural = "s" * (name == "day" and number != 1)
        parts += [f"{number} {name}{plural}"] * bool(number)
    return " ".join(parts)


def clock(seconds: float) -> str:
    """Format a duration as m:ss, or h:mm:ss from one hour on."""
    whole = max(0, round(seconds))
    minutes = f"{whole // 3600}:{whole // 60 % 60:02d}" if whole >= 3600 else f"{whole // 60}"
    return f"{minutes}:{whole % 60:02d}"
