"""Displays of a run besides the terminal and TensorBoard: extras add them.

An extra names in `SINKS` a module with two functions, which are called for every run:

    check(config)                        raises ConfigError for what cannot work, before anything is started
    start(config, folder, seconds, warn) returns a Sink. seconds: 0, or of a run that goes on those at its checkpoint.
                                         warn: shows a line
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Protocol

from pbt_rl.config import Config
from pbt_rl.display.view import RunView
from pbt_rl.extras import offered
from pbt_rl.record.folder import RunFolder


class Sink(Protocol):
    """Shows views. It is used from one thread, and never waits for anything but in `finish`."""

    def update(self, view: RunView) -> None:
        """Take the present state of the run."""

    def finish(self, ended: str, *, patient: bool) -> None:
        """Show the last view, say why the run has ended, and release everything. patient: seconds may be waited for."""


def check_sinks(config: Config) -> None:
    """Check the options of all sinks. Raises ConfigError."""
    for module in _modules():
        module.check(config)


def start_sinks(config: Config, folder: RunFolder, seconds: float, warn: Callable[[str], None]) -> list[Sink]:
    """Start all sinks of a run. Raises ConfigError."""
    return [module.start(config, folder, seconds, warn) for module in _modules()]


def _modules() -> list[ModuleType]:
    return [import_module(module) for module in offered("pbt_rl", "SINKS")]
