"""All pictures of a report, in order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import matplotlib as mpl
from matplotlib.text import Text

from pbt_rl.record.history import FRAMES, History
from pbt_rl.report import figures, importance
from pbt_rl.report.style import STYLE, Drawn, png


@dataclass(frozen=True)
class Picture:
    """A figure with its texts. name: of its file and of its TensorBoard tag. caption: stands behind a question mark."""

    name: str
    title: str
    caption: str
    draw: Callable[[History], Drawn]
    more: bool = False
    """It stands behind a click."""


PICTURES = (
    Picture(
        "objective",
        "Objective",
        "Thin: the objective of every member over its own frames, with the member's number. Thick: the best member at "
        "each number of frames; of more than five members, the mean of the best fifth. An objective is the mean over "
        "the last episodes (the window) since the member's last change, drawn once every environment has ended one. "
        "Violet, if there is a control group: its mean, and the range of its members.",
        figures.objective,
    ),
    Picture(
        "evaluations",
        "Fresh games beside training",
        "The best member of each moment in games on seeds of their own, as pbt-rl eval plays them: their mean, and two "
        "standard errors of it. A number marks the member that plays from there on.",
        figures.evaluations,
    ),
    Picture(
        "forest",
        "Lineage",
        "Each horizontal line is one set of weights as it trains, coloured by its objective; each branch is a copy. "
        "Thick: ancestors of the last members; thin: lines that died out. Numbers mark the last members: the best in "
        "red, controls in violet.",
        figures.forest,
    ),
    Picture(
        "schedules",
        "Schedules along the lineages",
        "Each tuned value over the frames that the weights were trained on. Red: the schedule that produced the best "
        "member; dark: those of the other members; light: lines that died out.",
        figures.schedules,
    ),
    Picture(
        "phases",
        "Scores per phase",
        "Top: scores of the members at the end of each phase, by what followed. Bottom: number of members that "
        "began the phase.",
        figures.phases,
    ),
    Picture(
        "importance",
        "Importance of each value",
        "Impurity importances of the random forest, of many with random settings, that predicts held-out "
        "configurations best in ten-fold cross-validation (Heinrich and Frosio 2019, appendix A.2). If members change, "
        "every state between two changes is a configuration (of more than 1,000 a random part), and the frames trained "
        "are a further feature.",
        importance.figure,
        more=True,
    ),
)


NOT_MEANT = frozenset({figures.NO_EVALUATIONS, figures.NO_PHASES})
"""Reasons why there is no picture that say only of which kind the run is."""


def draw(picture: Picture, history: History, dpi: int = 150) -> bytes | str:
    """Return a PNG file, or the reason why there is nothing to draw."""
    with mpl.rc_context(STYLE):
        drawn = picture.draw(history)
    if not isinstance(drawn, str) and history.options.unit != FRAMES:
        for text in drawn.findobj(Text):
            assert isinstance(text, Text)
            text.set_text(text.get_text().replace(FRAMES, history.options.unit))
    return drawn if isinstance(drawn, str) else png(drawn, dpi)
