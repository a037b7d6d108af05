"""First box of a report (population versus control group), and notes about the run's comparisons."""

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
"""With fewer replacements, the share within the noise is meaningless."""


def control_box(history: History) -> str:
    """Return the HTML that compares population and controls; empty for a run without controls."""
    if not history.controls:
        return ""
    own, others = scores(history)
    if not own or not others:
        text = "Not every group has a score yet, so they cannot be compared."
        return f'<div class="box"><h2>Population and control group</h2><p>{text}</p></div>'
    starts = history.population
    halves = _halves(history, own.keys() | others.keys())
    best = _picked([own, own] if halves is None else [{m: h[m] for m in own} for h in halves], len(own))
    left_alone = _picked(
        [others, others] if halves is None else [{m: h[m] for m in others} for h in halves], starts
    )
    fewer = starts > len(others)
    low = (
        f" (too low: {counted(len(others), 'control')} cannot show the best of {starts} samples)"
        if fewer
        else ""
    )
    how = (
        "one half of them selects a member, the other half scores it"
        if halves is not None
        else "the same episodes select a member and score it, so the best of each group is biased upwards"
    )
    judged = (
        f"final evaluation, {max(history.final.episodes.values())} evaluation episodes of each member; {how}"
        if history.final is not None
        else "windows of training episodes, as there was no final evaluation: the best of them is biased upwards"
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
        f"{starts} untuned members, which {counted(len(others), 'control')} estimate too low"
        if fewer
        else "the same number of untuned members"
    )
    return (
        '<div class="box"><h2>Population and control group</h2>'
        f"<p>The best of the population scored {said} the best of {alone}.</p>"
        f'<table>{body}</table><p class="caption">Scores: {escape(judged)}. One run shows the result for one seed. '
        "It cannot show whether the method helps on this task: for that, the gap must hold over several seeds. "
        "<code>pbt-rl prove</code> trains several seeds and tests the gap.</p></div>"
    )


def expected_best(scores: Sequence[float], k: int, picks: Sequence[float] | None = None) -> float:
    """Return the expected maximum of k of N scores x_1 <= ... <= x_N, over all ways to draw them.

    k <= N, without replacement: sum_i x_i C(i-1, k-1) / C(N, k). Unbiased for the best of k new samples.
    k > N, with replacement: sum_i x_i ((i/N)^k - ((i-1)/N)^k). Too low, because N samples do not show rarer scores.
    picks: numbers that rank the members instead of their scores; ties are averaged.
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
    """Return the expected score of the best of k members: one half of the episodes selects, the other scores."""
    one, other = ([half[m] for m in sorted(half)] for half in halves)
    return fmean((expected_best(one, k, picks=other), expected_best(other, k, picks=one)))


def _halves(history: History, members: AbstractSet[int]) -> tuple[dict[int, float], dict[int, float]] | None:
    """Return the means of each half of the final evaluation; None if they are missing for any member."""
    games = () if history.final is None else history.final.members
    known = {g.member: g.halves for g in games if g.halves is not None and all(map(math.isfinite, g.halves))}
    if not members <= known.keys():
        return None
    return {m: h[0] for m, h in known.items()}, {m: h[1] for m, h in known.items()}


def scores(history: History) -> tuple[dict[int, float], dict[int, float]]:
    """Return member -> score for the population and for the controls.

    Scores are those of the final evaluation, or of training if there was none.
    """
    known = history.final_scores or {m: o for m in history.last if (o := history.score(m)) is not None}
    finite = {m: score for m, score in known.items() if math.isfinite(score)}
    return (
        {m: s for m, s in finite.items() if m not in history.controls},
        {m: s for m, s in finite.items() if m in history.controls},
    )


def _frames(history: History, *, control: bool) -> float:
    groups = (points for m, points in history.curves.items() if (m in history.controls) == control)
    return fmean(frames) if (frames := [points[-1].frames for points in groups if points]) else 0.0


def notes(history: History) -> list[str]:
    """Return advice on the options of a PBT run, from the noise of its comparisons; empty if there is none."""
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
        why = f"too few for a schedule to form: shorter periods ({shorter}) make 20 to 50"
    elif noise.comparisons > MANY_COMPARISONS and 2 * noise.within > noise.replacements > 0:
        why = f"many, and most replacements were within the noise: longer periods ({period}) compare more reliably"
    held = counted(noise.comparisons, "comparison was", "comparisons were")
    return [*said, f"{held} made, {why}."] if why else said


def mostly_luck(noise: Noise) -> bool:
    """True if most replacements may be due to chance."""
    return noise.replacements >= ENOUGH_REPLACEMENTS and 2 * noise.within > noise.replacements


def said_of_luck(noise: Noise, period: str, *, in_python: bool) -> str:
    """Return the number of replacements within the noise and, if they are most, the remedy.

    period: name of the option. in_python: for a `tune.run` run, whose options are arguments.
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
            "(--pbt.replace-gap-absolute; a share of scores near 0 is too small a gap) make"
        )
        said += f": most of them may be due to chance. {fewer} fewer"
    return said + "."
