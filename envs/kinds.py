"""Kinds of environments that a factory of the user's own may return beside Gymnasium's. Extras add them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pbt_rl.extras import offered

from .base import EnvSpec, ShapingSource, Unit


@dataclass(frozen=True)
class Kind:
    """What environments of a foreign interface are played by. An extra declares them as `KINDS` in its `extra.py`."""

    title: str
    """For an error that lists what a factory may return, such as "a gymnasium.Env"."""
    fits: Callable[[object], bool]
    """Whether an object is one of these."""
    describe: Callable[[str, Any], EnvSpec]
    """(id, environment) -> spec of a row. Raises EnvSetupError."""
    make_unit: Callable[[str, Callable[[], Any], int, int, ShapingSource], Unit]
    """(id, what makes one environment, rows, seed, shaping) -> unit."""


def kinds() -> tuple[Kind, ...]:
    """Return the kinds of all extras that there are."""
    return tuple(kind for declared in offered(__package__ or "", "KINDS") for kind in declared)
