"""Command `pbt-rl resume`: continue a run from its last checkpoint."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from pbt_rl.config import OF_NAMES, Config, names_run
from pbt_rl.config.budget import ENDLESS_FRAMES
from pbt_rl.errors import ConfigError
from pbt_rl.options.declare import as_base, changed, table
from pbt_rl.options.help import draw
from pbt_rl.options.values import path_given
from pbt_rl.options.words import split, typed
from pbt_rl.processes.child import spare_learner
from pbt_rl.record.saved import check_trust, read_config

PROG = "pbt-rl resume RUN"
OF_TRAIN = ("name", "out", "overwrite", "resume")
"""Options of `pbt-rl train` that the RUN argument replaces."""


@dataclass(frozen=True)
class ResumeCommand(Config):
    """Continue a run from its last complete checkpoint, on this machine, until its budget is spent. The run keeps its
    options, except options that you give here. These options of `pbt-rl train` may change:
    """

    trust: bool = False
    """Import the modules and use the paths in config.json, even if the run was not made by you on this machine."""


def run(arguments: list[str]) -> int:
    """Run `pbt-rl resume`: continue the run in the first argument."""
    if split(arguments).asks_help:
        known, names = table(ResumeCommand), {*may_change(), "trust"}.difference(OF_TRAIN)
        shown = [option for name, option in known.items() if name in names]
        draw(ResumeCommand, shown, lambda _option: "that of the run", PROG)
    if not arguments or arguments[0].startswith("-"):
        before = f"before {arguments[0]}" if arguments else "the folder of a run"
        raise ConfigError(f"RUN is missing, {before}: {PROG} [OPTIONS]; pbt-rl resume --help")
    config, shaping = _parsed(_named(path_given("RUN", arguments[0])), arguments[1:])
    spare = None if config.mode == "serial" else spare_learner(str(config.out / str(config.name)))
    try:
        from pbt_rl.run.train import train

        return train(config, spare=spare, shaping=shaping)
    finally:
        if spare is not None:
            spare.discard()


def parse_resume(folder: Path, arguments: list[str]) -> Config:
    """Build the config of a recorded run, with the options that the arguments change.

    folder: folder of the run. arguments: words after RUN on the command line.
    Raises ConfigError for an invalid option, an option that must not change, or a folder without a run. Raises
    EnvSetupError if the environment cannot be used.
    """
    return _parsed(folder, arguments)[0]


def _parsed(folder: Path, arguments: list[str]) -> tuple[Config, tuple[str, ...]]:
    """Return the config, as `parse_resume` does, and the NAME=VALUE entries of --shaping that the arguments contain."""
    line = split(arguments)
    for name in OF_TRAIN:
        if name in line.names:
            raise ConfigError(
                f"--{name} cannot be used with {PROG}: the folder RUN selects the run; `pbt-rl train` takes --{name}"
            )
    before = read_config(folder)
    if not names_run(folder.name):
        raise ConfigError(f"{folder} cannot be resumed under this name: rename the folder to {OF_NAMES}")
    start = ResumeCommand(**vars(before))
    options = table(start)
    values = typed(options, line, PROG)
    if "hours" in values:  # total hours of the run; the period of comparisons does not change
        frames = {} if before.searches else {"train_for_frames": ENDLESS_FRAMES}
        values = {"train_for_seconds": 3600 * values["hours"], **frames, **values}
    command = changed(start, values)
    followed = [o.name for o in options.values() if o.field not in values or o.holds_pairs]
    check_trust(before, followed, folder, trust=command.trust)
    config = as_base(Config, command, name=folder.name, out=folder.parent, overwrite=False, resume=True)
    return config, values.get("shaping", ())


def _named(text: Path) -> Path:
    """Resolve a path such as `.` to a path that ends with the name of the run's folder."""
    folder = Path(os.path.normpath(text))
    return folder if folder.name not in ("", "..") else Path(os.path.normpath(Path.cwd() / folder))


def may_change() -> list[str]:
    """Return the names of the options that may change when a run is resumed."""
    return [name for name, option in table(Config).items() if option.metadata.get("may_change")]
