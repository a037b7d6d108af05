"""Common style of all figures. pyplot is not used, because it has global state and may open windows."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from pbt_rl.config import Hypers
from pbt_rl.controllers.hypers import hyper_table

Drawn = Figure | str
"""Figure, or the reason why the figure cannot be drawn."""
WIDTH = 9.0
"""Default width of a figure in inches."""
INK, FAINT, GRID, BEST, TOP = "#1f2937", "#94a3b8", "#e5e9f0", "#c2410c", "#1d4ed8"
CONTROL = "#7e22ce"
UNKNOWN = "#c9ced6"
"""Colour of nodes of the lineages without an objective."""
STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 8.5,
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "figure.facecolor": "white",
}


def new_figure(height: float, width: float = WIDTH) -> Figure:
    """Create an empty figure. Height and width are in inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def panels(count: int) -> tuple[Figure, list[Axes]]:
    """Create a figure with `count` axes, at least 1: one row of up to 3, two per row for 4, otherwise three per row."""
    columns = count if count < 3 else 2 if count == 4 else 3
    rows = math.ceil(count / columns)
    figure = new_figure(2.1 * rows + 0.3, WIDTH if columns > 1 else WIDTH * 0.6)
    axes: np.ndarray[Any, Any] = figure.subplots(rows, columns, squeeze=False)
    flat: list[Axes] = list(axes.flat)
    for unused in flat[count:]:
        unused.remove()
    return figure, flat[:count]


def png(figure: Figure, dpi: int = 150) -> bytes:
    """Return the figure as a PNG file."""
    file = io.BytesIO()
    with mpl.rc_context(STYLE):
        figure.savefig(file, format="png", dpi=dpi)
    return file.getvalue()


def plain(name: str) -> str:
    """Escape dollar signs in a name. Otherwise matplotlib renders the text between two dollar signs as a formula."""
    return name.replace("$", r"\$")


def short(number: float) -> str:
    """Shorten a number: 12000 -> 12k, 1500000 -> 1.5M."""
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(number) >= size:
            return f"{number / size:.4g}{unit}"
    return f"{number:.4g}"


def frames_axis(axes: Axes, label: str = "frames of the member") -> None:
    """Label the x axis as frames, and let the axis begin at 0."""
    axes.set_xlabel(label)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: short(x)))


@dataclass(frozen=True)
class ValueAxis:
    """Axis of one value of the members. Discounts and decays below 1 are drawn as 1 - value.

    Wide ranges have a log scale.
    """

    label: str
    one_minus: bool
    log: bool
    meanings: tuple[str, ...] = ()
    """Texts of the choices, if the value is the index of a choice. Empty for other values."""

    @classmethod
    def of(cls, name: str, values: Sequence[float], meanings: Sequence[str] = ()) -> ValueAxis:
        """Return the axis of the value `name`.

        A built-in hyperparameter with the scale `one_minus` is drawn as 1 - value if all its values are below 1.
        A built-in hyperparameter with the scale `log` or `one_minus` has a log axis if all drawn numbers are positive.
        Other positive numbers have a log axis if they span more than a factor of 10.
        """
        if meanings:
            return cls(plain(name), one_minus=False, log=False, meanings=tuple(meanings))
        spec = hyper_table(Hypers()).get(name)
        one_minus = spec is not None and spec.scale == "one_minus" and max(values) < 1
        drawn = [1 - v for v in values] if one_minus else values
        wide = min(drawn) > 0 and max(drawn) > 10 * min(drawn)
        known_log = spec is not None and spec.scale in ("log", "one_minus") and min(drawn) > 0
        shown = plain(name)
        return cls(f"1 - {shown}" if one_minus else shown, one_minus, wide or known_log)

    def drawn(self, value: float) -> float:
        """Return the position of a value on the axis."""
        return 1 - value if self.one_minus else value

    def dress(self, axes: Axes) -> None:
        """Set scale and ticks of the y axis. Call this after drawing."""
        axis = axes.yaxis
        if self.meanings:
            axis.set_major_locator(FixedLocator(range(len(self.meanings))))
            axis.set_major_formatter(FixedFormatter([f"{text:.16}" for text in self.meanings]))
            axes.set_ylim(-0.5, len(self.meanings) - 0.5)
            return
        axis.set_major_locator(MaxNLocator(4))
        if self.log:
            axes.set_yscale("log")
            ticks = log_ticks(*axes.get_ylim())
            axis.set_major_locator(FixedLocator(ticks) if ticks else MaxNLocator(4))
            axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda v, _: f"{float(f'{v:.3g}'):g}"))


def log_ticks(low: float, high: float) -> list[float]:
    """Return three to six round numbers as ticks of a log axis. Empty if the range is too narrow."""
    for mantissas in ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)):
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        ticks = [m * 10.0**p for p in powers for m in mantissas if low <= m * 10.0**p <= high]
        if len(ticks) >= 3:
            return ticks[:: math.ceil(len(ticks) / 6)]
    return []


def colour_scale(values: Sequence[float]) -> tuple[Normalize, ScalarMappable]:
    """Return a map from objectives to colours. The lowest 2 % share a colour, because outliers may be very low."""
    finite = [v for v in values if math.isfinite(v)] or [0.0]
    low, high = float(np.quantile(finite, 0.02)), max(finite)
    norm = Normalize(low, high if high > low else low + 1e-9 + abs(low) * 1e-9, clip=True)
    return norm, ScalarMappable(norm, "viridis")
