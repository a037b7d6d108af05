"""Builds the controller of a run from its options, with the files that it needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pbt_rl.config import Config
from pbt_rl.errors import ConfigError, require
from pbt_rl.pbt.decisions import Controller
from pbt_rl.pbt.hypers import HyperSpec
from pbt_rl.pbt.registry import CONTROLLERS, Ingredients
from pbt_rl.pbt.tuning import chosen
from pbt_rl.record.reading import journal_records


def build_controller(config: Config, table: Mapping[str, HyperSpec], seed: int) -> Controller:
    """Return the controller that `--controller` names.

    table: `hyper_table(...) | shaping_table(...)`, with bounds as tight as the run needs them; `--pbt.tune` chooses.
    Raises ConfigError, for example if `pbt.tune` holds a name that is not in the table.
    """
    entry = CONTROLLERS[config.controller]
    return entry.build(
        Ingredients(
            table=chosen(table, config.pbt.tune),
            seed=seed,
            members=config.num_policies,
            slots=min(config.slots or config.num_policies, config.num_policies),
            budget_frames=config.train_for_frames,
            pbt=config.pbt,
            search=config.search,
            schedule=config.schedule,
            records=_recorded(config.schedule.run) if entry.follows_a_run else (),
        )
    )


def _recorded(run: str) -> Sequence[object]:
    require(run != "", "schedule.run", repr(run), "give the folder of a recorded run")
    try:
        return journal_records(Path(run))
    except ConfigError as error:
        raise ConfigError(f"--schedule.run {run} cannot be used: {error}") from error
