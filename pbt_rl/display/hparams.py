"""Messages for TensorBoard's HPARAMS tab: a table with a line per member, its start values and its last results.

The tab knows one set of values per run and keeps the first that it reads, so it shows what each member began with: of a
search, its configurations. How values change later is in the curves `hypers/` and `shaping/`.
"""

from __future__ import annotations

from typing import Any

from tensorboardX import summary as _summary

from pbt_rl.display.scalars import value_tag
from pbt_rl.display.view import MemberView

METRICS = ("episodes/objective", "episodes/raw_return", "pbt/generation")
"""Tags of the results; they may be sorted by."""


def experiment(member: MemberView) -> Any:
    """Return the message that names values and results, from any member; for the file of the population."""
    return _messages(member)[0]


def begin(member: MemberView) -> Any:
    """Return the message with the values that a member began with, for its file."""
    return _messages(member)[1]


def end(member: MemberView) -> Any:
    """Return the message that says that the run has ended, for the file of a member."""
    return _messages(member)[2]


def _messages(member: MemberView) -> tuple[Any, Any, Any]:
    values = {value_tag(name): value for name, value in member.initial.items()}
    experiment, begin, end = _summary.hparams(values, dict.fromkeys(METRICS, 0.0))
    return experiment, begin, end
