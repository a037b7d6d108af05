"""Which values decide the objective: random forests with cross-validation (Heinrich and Frosio 2019, appendix A.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
from matplotlib.figure import Figure

from pbt_rl.errors import ConfigError
from pbt_rl.pbt.hypers import Values
from pbt_rl.report.read import Record
from pbt_rl.report.style import FAINT, TOP, new_figure

LEAST_ROWS = 10
FORESTS = 100
"""As in the paper, for about as many configurations; a quarter of them for few, which cannot tell so many apart, and
for hundreds, which take long."""
FOLDS = 10
TRAINED = "frames trained"
"""Feature of a row that is no value: later weights are better whatever their values are."""


@dataclass(frozen=True)
class Importance:
    """Share of each value (they sum to 1), R squared of the best forest on rows that it was not fitted to."""

    shares: Mapping[str, float]
    r_squared: float
    forests: int
    rows: int


def importance(
    rows: Sequence[Values], scores: Sequence[float], *, seed: int = 0, forests: int | None = None
) -> Importance:
    """Fit forests of random shapes, keep the one that predicts held-out rows best, and ask it.

    rows: of at least `LEAST_ROWS` configurations, all with the same names. Ten folds, as in the paper. Raises
    ConfigError where scikit-learn is missing.
    """
    try:
        from sklearn.ensemble import RandomForestRegressor  # noqa: PLC0415 - an optional extra
        from sklearn.model_selection import KFold, cross_val_predict  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError('importance needs scikit-learn: pip install "pbt-rl[report]"') from error
    assert len(rows) >= LEAST_ROWS
    names = list(rows[0])
    x = np.array([[row[name] for name in names] for row in rows])
    y = np.array(scores)
    rng = Random(seed)
    if forests is None:
        forests = FORESTS if 40 <= len(rows) <= 200 else FORESTS // 4
    best, best_r_squared = None, -np.inf
    folds = KFold(FOLDS, shuffle=True, random_state=seed)
    for number in range(forests):
        forest = RandomForestRegressor(
            n_estimators=rng.randint(10, 40),
            max_depth=rng.choice([2, 3, 5, None]),
            min_samples_leaf=rng.choice([1, 2, 4]),
            max_features=rng.choice([1.0, 0.7, 0.4]),
            random_state=seed + number,
        )
        predicted = cross_val_predict(forest, x, y, cv=folds)
        r_squared = 1 - float(((y - predicted) ** 2).sum() / (((y - y.mean()) ** 2).sum() or np.inf))
        if r_squared > best_r_squared:
            best, best_r_squared = forest, r_squared
    assert best is not None
    shares = best.fit(x, y).feature_importances_
    return Importance(dict(zip(names, map(float, shares), strict=True)), best_r_squared, forests, len(rows))


def figure(record: Record) -> Figure | str:
    """Importance of each value: of the members of a search; with PBT, of all that any member ever was."""
    lineage = record.lineage
    known = [
        n
        for n in (record.last.values() if record.is_search else lineage.nodes)
        if record.objective(n) is not None
    ]
    if len(known) < LEAST_ROWS or len(record.varied) < 2:
        return (
            f"Too few members: {len(known)} configurations with an objective and {len(record.varied)} values that "
            f"differ; importances need at least {LEAST_ROWS} and 2."
        )
    rows = [{name: node.values[name] for name in record.varied} for node in known]
    if not record.is_search:
        rows = [
            row | {TRAINED: float(lineage.end_trained(n.key))} for row, n in zip(rows, known, strict=True)
        ]
    result = importance(rows, [lineage.objectives[n.key] for n in known])
    if result.r_squared <= 0:
        return (
            f"None of {result.forests} random forests predicts the objective of a held-out configuration better than "
            f"the mean does (R² {result.r_squared:.2f}, {result.rows} configurations): importances would mean nothing."
        )
    return _draw(result)


def _draw(result: Importance) -> Figure:
    ordered = sorted(result.shares.items(), key=lambda item: item[1])
    drawn = new_figure(0.26 * len(ordered) + 1.0, 6.5)
    axes = drawn.subplots()
    bars = axes.barh(
        [name for name, _ in ordered],
        [share for _, share in ordered],
        color=[FAINT if name == TRAINED else TOP for name, _ in ordered],
        height=0.7,
    )
    axes.bar_label(bars, [f"{share:.0%}" for _, share in ordered], padding=3, fontsize=8)
    axes.set_xlim(0, max(share for _, share in ordered) * 1.12)
    axes.xaxis.set_visible(False)
    axes.spines["bottom"].set_visible(False)
    axes.grid(visible=False)
    axes.tick_params(axis="y", length=0)
    axes.set_title(
        f"best of {result.forests} forests, R² {result.r_squared:.2f} on held-out parts of {result.rows} configurations"
    )
    return drawn
