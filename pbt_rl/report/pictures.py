"""Figures of a report with title and caption, in the order of the page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import matplotlib as mpl
from matplotlib.text import Text

from pbt_rl.record.history import History
from pbt_rl.record.run_options import FRAMES
from pbt_rl.report import figures, importance
from pbt_rl.report.style import STYLE, Drawn, png


@dataclass(frozen=True)
class Picture:
    """Figure with its texts. name: name of the PNG file and of the TensorBoard tag, without suffix and prefix.

    caption: text that a click on `?` shows.
    draw: function that returns the figure, or the reason why the figure cannot be drawn.
    """

    name: str
    title: str
    caption: str
    draw: Callable[[History], Drawn]
    more: bool = False
    """True if the page shows the figure only after a click."""


PICTURES = (
    Picture(
        "objective",
        "Objective",
        "Thin: objective of each member over its own frames, labelled with the member's number. Thick: the best member "
        "at each number of frames, or with more than five members the mean of the best fifth. The objective is the "
        "mean over the compared episodes (by default those since the last comparison, but at least one of every "
        "environment). A curve begins when every environment has ended an episode. Dotted: mean of the episodes that "
        "ended before that. Violet: mean and range of the control group.",
        figures.objective,
    ),
    Picture(
        "statistics",
        "Reward terms and other statistics",
        "Statistics that the environment returns for its episodes (episode_extra_stats), and metrics of callbacks, as "
        "in TensorBoard. One line per member, the best member in red.",
        figures.statistics,
    ),
    Picture(
        "evaluations",
        "Evaluations during training",
        "At each evaluation, the best member at that time plays episodes with separate seeds, as in pbt-rl eval. Line: "
        "mean. Band: two standard errors of the mean. A number marks the member that is evaluated from that point on.",
        figures.evaluations,
    ),
    Picture(
        "forest",
        "Lineage",
        "Each horizontal line is one set of weights during training, coloured by its objective. Each branch is a copy. "
        "Thick: ancestors of the last members. Thin: weights that were replaced. Numbers mark the last members: the "
        "best member in red, controls in violet.",
        figures.forest,
    ),
    Picture(
        "schedules",
        "Schedules along the lineages",
        "Each tuned hyperparameter over the training frames of the weights. Red: schedule of the best member. Dark: "
        "schedules of the other members. Light: values with which replaced weights were trained.",
        figures.schedules,
    ),
    Picture(
        "phases",
        "Scores per phase",
        "Top: scores of the members at the end of each phase. A marker shows whether the member continued, completed "
        "its training or was evicted. Bottom: number of members that began the phase.",
        figures.phases,
    ),
    Picture(
        "learning",
        "Losses and speed",
        "Losses, entropy, KL divergence and gradient norm of each member, the best member in red. Frames per second of "
        "the whole population. TensorBoard has all other statistics.",
        figures.learning,
        more=True,
    ),
    Picture(
        "importance",
        "Importance of each value",
        "Impurity importances of a random forest. Of many forests with random settings, the forest with the best "
        "predictions in ten-fold cross-validation is used (Heinrich and Frosio 2019, appendix A.2). If members change, "
        "each state of a member between two changes is a configuration, and the trained frames are an additional "
        "feature. Above 1,000 configurations, a random sample is used.",
        importance.figure,
        more=True,
    ),
)


NOT_MEANT = frozenset({figures.NO_EVALUATIONS, figures.NO_PHASES, figures.NO_STATISTICS})
"""Reasons for missing figures that the page does not show, because the figures do not apply to the run."""


def draw(picture: Picture, history: History, dpi: int = 150) -> bytes | str:
    """Return a figure as a PNG file, or the reason why there is no figure."""
    with mpl.rc_context(STYLE):
        drawn = picture.draw(history)
    if not isinstance(drawn, str) and history.options.unit != FRAMES:
        for text in drawn.findobj(Text):
            assert isinstance(text, Text)
            text.set_text(text.get_text().replace(FRAMES, history.options.unit))
    return drawn if isinstance(drawn, str) else png(drawn, dpi)
