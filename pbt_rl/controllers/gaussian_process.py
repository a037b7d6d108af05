"""Surrogate of PB2: a time-varying Gaussian process. Requires scikit-learn (extra `search`)."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import (
    ConstantKernel,
    Hyperparameter,
    Kernel,
    NormalizedKernelMixin,
    StationaryKernelMixin,
    WhiteKernel,
)
from threadpoolctl import ThreadpoolController

Array = NDArray[np.float64]


class FadingKernel(StationaryKernelMixin, NormalizedKernelMixin, Kernel):  # type: ignore[misc] # untyped base
    """Time-varying squared exponential kernel of Bogunovic et al. (2016), used by PB2.

        k((t, x), (t', x')) = exp(-|x - x'|^2 / (2 length^2)) (1 - fading)^(|t - t'| / 2)

    t: time, the first column of the data. x: values, the other columns. With decay = -log(1 - fading) / 2, the second
    factor is exp(-decay |t - t'|). PB2: Parker-Holder et al. (2020), section 4.1.
    """

    def __init__(self, length: float = 1.0, decay: float = 0.1) -> None:
        self.length = length
        self.decay = decay

    @property
    def hyperparameter_length(self) -> Any:
        """Hyperparameter `length`, fitted by maximum likelihood. scikit-learn requires this name of the property."""
        return Hyperparameter("length", "numeric", (0.05, 10.0))

    @property
    def hyperparameter_decay(self) -> Any:
        """Hyperparameter `decay`, fitted by maximum likelihood."""
        return Hyperparameter("decay", "numeric", (1e-3, 10.0))

    def __call__(self, X: Array, Y: Array | None = None, eval_gradient: bool = False) -> Any:
        """Return the covariances [n, m] of X [n, 1 + values] and Y [m, 1 + values] (None: of X and X).

        With `eval_gradient`, return (covariances, derivatives with respect to log decay and log length [n, m, 2]).
        """
        other = X if Y is None else Y
        time = np.abs(X[:, :1] - other[:, 0])
        squares = cdist(X[:, 1:], other[:, 1:], "sqeuclidean") / self.length**2
        K = np.exp(-squares / 2 - self.decay * time)
        if not eval_gradient:
            return K
        # scikit-learn orders hyperparameters by name.
        return K, np.stack([-self.decay * time * K, squares * K], axis=2)


class Surrogate:
    """Model of the improvement as a function of time and values.

    X: [observations, 1 + values]. Column 0 is the time. All columns are scaled to about 0..1. y: [observations],
    improvements.
    All computations use one thread, because the matrices are small, learners need the cores, and one thread sums in a
    fixed order.
    """

    def __init__(self, X: Array, y: Array) -> None:
        spread = y.std()
        kernel = ConstantKernel(1.0, (0.05, 20.0)) * FadingKernel() + WhiteKernel(0.1, (1e-3, 2.0))
        self._process = GaussianProcessRegressor(kernel)
        self._threads = ThreadpoolController()  # created once, because it scans all libraries of the process
        with self._threads.limit(limits=1), warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # the best hyperparameter may be at a bound
            self._process.fit(X, (y - y.mean()) / (spread if spread > 0 else 1.0))

    def bound(self, beta: float, pending: Array | None) -> Callable[[Array], Array]:
        """Return the upper confidence bound, mean + sqrt(beta) std, as a function of points.

        The function maps points [n, 1 + values] to bounds [n]. The unit of a bound is the std of the observed
        improvements, and 0 is their mean.
        pending: points [m, 1 + values] already chosen in this comparison. None: no points. The std is computed as if
        these points were observed, because the members of a comparison should not all choose one point. The std of a
        Gaussian process does not depend on the observed improvements.
        """
        known = self._process.X_train_ if pending is None else np.vstack([self._process.X_train_, pending])
        tried = GaussianProcessRegressor(self._process.kernel_, optimizer=None)
        with self._threads.limit(limits=1):
            tried.fit(known, np.zeros(len(known)))

        def bound(X: Array) -> Array:
            with self._threads.limit(limits=1):
                std = tried.predict(X, return_std=True)[1]
                upper: Array = self._process.predict(X) + np.sqrt(beta) * std
            return upper

        return bound
