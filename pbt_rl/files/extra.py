"""Declares options in files: `--config`, `--format`, tables for `--pbt.start-values`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pbt_rl.files.options import FileOptions

if TYPE_CHECKING:
    from pbt_rl.config import Config

NEEDS = ("pbt_rl.python",)
TRAIN_FIELDS = FileOptions
"""Options of `pbt-rl train`."""


class InFile:
    """What stands in a file of options. algo: the algorithm that it names, else nothing."""

    def __init__(self, path: Path) -> None:
        from pbt_rl.files.config import read_file  # noqa: PLC0415 - actors read this module

        self._path, self.algo = path, str(read_file(path).get("algo", ""))

    def values(self, algo: str) -> dict[str, Any]:
        """Return dotted name of an option -> value. algo: whose hypers there are."""
        from pbt_rl.files.config import read_config  # noqa: PLC0415

        return read_config(self._path, algo)


def BETWEEN(arguments: Sequence[str]) -> InFile | None:
    """Return what lies over the recipes and below what is typed. Raises ConfigError."""
    from pbt_rl.cli.parse import value_of  # noqa: PLC0415

    path = value_of(arguments, "--config")
    return None if path is None else InFile(Path(path))


def CHECKS_COMMAND(command: Any) -> None:
    """Raise ConfigError for a form in which nothing is printed."""
    from pbt_rl.errors import require  # noqa: PLC0415

    require(command.show or command.format == "text", "format", command.format, "it is for --show: add that")


def INSTEAD_OF_PLAN(command: Any, config: Config) -> str:
    """Return the config as a file, if it is asked for."""
    from pbt_rl.files.config import written  # noqa: PLC0415
    from pbt_rl.record.folder import to_json  # noqa: PLC0415

    return "" if command.format == "text" else written(to_json(config), command.format)


def COMPLETED(config: Config) -> Config:
    """Return the config with the values of the table that it names. Raises ConfigError."""
    from pbt_rl.files.tables import with_start_values  # noqa: PLC0415

    return with_start_values(config)


ASKED = ("train --env toy/identity --config x.toml --show",)
"""Command lines that ask for it."""
