"""Texts of the report page: population against control group, and noise of the comparisons of members.

The noise of a comparison is the part of a score difference that is due to chance, because a window has few episodes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from math import comb
from statistics import fmean

from pbt_rl.controllers.lineage import LEVEL, Noise
from pbt_rl.display.terminal import counted
from pbt_rl.record.history import History
from pbt_rl.report.style import short

FEW_COMPARISONS, MANY_COMPARISONS = 10, 100
ENOUGH_REPLACEMENTS = 4
"""Minimum number of replacements for a warning that chance decided most of them."""


def control_facts(history: History) -> list[tuple[str, object]]:
    """Return (name, value) pairs that compare controls with the other members. Empty for a run without controls.

    While one of the groups has no score, the only pair is ("scores", "not yet known").
    """
    if not history.controls:
        return []
    own, others = scores(history)
    if not own or not others:
        return [("scores", "not yet known")]
    halves = _halves(history, own.keys() | others.keys())
    both = [own | others] * 2 if halves is None else halves
    starts = history.population
    best, alone = (
        _picked([{m: half[m] for m in group} for half in both], number)
        for group, number in ((own, len(own)), (others, starts))
    )
    judged = "windows of training episodes: the highest score is biased upwards"
    if history.final is not None:
        split = "one half selects a member, and the other half scores it"
        how = "the same episodes select a member and score it" if halves is None else split
        judged = f"{max(history.final.episodes.values())} evaluation episodes of each member; {how}"
    low = " (too low)" if len(others) < starts else ""
    return [
        ("best of the population", best),
        (f"best of {counted(starts, 'control')}, expected{low}", alone),
        ("difference", f"{best - alone:+.4g}"),
        ("mean of the population's members", fmean(own.values())),
        ("mean of the controls", fmean(others.values())),
        ("frames of each member of the population, mean", short(_frames(history, control=False))),
        ("frames of each control, mean", short(_frames(history, control=True))),
        ("scores", judged),
    ]


def expected_best(scores: Sequence[float], k: int, picks: Sequence[float] | None = None) -> float:
    """Return the expected maximum of k draws from N scores x_1 <= ... <= x_N.

    k <= N: draws without replacement, sum_i x_i C(i-1, k-1) / C(N, k). Unbiased for the best of k new samples.
    k > N: draws with replacement, sum_i x_i ((i/N)^k - ((i-1)/N)^k). Biased downwards, because N samples lack rarer
    scores.
    picks: one number per score. If given, return the expected score of the draw with the highest number. Scores with
    equal numbers are replaced by their mean.
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
    """Return the expected score of the best of k members.

    halves: member -> mean, for each half of the episodes. One half selects the best member, the other half scores it.
    The result is the mean over both assignments of the halves.
    """
    one, other = ([half[m] for m in sorted(half)] for half in halves)
    return fmean((expected_best(one, k, picks=other), expected_best(other, k, picks=one)))


def _halves(history: History, members: AbstractSet[int]) -> tuple[dict[int, float], dict[int, float]] | None:
    """Return member -> mean for each half of the final evaluation. None if a member has no such means."""
    scores = () if history.final is None else history.final.members
    known = {g.member: g.halves for g in scores if g.halves is not None and all(map(math.isfinite, g.halves))}
    if not members <= known.keys():
        return None
    return {m: h[0] for m, h in known.items()}, {m: h[1] for m, h in known.items()}


def scores(history: History) -> tuple[dict[int, float], dict[int, float]]:
    """Return the scores (member -> score) of the members that are not controls, and of the controls.

    Scores are means of the final evaluation. Without a final evaluation: objectives in training. Only finite scores are
    returned.
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
    """Return sentences about the number and the noise of the comparisons, with remedies.

    Empty without a comparison, and for a search.
    """
    noise, options = history.noise, history.options
    if noise is None or history.is_search or not noise.comparisons:
        return []
    unit = "seconds" if options.pbt.ready == "timed" else "frames"
    period, start, budget = f"--pbt.period-{unit}", f", --pbt.start-{unit}", f"--train-for-{unit}"
    if options.api is not None:
        period, start, budget = "period=", "", "steps="
    lines = [said_of_luck(noise, period, in_python=options.api is not None)] if noise.replacements else []
    made = counted(noise.comparisons, "comparison")
    if noise.comparisons < FEW_COMPARISONS:
        remedy = f"Train longer ({budget})"
        if not mostly_luck(noise):
            remedy = f"Shorten the periods ({period}{start}), or train longer if comparisons are late"
        lines.append(f"{made}: too few for a schedule to form; aim for 20 to 50. {remedy}.")
    elif noise.comparisons > MANY_COMPARISONS and 2 * noise.within > noise.replacements > 0:
        lines.append(f"{made}: with longer periods ({period}), chance decides fewer comparisons.")
    return lines


def mostly_luck(noise: Noise) -> bool:
    """Return True if there are at least ENOUGH_REPLACEMENTS replacements, and most are possibly due to chance."""
    return noise.replacements >= ENOUGH_REPLACEMENTS and 2 * noise.within > noise.replacements


def said_of_luck(noise: Noise, period: str, *, in_python: bool) -> str:
    """Return a text with the number of replacements whose score difference is possibly noise of the windows.

    The text contains a remedy if most replacements are possibly due to chance.
    period: name of the option for the period. in_python: True for a run of `tune.run`, whose options are arguments.
    """
    made = counted(noise.replacements, "replacement")
    found = f"{made}, {noise.within} of them within the noise of the windows (Welch's test, p >= {LEVEL:g})."
    if not mostly_luck(noise):
        return found
    rules = ", --pbt.exploit t-test, or --pbt.replace-gap-absolute (--pbt.replace-gap is relative)"
    return f"{found} Most may be due to chance; avoid them with longer periods ({period}){rules * (not in_python)}."
