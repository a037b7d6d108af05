"""Builds the controller of a run from its options, with the files that it needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pbt_rl.config import Config
from pbt_rl.errors import ConfigError, require
from pbt_rl.pbt.decisions import Controller
from pbt_rl.pbt.entry import Ingredients
from pbt_rl.pbt.events import Event
from pbt_rl.pbt.hypers import HyperSpec
from pbt_rl.pbt.options import ScheduleConfig
from pbt_rl.pbt.registry import controller_entry
from pbt_rl.pbt.start import Started, read_rows
from pbt_rl.pbt.state import restore_state
from pbt_rl.pbt.tuning import chosen
from pbt_rl.record.reading import journal_events


def build_controller(config: Config, table: Mapping[str, HyperSpec], seed: int) -> Controller:
    """Return the controller that `--controller` names.

    table: `hyper_table(...) | shaping_table(...)`, with ranges as tight as the run needs them; `--pbt.tune` and
    `--pbt.prior` choose. Raises ConfigError, for example if `pbt.tune` holds a name that is not in the table.
    """
    entry, pbt = controller_entry(config.controller), config.pbt
    tuned = chosen(table, pbt.tune, pbt.prior)
    require(
        config.learner.lr_schedule != "kl-adaptive" or not tuned["learning_rate"].tuned,
        "learner.lr-schedule",
        "kl-adaptive",
        "it undoes the learning rates that --pbt.tune learning_rate draws: use constant or linear, or tune others",
    )
    require(
        not config.controller_option or ":" in config.controller,
        "controller-option",
        " ".join(config.controller_option),
        f"it is for a controller of your own (module:Class); {config.controller} has options under --pbt or --search",
    )
    controller = entry.build(
        Ingredients(
            table=tuned,
            seed=seed,
            members=config.num_policies,
            slots=min(config.slots or config.num_policies, config.num_policies),
            budget_frames=config.train_for_frames,
            options=config,
            settings=config.controller_option,
            events=_recorded(config.group(ScheduleConfig).run) if entry.follows_a_run else (),
        )
    )
    if not pbt.start_values:
        return controller
    require(
        not entry.follows_a_run, "pbt.start-values", pbt.start_values[0], "a schedule gives the first values"
    )
    return Started(controller, read_rows(pbt.start_values, tuned, config.num_policies))


def resumed_controller(config: Config, table: Mapping[str, HyperSpec], seed: int, state: Any) -> Controller:
    """Return the controller of a run that goes on under this config. The audit of the run builds it with this, too.

    state: of the controller until then (`save_state`). Raises ConfigError as `build_controller` does, and ValueError if
    the state does not fit: the text says why, for example that a rule was exchanged for one of another class.
    """
    controller = build_controller(config, table, seed)
    controller.initial(
        config.num_policies
    )  # prepares it for so many members; their values are those of the run
    restore_state(controller, state, "controller")
    return controller


def _recorded(run: str) -> Sequence[Event]:
    require(run != "", "schedule.run", repr(run), "give the folder of a recorded run")
    try:
        return list(journal_events(Path(run)))
    except ConfigError as error:
        raise ConfigError(f"--schedule.run {run} cannot be used: {error}") from error
