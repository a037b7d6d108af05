"""Paired differences: against tables, a slow simulation, and what is known of few seeds."""

import random

import numpy as np
import pytest

from pbt_rl.experiments.prove import outcome
from pbt_rl.experiments.prove.outcome import (
    compare,
    interval_by_bootstrap,
    interval_by_t,
    iqm,
    seeds_needed,
    t_quantile,
)


def test_quantiles_of_t_are_those_of_the_tables():
    # Abramowitz and Stegun, table 26.10
    for degrees, expected in ((1, 12.706), (2, 4.303), (3, 3.182), (9, 2.262), (30, 2.042), (1000, 1.962)):
        assert t_quantile(0.975, degrees) == pytest.approx(expected, abs=6e-4)


def test_verdicts():
    better = compare([12, 13, 11, 12], [1, 2, 1, 0])
    assert (better.verdict, better.wins, better.losses, better.seeds) == ("helped", 4, 0, 4)
    assert better.mean == 11
    assert better.by_t.low > 9
    assert compare([1, 2, 1, 0], [12, 13, 11, 12]).verdict == "hurt"
    unclear = compare([1, 5, 2, 9], [2, 1, 6, 3])
    assert unclear.verdict == "not told apart"
    assert unclear.needed is not None
    assert unclear.needed > 4
    same = compare([500, 500], [500, 500])
    assert (same.verdict, same.mean, same.needed) == ("not told apart", 0, None)
    coarse = compare([0.55, 0.6], [0.5, 0.55])
    assert (coarse.verdict, coarse.needed) == ("not told apart", 4), "two seeds without spread"
    assert compare([0.55] * 4, [0.5] * 4).verdict == "helped"
    assert compare([0.1 + 0.2] * 4, [0.3] * 4).mean == 0, "rounding"
    with pytest.raises(ValueError, match="give 2 or more"):
        compare([1], [2])
    with pytest.raises(ValueError, match="argument"):
        compare([1, 2], [2])


@pytest.mark.parametrize("deviation", [0.5, 1.0, 2.0])
def test_the_needed_seeds_have_that_power(deviation):
    seeds = seeds_needed(1.0, deviation)
    rng = random.Random(3)

    def power(n):
        gains = ([rng.gauss(1.0, deviation) for _ in range(n)] for _ in range(1000))
        return sum(interval_by_t(one).low > 0 for one in gains) / 1000

    assert power(seeds) == pytest.approx(0.83, abs=0.08)


def test_t_covers_normal_and_heavy_tails_and_the_bootstrap_of_few_seeds_does_not(monkeypatch):
    monkeypatch.setattr(outcome, "RESAMPLES", 500)

    def covered(interval, gains):
        return sum(one.low <= 0 <= one.high for one in map(interval, gains)) / len(gains)

    rng = np.random.default_rng(0)
    for draw in (rng.normal, lambda size: rng.standard_t(3, size)):
        for seeds in (4, 12):
            gains = draw(size=(400, seeds))
            by_t, by_bootstrap = covered(interval_by_t, gains), covered(interval_by_bootstrap, gains)
            assert 0.92 <= by_t <= 0.99
            assert by_bootstrap < by_t
    assert covered(interval_by_bootstrap, rng.normal(size=(400, 4))) < 0.88


def test_interquartile_mean():
    assert iqm([1, 2, 3, 100]) == 2.5
    assert iqm([7]) == 7
    assert iqm(list(np.arange(8))) == 3.5
