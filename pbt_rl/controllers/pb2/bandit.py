"""TV.EXP3.M: a bandit over categories that change their worth, with several plays at a time. Pure functions.

Parker-Holder et al. (2021), "Tuning Mixed Input Hyperparameters on the Fly for Efficient Population Based AutoRL",
algorithm 2, after Uchiya et al. (2010). C categories, B plays in a round, T rounds; weights w sum to 1.

    gamma = sqrt(C ln(C / B) / ((e - 1) B T)) if B < C (at most 1), else MANY_PLAYS_GAMMA, as in the authors' source
    p_c = (1 - gamma) w_c / sum(w) + gamma / C
    w_c <- w_c exp(gamma g_c / (C p_c)) + e / (C T) sum(w)      g_c: sum of the rewards of c's plays, each in 0..1

With B < C no category is to be played more than once in expectation, B p_c <= 1: weights above `cap` are lowered to it,
and those categories get no reward in that round.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

MANY_PLAYS_GAMMA = 0.2


def exploration(categories: int, plays: int, rounds: int) -> float:
    """Return gamma."""
    if plays >= categories:
        return MANY_PLAYS_GAMMA
    return min(1.0, math.sqrt(categories * math.log(categories / plays) / ((math.e - 1) * plays * rounds)))


def cap(weights: Sequence[float], plays: int, gamma: float) -> float:
    """Return the largest weight k with B p <= 1: k / (sum of min(w, k)) = (1 / B - gamma / C) / (1 - gamma).

    Infinite if no weight has to be lowered.
    """
    if plays >= len(weights) or gamma >= 1:
        return math.inf
    share = (1 / plays - gamma / len(weights)) / (1 - gamma)
    ordered = sorted(weights, reverse=True)
    if ordered[0] <= share * math.fsum(ordered):
        return math.inf
    for lowered, (_, following) in enumerate(pairwise([*ordered, 0.0]), start=1):
        rest = math.fsum(ordered[lowered:])
        if lowered * share < 1 and share * rest / (1 - lowered * share) >= following:
            return share * rest / (1 - lowered * share)
    return math.inf


def probabilities(weights: Sequence[float], plays: int, rounds: int) -> list[float]:
    """Return p of each category; they sum to 1."""
    gamma, most = exploration(len(weights), plays, rounds), cap_of(weights, plays, rounds)
    lowered = [min(w, most) for w in weights]
    total = math.fsum(lowered)
    return [(1 - gamma) * w / total + gamma / len(weights) for w in lowered]


def cap_of(weights: Sequence[float], plays: int, rounds: int) -> float:
    """Return `cap` by the gamma of so many rounds."""
    return cap(weights, plays, exploration(len(weights), plays, rounds))


def updated(weights: Sequence[float], played: Sequence[tuple[int, float]], rounds: int) -> list[float]:
    """Return the weights after a round. played: (category, reward in 0..1) of each play."""
    if not played:
        return list(weights)
    plays, categories = len(played), len(weights)
    gamma, most = exploration(categories, plays, rounds), cap_of(weights, plays, rounds)
    p, lowered = probabilities(weights, plays, rounds), [min(w, most) for w in weights]
    gained = [0.0] * categories
    for category, reward in played:
        if weights[category] < most:
            gained[category] += reward / p[category]
    drift = math.e / (categories * rounds) * math.fsum(lowered)
    raised = [w * math.exp(gamma * g / categories) + drift for w, g in zip(lowered, gained, strict=True)]
    total = math.fsum(raised)
    return [w / total for w in raised]
