"""`pbt-rl resume`: continue a run from its last checkpoint, with nothing typed again."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from pbt_rl.config import OF_NAMES, Config, names_run
from pbt_rl.errors import ConfigError
from pbt_rl.options.declare import as_base, changed, over, table
from pbt_rl.options.values import path_given
from pbt_rl.options.words import split, typed
from pbt_rl.processes.child import spare_learner
from pbt_rl.record.saved import check_trust, read_config

PROG = "pbt-rl resume RUN"
USAGE = f"""usage: {PROG} [OPTIONS]

Continue a run from its last whole checkpoint, on this machine, until its budget is spent. Without options it goes on as
it was. Of a run that was not made here by you, --trust follows the modules and paths that config.json names.

These options of `pbt-rl train` may change:
"""
OF_TRAIN = ("name", "out", "overwrite", "resume")
"""Options that say which run is meant and what becomes of it: here the folder does."""


@dataclass(frozen=True)
class ResumeCommand(Config):
    """Continue a run from its last checkpoint."""

    trust: bool = False
    """Of a run that was not made here by you: import the modules that config.json names, and use its paths."""


def run(arguments: list[str]) -> int:
    """Continue the run that the first argument names."""
    if split(arguments).asks_help:
        print(USAGE + "\n".join(f"  --{name}" for name in may_change() if name not in OF_TRAIN))
        return 0
    if not arguments or arguments[0].startswith("-"):
        before = f"before {arguments[0]}" if arguments else "the folder of a run"
        raise ConfigError(f"RUN is missing, {before}: {PROG} [OPTIONS]; pbt-rl resume --help")
    config = parse_resume(_named(path_given("RUN", arguments[0])), arguments[1:])
    spare = None if config.mode == "serial" else spare_learner(str(config.out / str(config.name)))
    try:
        from pbt_rl.run.train import train

        return train(config, spare=spare)
    finally:
        if spare is not None:
            spare.discard()


def parse_resume(folder: Path, arguments: list[str]) -> Config:
    """Return the config of a recorded run with these options over it. Raises ConfigError."""
    line = split(arguments)
    for name in OF_TRAIN:  # it would change nothing: the folder says which run goes on, and that it does
        if name in line.names:
            raise ConfigError(
                f"--{name} cannot be used with {PROG}, which continues the run in that folder: `pbt-rl train` takes it"
            )
    before = read_config(folder)
    if not names_run(folder.name):
        raise ConfigError(f"{folder} cannot be continued by that name: rename the folder, to {OF_NAMES}")
    start = ResumeCommand(**vars(before))
    options = table(start)
    values = over(start, typed(options, line, PROG))
    command = changed(start, values)
    followed = [o.name for o in options.values() if o.field not in values or o.holds_pairs]
    check_trust(before, followed, folder, trust=command.trust)
    return as_base(Config, command, name=folder.name, out=folder.parent, overwrite=False, resume=True)


def _named(text: Path) -> Path:
    """Return the folder of a run, with its name: `.` is one, too."""
    folder = Path(os.path.normpath(text))
    return folder if folder.name not in ("", "..") else Path(os.path.normpath(Path.cwd() / folder))


def may_change() -> list[str]:
    """Names of the options that may differ when a run is continued."""
    return [name for name, option in table(Config).items() if "may_change" in option.metadata]
