"""Declares turns: more members than `--slots`, and members that leave their slots while they wait or train no more."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pbt_rl.population.population import Population
    from pbt_rl.population.slots import Slots
    from pbt_rl.run.resolved import ResolvedRun

WITHOUT_TORCH = True


def SLOTS(resolved: ResolvedRun, population: Population) -> Slots:
    """Return the slots of a run. In a search nobody's time in one is limited."""
    from pbt_rl.turns.slots import TurnSlots  # noqa: PLC0415 - actors read this module

    config = resolved.config
    limits = (None, None) if config.searches else (config.slot_frames, config.train_for_frames)
    return TurnSlots(resolved.plan.packs, population, *limits)


DISPATCH = "pbt_rl.turns.dispatch:TurnDispatch"
"""See `run.comparisons`."""
ASKED = ("train --env toy/identity --num-policies 4 --slots 2 --show",)
"""Command lines that ask for it."""
