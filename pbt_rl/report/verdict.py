"""The first box of a report: the population beside its control group; and notes about the run's comparisons."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from html import escape
from math import comb
from statistics import fmean

from pbt_rl.controllers.lineage import LEVEL, Noise
from pbt_rl.display.terminal import counted
from pbt_rl.record.history import History
from pbt_rl.report.style import short

FEW_COMPARISONS, MANY_COMPARISONS = 10, 100
ENOUGH_REPLACEMENTS = 4
"""Of fewer the share that luck may have made means nothing."""


def control_box(history: History) -> str:
    """Return the HTML that compares the groups; empty for a run without controls."""
    if not history.controls:
        return ""
    own, others = scores(history)
    if not own or not others:
        text = "Not every group has a score yet: nothing can be compared."
        return f'<div class="box"><h2>Population and control group</h2><p>{text}</p></div>'
    starts = history.population
    halves = _halves(history, own.keys() | others.keys())
    best = _picked([own, own] if halves is None else [{m: h[m] for m in own} for h in halves], len(own))
    left_alone = _picked(
        [others, others] if halves is None else [{m: h[m] for m in others} for h in halves], starts
    )
    fewer = starts > len(others)
    low = (
        f" (too low: {counted(len(others), 'control')} cannot show what the best of {starts} draws reaches)"
        if fewer
        else ""
    )
    how = (
        "a member is picked by one half of them and scored by the other"
        if halves is not None
        else "the same games pick a member and score it: the best of each group was lucky, too"
    )
    judged = (
        f"fresh final games, {max(history.final.episodes.values())} episodes of each; {how}"
        if history.final is not None
        else "windows of training episodes, as no final games were played: the higher the luckier"
    )
    rows = [
        ("best of the population", f"{best:.4g}"),
        (f"best of {counted(starts, 'control')}, expected{low}", f"{left_alone:.4g}"),
        ("mean of the population's members", f"{fmean(own.values()):.4g}"),
        ("mean of the controls", f"{fmean(others.values()):.4g}"),
        ("frames of each member of the population, mean", short(_frames(history, control=False))),
        ("frames of each control, mean", short(_frames(history, control=True))),
    ]
    body = "".join(f"<tr><td>{escape(k)}</td><td class=number>{escape(v)}</td></tr>" for k, v in rows)
    gap = best - left_alone
    said = "as much as" if gap == 0 else f"{abs(gap):.4g} {'more' if gap > 0 else 'less'} than"
    alone = (
        f"{starts} members left alone, which {counted(len(others), 'control')} show too low"
        if fewer
        else "as many members left alone"
    )
    return (
        '<div class="box"><h2>Population and control group</h2>'
        f"<p>The best of the population scored {said} the best of {alone}.</p>"
        f'<table>{body}</table><p class="caption">Scores: {escape(judged)}. This is one run: it shows what '
        "happened with this seed, and cannot show whether the method helps on this task. For that the gap must hold "
        "over several seeds: <code>pbt-rl prove</code> trains them and says whether it does.</p></div>"
    )


def expected_best(scores: Sequence[float], k: int, picks: Sequence[float] | None = None) -> float:
    """Return the expected maximum of k of N scores x_1 <= ... <= x_N, over all ways to draw them.

    k <= N, without replacement: sum_i x_i C(i-1, k-1) / C(N, k), which is unbiased for the best of k new draws.
    k > N, with replacement: sum_i x_i ((i/N)^k - ((i-1)/N)^k), which is too low: N draws do not show what is rarer.
    picks: the expected score of the one that is best by these other numbers, which it is ordered by; of equal ones any.
    """
    by, count = scores if picks is None else picks, len(scores)
    equal: dict[float, list[float]] = {}
    for pick, score in zip(by, scores, strict=True):
        equal.setdefault(pick, []).append(score)
    ordered = [fmean(equal[pick]) for pick in sorted(by)]
    assert k >= 1
    assert count >= 1
    if k <= count:
        ways = comb(count, k)
        return sum(x * (comb(i, k - 1) / ways) for i, x in enumerate(ordered))
    return sum(x * (((i + 1) / count) ** k - (i / count) ** k) for i, x in enumerate(ordered))


def _picked(halves: Sequence[Mapping[int, float]], k: int) -> float:
    """Return the expected score of the best of k members: picked by one half of the games, scored by the other."""
    one, other = ([half[m] for m in sorted(half)] for half in halves)
    return fmean((expected_best(one, k, picks=other), expected_best(other, k, picks=one)))


def _halves(history: History, members: AbstractSet[int]) -> tuple[dict[int, float], dict[int, float]] | None:
    """Return the means of each half of the final games; None if they are not known of all members."""
    games = () if history.final is None else history.final.members
    known = {g.member: g.halves for g in games if g.halves is not None and all(map(math.isfinite, g.halves))}
    if not members <= known.keys():
        return None
    return {m: h[0] for m, h in known.items()}, {m: h[1] for m, h in known.items()}


def scores(history: History) -> tuple[dict[int, float], dict[int, float]]:
    """Return member -> score of the population and of the controls: of final games, else of training."""
    known = history.finals or {m: o for m in history.last if (o := history.score(m)) is not None}
    finite = {m: score for m, score in known.items() if math.isfinite(score)}
    return (
        {m: s for m, s in finite.items() if m not in history.controls},
        {m: s for m, s in finite.items() if m in history.controls},
    )


def _frames(history: History, *, control: bool) -> float:
    groups = (points for m, points in history.curves.items() if (m in history.controls) == control)
    return fmean(frames) if (frames := [points[-1].frames for points in groups if points]) else 0.0


def notes(history: History) -> list[str]:
    """Return what the comparisons of a run of PBT say about its options; nothing if they say nothing."""
    noise = history.noise
    if noise is None or history.is_search or not noise.comparisons:
        return []
    in_python = history.options.api is not None
    unit = "seconds" if history.options.pbt.ready == "timed" else "frames"
    period = "period=" if in_python else f"--pbt.period-{unit}"
    shorter = period if in_python else f"{period}, --pbt.start-{unit}"
    said = [said_of_luck(noise, period, in_python=in_python)] if noise.replacements else []
    why = ""
    if noise.comparisons < FEW_COMPARISONS:
        why = f"few for a schedule to form: shorter periods ({shorter}) make 20 to 50"
    elif noise.comparisons > MANY_COMPARISONS and 2 * noise.within > noise.replacements > 0:
        why = f"many, and most replacements were within the noise: longer periods ({period}) judge better"
    held = counted(noise.comparisons, "comparison was", "comparisons were")
    return [*said, f"{held} held, {why}."] if why else said


def mostly_luck(noise: Noise) -> bool:
    """Return whether most replacements may have been made by luck."""
    return noise.replacements >= ENOUGH_REPLACEMENTS and 2 * noise.within > noise.replacements


def said_of_luck(noise: Noise, period: str, *, in_python: bool) -> str:
    """Return how many replacements luck may have made, and what makes fewer of these if they are most.

    period: the option. in_python: of a run of `tune.run`, whose options are arguments.
    """
    if not noise.within:
        beyond = f"beyond the noise of their windows (Welch's test, p < {LEVEL:g})"
        return f"All replacements ({noise.replacements}) were {beyond}."
    said = (
        f"{noise.within} of {counted(noise.replacements, 'replacement')} {'was' if noise.within == 1 else 'were'} "
        f"within the noise of their windows (Welch's test, p >= {LEVEL:g})"
    )
    if mostly_luck(noise):
        fewer = (
            f"Longer periods ({period}) make"
            if in_python
            else f"Longer periods ({period}), --pbt.exploit t-test or a gap in the objective's unit "
            "(--pbt.replace-gap-absolute; a share of scores near 0 is no gap) make"
        )
        said += f": luck may have made most of them. {fewer} fewer"
    return said + "."
