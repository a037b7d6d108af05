"""All figures of a report, in order."""

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
    """A figure with its texts. name: of its file and TensorBoard tag. caption: text behind a question mark."""

    name: str
    title: str
    caption: str
    draw: Callable[[History], Drawn]
    more: bool = False
    """Shown only after a click."""


PICTURES = (
    Picture(
        "objective",
        "Objective",
        "Thin: objective of each member over its own frames, labelled with the member's number. Thick: the best member "
        "at each number of frames; for more than five members, the mean of the best fifth. The objective is the mean "
        "over the last episodes (the window) since the member's last change. It is drawn once every environment has "
        "ended an episode. Dotted: mean of the episodes that have ended until then. Violet: mean and range of the "
        "control group, if there is one.",
        figures.objective,
    ),
    Picture(
        "statistics",
        "Reward terms and other statistics",
        "The environment's own statistics of its episodes (episode_extra_stats) and metrics of callbacks, as in "
        "TensorBoard: a line for each member, the best one in red.",
        figures.statistics,
    ),
    Picture(
        "evaluations",
        "Evaluations during training",
        "Evaluation episodes of the currently best member, with separate seeds, as in pbt-rl eval: mean and two "
        "standard errors of the mean. A number marks the member that is evaluated from there on.",
        figures.evaluations,
    ),
    Picture(
        "forest",
        "Lineage",
        "Each horizontal line is one set of weights during training, coloured by its objective; each branch is a copy. "
        "Thick: ancestors of the last members; thin: lines that died out. Numbers mark the last members: the best in "
        "red, controls in violet.",
        figures.forest,
    ),
    Picture(
        "schedules",
        "Schedules along the lineages",
        "Each tuned value over the training frames of the weights. Red: the schedule of the best member; dark: "
        "schedules of the other members; light: lines that died out.",
        figures.schedules,
    ),
    Picture(
        "phases",
        "Scores per phase",
        "Top: scores of the members at the end of each phase, marked by what followed. Bottom: number of members that "
        "began the phase.",
        figures.phases,
    ),
    Picture(
        "learning",
        "Losses and speed",
        "Losses, entropy, KL divergence and gradient norm of each member, the best one in red; frames per second of "
        "all members. TensorBoard has all other statistics.",
        figures.learning,
        more=True,
    ),
    Picture(
        "importance",
        "Importance of each value",
        "Impurity importances of a random forest: of many with random settings, the one that best predicts held-out "
        "configurations in ten-fold cross-validation (Heinrich and Frosio 2019, appendix A.2). If members change, each "
        "state between two changes is a configuration (above 1,000, a random sample is used), and the trained frames "
        "are an additional feature.",
        importance.figure,
        more=True,
    ),
)


NOT_MEANT = frozenset({figures.NO_EVALUATIONS, figures.NO_PHASES, figures.NO_STATISTICS})
"""Reasons for a missing figure that only reflect the kind of the run; they are not reported."""


def draw(picture: Picture, history: History, dpi: int = 150) -> bytes | str:
    """Return a PNG file, or the reason why there is nothing to draw."""
    with mpl.rc_context(STYLE):
        drawn = picture.draw(history)
    if not isinstance(drawn, str) and history.options.unit != FRAMES:
        for text in drawn.findobj(Text):
            assert isinstance(text, Text)
            text.set_text(text.get_text().replace(FRAMES, history.options.unit))
    return drawn if isinstance(drawn, str) else png(drawn, dpi)
