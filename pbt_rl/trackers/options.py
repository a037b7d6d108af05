"""The option that names trackers."""

from __future__ import annotations

from dataclasses import dataclass

import tyro

from pbt_rl.options import names_module, names_object, option

TRACKERS = {
    "csv": "pbt_rl.trackers.to_csv:CsvTracker",
    "wandb": "pbt_rl.trackers.to_wandb:WandbTracker",
}
"""Name -> module:Class."""


@dataclass(frozen=True)
class TrackersOption:
    """Where curves are written, besides TensorBoard."""

    track: tyro.conf.UseAppendAction[tuple[str, ...]] = option(
        (),
        test=lambda names: (
            all(name in TRACKERS or names_object(name) for name in names) and len(set(names)) == len(names)
        ),
        remedy=f"{', '.join(TRACKERS)} or module:Class, each once",
        common=True,
        may_change=True,
        leads_out=names_module,
    )
    """Write the curves elsewhere too: csv (tables in the run's folder), wandb, or your own module:Class. May be
    repeated. TensorBoard files are always written."""
