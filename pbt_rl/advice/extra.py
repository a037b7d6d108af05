"""Declares advice: a check of memory, and notes on options that nothing reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pbt_rl.run.resolved import ResolvedRun


def PLAN_NOTES(resolved: ResolvedRun) -> list[str]:
    """Warn of too much memory, and name options that do nothing."""
    from pbt_rl.advice.memory import memory_notes  # noqa: PLC0415 - actors read this module
    from pbt_rl.advice.unread import unread  # noqa: PLC0415

    there = [] if resolved.spread else memory_notes(resolved)  # else the memory is that of other machines
    return [*there, *unread(resolved)]


def BEFORE_START(resolved: ResolvedRun) -> None:
    """Raise ConfigError if a run cannot fit into memory."""
    from pbt_rl.advice.memory import check_memory  # noqa: PLC0415

    check_memory(resolved)
