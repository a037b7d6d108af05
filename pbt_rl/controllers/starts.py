"""User-defined start values of individual members: one row per member, such as `learning_rate=1e-3,gamma=0.99`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pbt_rl.controllers.controllers import ControllerWrapper
from pbt_rl.controllers.decisions import Controller
from pbt_rl.controllers.entry import ControllerEntry
from pbt_rl.controllers.hypers import HyperSpec, Values
from pbt_rl.errors import ConfigError, require
from pbt_rl.options.names import meant


@dataclass(eq=False)
class Started(ControllerWrapper):
    """Wrapper of a controller that overrides start values."""

    rows: tuple[Values, ...]
    """Start values of members 0, 1, ... The controller chooses the values that are not in a row."""

    def initial(self, num_members: int) -> list[Values]:
        """Return the controller's start values, overridden by the rows of the --pbt.start-values table."""
        values = self.controller.initial(num_members)
        return [value | row for value, row in zip(values, self.rows, strict=False)] + values[len(self.rows) :]


def started(
    controller: Controller, config: Any, entry: ControllerEntry, tuned: Mapping[str, HyperSpec]
) -> Controller:
    """Return the controller, wrapped in `Started` if --pbt.start-values is set.

    config: options of the run (`Config`). entry: registry entry of the controller. tuned: specs of all values, with the
    user's choice of tuned values.
    Raises ConfigError for invalid start values, and for a controller that replays a recorded run.
    """
    rows = config.pbt.start_values
    if not rows:
        return controller
    require(
        not entry.follows,
        "pbt.start-values",
        rows[0],
        "the recorded run determines start values: leave it out",
    )
    return Started(controller, read_rows(rows, tuned, config.num_policies))


def read_rows(rows: Sequence[str], table: Mapping[str, HyperSpec], members: int) -> tuple[Values, ...]:
    """Return the values (name -> number) of each row. Raises ConfigError for an invalid row, and for too many rows.

    rows: texts such as `learning_rate=1e-3,gamma=0.99`, for members 0, 1, ...
    table: specs of all values, with the user's choice of tuned values. A tuned value must be within its bounds. All
    other values must be within their legal ranges.
    members: number of members.
    """
    if len(rows) > members:
        raise _refusal(f"of {len(rows)} members", f"give at most {members} (--num-policies)")
    return tuple(_read_row(row, table) for row in rows)


def _read_row(row: str, table: Mapping[str, HyperSpec]) -> Values:
    values = {}
    for entry in filter(None, (part.strip() for part in row.split(","))):
        name, given, text = map(str.strip, entry.partition("="))
        if name in values:
            raise _refusal(row, f"{name} is given twice")
        if not given:
            raise _refusal(row, "give NAME=VALUE,NAME=VALUE for each member, or one FILE.csv or FILE.json")
        if name not in table:
            hint = meant("pbt.start-values", name, table)
            raise _refusal(entry, f"{hint}known names are {', '.join(sorted(table))}")
        values[name] = _value(table[name], entry, text)
    return values


def _value(spec: HyperSpec, entry: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if math.isnan(value):
        raise _refusal(entry, "give a number")
    if value != spec.hold(value):
        low, high = (spec.low, spec.high) if spec.tuned else spec.limits
        whole = " (a whole number)" if spec.scale == "integer" else ""
        wider = "; --pbt.tune sets other bounds" if spec.tuned else ""
        raise _refusal(entry, f"give {low:g} to {high:g}{whole}{wider}")
    return value


def _refusal(what: str, remedy: str) -> ConfigError:
    return ConfigError(f"--pbt.start-values {what} cannot be used: {remedy}")
