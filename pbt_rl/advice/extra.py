"""Declares advice: notes on a plan, the page of `--show`, a check of memory, and remarks while a run trains."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pbt_rl.config import Config
    from pbt_rl.display.view import RunView
    from pbt_rl.pbt.decisions import Controller
    from pbt_rl.pbt.hypers import Values
    from pbt_rl.population.population import Population
    from pbt_rl.run.resolved import ResolvedRun


def PLAN_NOTES(resolved: ResolvedRun) -> list[str]:
    """Say what the network sees, hint at settings that defeat their purpose or do nothing, warn of too much memory."""
    from pbt_rl.advice.network import network_sees  # noqa: PLC0415 - actors read this module
    from pbt_rl.advice.plan import notes  # noqa: PLC0415
    from pbt_rl.advice.unread import unread  # noqa: PLC0415

    return [*network_sees(resolved.config, resolved.spec), *notes(resolved), *unread(resolved)]


def SHOWN(resolved: ResolvedRun, first: Values) -> list[str]:
    """Return the page of `--show`, below the plan. first: values of member 0."""
    from pbt_rl.advice.show import page  # noqa: PLC0415

    return [*page(resolved, first)]


def BEFORE_START(resolved: ResolvedRun) -> None:
    """Raise ConfigError if a run cannot fit into memory, or needs more open files than there may be."""
    from pbt_rl.advice.files import allow_open_files, descriptors_needed  # noqa: PLC0415
    from pbt_rl.advice.memory import check_memory  # noqa: PLC0415

    check_memory(resolved)
    allow_open_files(descriptors_needed(resolved.plan, resolved.config.members, resolved.spec.seats))


def LIES_AHEAD(
    config: Config, controller: Controller, population: Population, rate: float, training_seconds: float
) -> tuple[float | None, float | None]:
    """Return the seconds to the end, and to the next comparison; None if unknown. rate: frames/s of all members."""
    from pbt_rl.advice.outlook import seconds_to_comparison, seconds_to_end  # noqa: PLC0415

    comparison = seconds_to_comparison(controller, population, rate, training_seconds)
    return seconds_to_end(config, population, rate, training_seconds), comparison


def REMARKS(resolved: ResolvedRun) -> Callable[[RunView], list[str]]:
    """Return what says of a view what goes wrong unseen."""
    from pbt_rl.advice.remarks import Remarks  # noqa: PLC0415

    return Remarks(resolved)
