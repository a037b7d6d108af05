"""Options of simulators on the device."""

from __future__ import annotations

from dataclasses import dataclass

from pbt_rl.options import option


@dataclass(frozen=True)
class SimulatorOptions:
    """Rows that the learner steps itself."""

    rows: int = option(
        0, at_least=0, zero="--learner.batch / --learner.rollout", may_change=True, common=True
    )
    """Rows of each policy in a simulator on the device (see docs/own-simulator.md); a batch is their rollout."""
