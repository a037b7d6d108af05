"""Declares what makes learners faster on a GPU: CUDA graphs, streams, a trial of packings."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pbt_rl.display.view import RunView
    from pbt_rl.run.resolved import ResolvedRun

ACCELERATES = "pbt_rl.graphs.device:CudaAcceleration"
"""See `learner.acceleration.Acceleration`."""


def FOOTERS(view: RunView) -> list[str]:
    """See `display.ranking.footer_lines`."""
    from pbt_rl.graphs.replayed import lines  # noqa: PLC0415 - actors read this module

    return lines(view)


def SCALARS(view: RunView) -> dict[str, float]:
    """See `display.scalars.population_scalars`."""
    from pbt_rl.graphs.replayed import scalars  # noqa: PLC0415

    return scalars(view)


def IN_SUMMARY(view: RunView) -> dict[str, Any]:
    """See `display.scalars.summary`."""
    from pbt_rl.graphs.replayed import in_summary  # noqa: PLC0415

    return in_summary(view)


def REMARKS(resolved: ResolvedRun) -> Callable[[RunView], list[str]]:  # noqa: ARG001 - others read it
    """Return what says of a view what goes wrong unseen."""
    from pbt_rl.graphs.replayed import Remarks  # noqa: PLC0415

    return Remarks()


ASKED = ()
"""Command lines that ask for it: none, it is used where there is a GPU."""
