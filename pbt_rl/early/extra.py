"""Declares the learner that starts before its run is planned."""

from __future__ import annotations

from typing import Any

WITHOUT_TORCH = True


def SPARE(module: str) -> Any:
    """See `run.spare`."""
    from pbt_rl.early.waiting import start  # noqa: PLC0415 - actors read this module

    return start(module)
