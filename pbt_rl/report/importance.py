"""Importances of hyperparameters by random forests with cross-validation (Heinrich and Frosio 2019, appendix A.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
from matplotlib.figure import Figure

from pbt_rl.controllers.hypers import Values
from pbt_rl.errors import ConfigError
from pbt_rl.record.history import History
from pbt_rl.report.style import FAINT, TOP, Drawn, new_figure, plain

MIN_CONFIGURATIONS = 10
FORESTS = 100
"""Number of forests for 40 to 200 configurations, as in the paper. A quarter of this number is used for fewer
configurations, which cannot rank 100 forests reliably, and for more configurations, which take too long."""
MOST_CONFIGURATIONS = 1000
"""Maximum number of configurations. If there are more, a random sample is used, because 12,000 take minutes."""
FOLDS = 10
TRAINED = "frames trained"
"""Name of an additional feature of the forests, except for a search. Longer training usually improves the objective,
whatever the hyperparameters are."""


@dataclass(frozen=True)
class Importance:
    """Importances of hyperparameters.

    shares: name -> importance (sum 1, or all 0 for a forest that makes no split).
    r_squared: R squared of the best forest on held-out configurations.
    forests, configurations: number of forests that were tried, and number of configurations.
    """

    shares: Mapping[str, float]
    r_squared: float
    forests: int
    configurations: int


def importance(
    configurations: Sequence[Values], scores: Sequence[float], *, forests: int | None = None
) -> Importance:
    """Fit forests with random settings. Return the importances of the best forest in ten-fold cross-validation.

    configurations: at least `MIN_CONFIGURATIONS`, with equal names. scores: objective of each configuration, finite.
    forests: number of forests. None: see FORESTS.
    Raises ConfigError if scikit-learn is missing.
    """
    try:
        from sklearn.ensemble import RandomForestRegressor  # noqa: PLC0415 - an optional extra
        from sklearn.model_selection import KFold, cross_val_predict  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError('importance needs scikit-learn: pip install "pbt-rl[report]"') from error
    assert len(configurations) >= MIN_CONFIGURATIONS
    names = list(configurations[0])
    x = np.array([[values[name] for name in names] for values in configurations])
    y = np.array(scores)
    variation = float(((y - y.mean()) ** 2).sum()) if np.ptp(y) > 0 else 0.0
    rng = Random(0)
    if forests is None:
        forests = FORESTS if 40 <= len(configurations) <= 200 else FORESTS // 4
    best, best_r_squared = None, -np.inf
    folds = KFold(FOLDS, shuffle=True, random_state=0)
    for number in range(forests):
        forest = RandomForestRegressor(
            n_estimators=rng.randint(10, 40),
            max_depth=rng.choice([2, 3, 5, None]),
            min_samples_leaf=rng.choice([1, 2, 4]),
            max_features=rng.choice([1.0, 0.7, 0.4]),
            random_state=number,
        )
        predicted = cross_val_predict(forest, x, y, cv=folds)
        r_squared = 1 - float(((y - predicted) ** 2).sum()) / variation if variation else 0.0
        if r_squared > best_r_squared:
            best, best_r_squared = forest, r_squared
    assert best is not None
    shares = best.fit(x, y).feature_importances_
    return Importance(
        dict(zip(names, map(float, shares), strict=True)), best_r_squared, forests, len(configurations)
    )


def figure(history: History) -> Drawn:
    """Draw the importances. Configurations are the members of a search, otherwise all nodes of the lineages.

    Configurations without an objective are left out.
    """
    lineage = history.lineage
    known = [
        n
        for n in (history.last.values() if history.is_search else lineage.nodes)
        if history.objective(n) is not None
    ]
    if len(known) < MIN_CONFIGURATIONS or len(history.varied) < 2:
        return (
            f"There are {len(known)} configurations with an objective and {len(history.varied)} values that differ; "
            f"importances need at least {MIN_CONFIGURATIONS} configurations and 2 values."
        )
    if len(known) > MOST_CONFIGURATIONS:
        known = Random(0).sample(known, MOST_CONFIGURATIONS)
    configurations = [{name: node.values[name] for name in history.varied} for node in known]
    if not history.is_search:
        for values, node in zip(configurations, known, strict=True):
            values[TRAINED] = float(lineage.end_trained(node.key))
    result = importance(configurations, [lineage.objectives[n.key] for n in known])
    if result.r_squared <= 0:
        return (
            f"None of {result.forests} random forests predicts held-out objectives better than their mean "
            f"(R² {result.r_squared:.2f}, {result.configurations} configurations): importances are meaningless."
        )
    return _draw(result)


def _draw(result: Importance) -> Figure:
    ordered = sorted(result.shares.items(), key=lambda item: item[1])
    drawn = new_figure(0.26 * len(ordered) + 1.0, 6.5)
    axes = drawn.subplots()
    bars = axes.barh(
        [plain(name) for name, _ in ordered],
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
        f"best of {result.forests} forests, R² {result.r_squared:.2f} on held-out parts of "
        f"{result.configurations} configurations"
    )
    return drawn
