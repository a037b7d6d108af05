"""All pictures of a report, in order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import matplotlib as mpl
from matplotlib.figure import Figure

from pbt_rl.report import figures, importance, searches
from pbt_rl.report.read import Record
from pbt_rl.report.style import STYLE, png


@dataclass(frozen=True)
class Picture:
    """A figure and what to say of it. name: of its file and of its TensorBoard tag."""

    name: str
    title: str
    caption: str
    draw: Callable[[Record], Figure | str]


PICTURES = (
    Picture(
        "objective",
        "Objective",
        "Every member's objective over its own frames (thin), and the mean of the best fifth at each number of "
        "frames (thick). The objective is the mean over the window of the last episodes since the member changed.",
        figures.objective,
    ),
    Picture(
        "forest",
        "Who descends from whom",
        "Phylogenetic forest. A row is one set of weights as it trains, its colour the objective it reached; a branch "
        "is a copy of weights. Thick: what the last members descend from; thin: what died out. Numbers are the "
        "members at the end, the best in red.",
        figures.forest,
    ),
    Picture(
        "schedules",
        "Schedules along the lineages",
        "Every value over the frames that the weights were trained on. Red: the schedule that made the best member; "
        "dark: those of the other members; light: what died out.",
        figures.schedules,
    ),
    Picture(
        "spread",
        "Spread of the population",
        "Objectives of the members at each moment, how far their values lie apart, and how many of the first "
        "members still have descendants (in a search: how many members are not stopped).",
        figures.spread,
    ),
    Picture(
        "occupancy",
        "Who held which slot",
        "A slot is one row of a device's pack. A bar is a stay of one member, with its number; white gaps are slots "
        "that nobody used.",
        searches.occupancy,
    ),
    Picture(
        "phases",
        "Scores and members of each phase",
        "Scores of the members at the end of each phase, what came of them, and how many began it.",
        searches.phases,
    ),
    Picture(
        "hypers",
        "Objective against each value",
        "A dot is a member when it was last seen, with the values it had then; the best has a red ring. Light: what "
        "the members were before they changed.",
        figures.hypers,
    ),
    Picture(
        "importance",
        "Importance of each value",
        "Impurity importances of the random forest that predicts held-out configurations best, out of many of random "
        "shapes, with ten-fold cross-validation (Heinrich and Frosio 2019, appendix A.2). Of a population "
        "that changes, every state between two changes is a configuration, and the frames trained are a feature too.",
        importance.figure,
    ),
)


def draw(picture: Picture, record: Record, dpi: int = 150) -> bytes | str:
    """Return a PNG file, or why there is nothing to draw."""
    with mpl.rc_context(STYLE):
        drawn = picture.draw(record)
    return drawn if isinstance(drawn, str) else png(drawn, dpi)
