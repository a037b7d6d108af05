"""Command `pbt-rl train`: train, print the plan, or list the options."""

from __future__ import annotations

import os
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from pbt_rl.config import Config, hypers_of, load_algorithm
from pbt_rl.config.command import PROG, Layers, TrainCommand
from pbt_rl.config.start_values import with_start_values
from pbt_rl.envs.lookup import FAMILIES, SHORT_NAMES
from pbt_rl.errors import ConfigError, EnvSetupError, require
from pbt_rl.options.declare import as_base, table
from pbt_rl.options.files import written
from pbt_rl.options.help import draw
from pbt_rl.options.words import HELP, split
from pbt_rl.processes.child import Waiting, spare_learner
from pbt_rl.record.folder import RunFolder, to_json
from pbt_rl.record.saved import continued_config
from pbt_rl.registry import ALGORITHMS, CONTROLLERS, RULES

MORE = """\
These are the common options. You may use all options, but --help lists some options only on request:
  --env X --help            common options, and options of environment family X
  --algo X --help           common options, and hypers of algorithm X
  --controller X --help     common options, and options of controller X (or --pbt.exploit, --pbt.explore, --pbt.ready)
  --help-all                all options
"""


def run(arguments: list[str]) -> int:
    """Run `pbt-rl train`: train, print the plan (--show), or print the options (--help)."""
    line = split(arguments)
    resumed = line.last("resume")
    if resumed is not None and RunFolder(Path(resumed)).is_run:
        raise ConfigError(
            f"--resume {resumed} cannot be used: give true or false, or run: pbt-rl resume {resumed}"
        )
    asked = HELP & {entry.written for entry in line.entries}
    if asked:
        entries = tuple(entry for entry in line.entries if entry.written not in HELP)
        print_help(Layers.read(replace(line, entries=entries)), everything="--help-all" in asked)
        return 0
    layers = Layers.read(line)
    layers.check_env()
    given = layers.values
    trains = given.get("mode") != "serial" and not given.get("show")
    # The spare learner loads torch while the environment is constructed.
    spare: Waiting[Any, Any] | None = spare_learner(_shown(given)) if trains else None
    try:
        command = layers.command(continued_config(given))
        require(command.show or command.format == "text", "format", command.format, "add --show")
        config = with_start_values(as_base(Config, command))
        from pbt_rl.run.probe import describe_duration
        from pbt_rl.run.shown import describe_plan, page
        from pbt_rl.run.train import resolve, train

        if not command.show:
            return train(config, spare=spare)
        resolved = resolve(config)
        initial = resolved.controller().initial(config.members)
        if command.format != "text":
            print(written(to_json(config), command.format), end="")
            return 0
        print("\n".join([*describe_plan(resolved), *page(resolved, initial[0])]), flush=True)
        if command.probe and not config.nodes:
            print(
                "pbt-rl: training for some seconds to estimate the duration (--no-probe skips this) ...",
                file=sys.stderr,
            )
            print(describe_duration(config, resolved.spec))
        return 0
    finally:
        if spare is not None:
            spare.discard()


def _shown(given: dict[str, Any]) -> str:
    """Return a label for a run that has no folder yet. given: dotted field -> value."""
    name = given.get("name")
    return f"a run of process {os.getpid()}" if name is None else f"{given.get('out', Config.out)}/{name}"


# -- help ---------------------------------------------------------------------------------------------------


def print_help(layers: Layers, *, everything: bool) -> None:
    """Print the help of the options, and raise SystemExit. The printed default of an option is its value in `layers`.

    everything: True prints all options. False prints the common options, and the options of the chosen environment,
    algorithm and rules. If an algorithm is chosen, hypers that it does not use are left out in both cases.
    """
    try:
        command = layers.command() if layers.values.get("env") else TrainCommand(env="")
    except EnvSetupError:  # help is also printed for environments that are not installed
        command = TrainCommand(env="")
    extra, unread = _related(layers), _unread_hypers(layers.values.get("algo"))
    shown = [
        option
        for option in table(command).values()
        if (everything or option.metadata.get("common") or extra & {option.field, option.path[0]})
        and option.field not in unread
    ]
    try:
        draw(TrainCommand, shown, lambda option: option.of(command), PROG)
    except SystemExit:
        if not everything:
            print(MORE, end="")
        raise


def _related(layers: Layers) -> set[str]:
    """Return the options and option groups of the chosen environment, algorithm and rules.

    Raises EntryPointError if the entry point of one of them is faulty.
    """
    given = layers.values
    env, algo = str(given.get("env", "")), str(given.get("algo", ""))
    family = FAMILIES.get(str(SHORT_NAMES.get(env, env)).partition("/")[0])
    names = set(() if family is None else family.option_groups)
    own = ALGORITHMS[algo].hypers if algo in ALGORITHMS else layers.hypers.OWN
    names |= {f"hypers.{f.name}" for f in (() if own is None else fields(own))}
    for rule, entries in {"controller": CONTROLLERS, **RULES}.items():
        value = given.get(rule)
        if value is None:
            continue
        names |= set(entries[value].options if value in entries else ())
        if rule in ("pbt.exploit", "pbt.explore"):
            names.add(f"{rule}_option")
    return names


def _unread_hypers(algo: str | None) -> frozenset[str]:
    """Return the hypers (dotted fields) that an algorithm does not use. algo: None if no algorithm is chosen.

    The algorithm is imported. Raises ConfigError if the import fails.
    """
    if algo is None:
        return frozenset()
    read = load_algorithm(algo).reads(use_vtrace=True)
    return frozenset(f"hypers.{one.name}" for one in fields(hypers_of(algo)) if one.name not in read)
