"""`pbt-rl train`: from the command line to a config, over the recipes that give its defaults."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from pbt_rl.algos import registry as algorithms
from pbt_rl.cli.files import file_of_options, with_start_values, written
from pbt_rl.cli.parse import draw, typed, value_of
from pbt_rl.config import Config, hypers_of, load_algorithm
from pbt_rl.envs.registry import FAMILIES, SHORT_NAMES, family_of
from pbt_rl.errors import ConfigError, EnvSetupError, require
from pbt_rl.options import as_base, build, option, table
from pbt_rl.processes.child import Waiting, spare_learner
from pbt_rl.record.folder import RunFolder, to_json
from pbt_rl.registry import CONTROLLERS, RULES
from pbt_rl.run.recipes import RECIPES, composed, named

PROG = "pbt-rl train"
FIELDS = [f.name for f in fields(Config)]
HELP = {"-h", "--help", "--help-all"}
WITHOUT_A_RUN = HELP | {"--show"}
MORE = """\
These are the usual options. For more of them:
  --env X --help            also the options of that family of environments
  --algo X --help           also the hypers that only that algorithm has
  --controller X --help     also those of that controller; likewise --pbt.exploit X, --pbt.explore X, --pbt.ready X
  --help-all                all options; all work, shown or not
"""


@dataclass(frozen=True)
class TrainCommand(Config):
    """Train a population of policies."""

    show: bool = option(False, common=True)
    """Print the plan (actors, units, rows, devices, batch), the values that are tuned and the options that differ from
    the defaults, and start nothing."""
    recipe: str = option(
        "", texts=lambda: {name: recipe.help for name, recipe in RECIPES.items()}, common=True
    )
    """Options of a published command line, by name. {each}"""
    format: Literal["text", "toml", "yaml", "json"] = "text"
    """With --show: print the whole config instead, as a file for --config."""
    config: Path | None = option(None, common=True)
    """File of options, FILE.toml, FILE.yaml or FILE.json, such as runs/NAME/config.json. The command line wins."""


def run(arguments: list[str]) -> int:
    """Train, or with --show print what would be trained."""
    spare: Waiting[Any, Any] | None = None
    trains = value_of(arguments, "--mode") != "serial" and not WITHOUT_A_RUN & set(arguments)

    def understood() -> None:
        nonlocal spare
        spare = spare_learner(_shown(arguments)) if trains else None

    try:
        command = _parsed(arguments, understood)
        config = with_start_values(as_base(Config, command))
        from pbt_rl.run.shown import describe_plan, page
        from pbt_rl.run.train import resolve, train

        if not command.show:
            return train(config, spare=spare)
        resolved = resolve(config)
        initial = resolved.controller().initial(config.members)
        if command.format != "text":
            print(written(to_json(config), command.format), end="")
            return 0
        print("\n".join([*describe_plan(resolved), *page(resolved, initial[0])]))
        return 0
    finally:
        if spare is not None:
            spare.discard()


def _shown(arguments: list[str]) -> str:
    """Return what people know the run by before it has a folder."""
    name, out = value_of(arguments, "--name"), value_of(arguments, "--out") or Config.out
    return f"a run of process {os.getpid()}" if name is None else f"{out}/{name}"


def parse_train(arguments: list[str]) -> tuple[Config, bool]:
    """Return the config of `pbt-rl train ARGUMENTS`, and whether only to show it. Raises ConfigError.

    The recipes of environment and algorithm give the defaults, a named one lies over them, then a file (--config), and
    the command line wins.
    """
    command = _parsed(arguments)
    return with_start_values(as_base(Config, command)), command.show


def _parsed(arguments: list[str], understood: Callable[[], None] = lambda: None) -> TrainCommand:
    if arguments and not arguments[0].startswith("-") and value_of(arguments, "--env") is None:
        arguments = ["--env", *arguments]  # `train gym/CartPole-v1`
    run = value_of(arguments, "--resume")
    if run is not None and RunFolder(Path(run)).is_run:
        raise ConfigError(
            f"--resume takes true or false here; what goes on with a run is: pbt-rl resume {run}"
        )
    if HELP & set(arguments):
        print_help(_help_defaults(arguments), PROG, arguments)
        raise SystemExit(0)
    command = _command(arguments, understood)
    if command is None:
        raise ConfigError(
            "--env is missing: give it as family/name, such as atari/pong, or module:factory; see `pbt-rl envs`"
        )
    require(command.show or command.format == "text", "format", command.format, "it is for --show: add that")
    return command


def _command(arguments: list[str], understood: Callable[[], None] = lambda: None) -> TrainCommand | None:
    """Return the command over what is weaker; None if no environment is named.

    understood: called once all words are, before the environment is made, which takes long.
    """
    name = value_of(arguments, "--recipe")
    recipe = {} if name is None else named(name)
    algo, in_file = file_of_options(arguments, recipe)
    hypers = hypers_of(algo)
    options = typed(table(TrainCommand, hypers=hypers), arguments, PROG)
    given = (recipe, in_file, options)
    env = next((values["env"] for values in reversed(given) if values.get("env")), None)
    if env is None:
        return None
    family_of(str(env))
    understood()
    return build(TrainCommand, composed(*given, algo=algo, fields=FIELDS), hypers=hypers)


def _help_defaults(arguments: list[str]) -> TrainCommand:
    rest = [argument for argument in arguments if argument not in HELP]
    try:
        return _command(rest) or TrainCommand(env="")
    except EnvSetupError:  # the options of an environment that cannot be made here can be read all the same
        return TrainCommand(env="")


def related(arguments: Sequence[str]) -> set[str]:
    """Return names of options, and of groups of them, that belong to what the arguments name. Raises ConfigError."""
    env, algo = value_of(arguments, "--env") or "", value_of(arguments, "--algo") or ""
    family = str(SHORT_NAMES.get(env, env)).partition("/")[0]
    names = set(FAMILIES[family].option_groups if family in FAMILIES else ())
    entry = algorithms.ALGORITHMS.get(algo)
    own = entry.hypers if entry is not None else load_algorithm(algo).hypers if ":" in algo else None
    names |= {f"hypers.{f.name}" for f in (() if own is None else fields(own))}
    for rule, entries in {"controller": CONTROLLERS, **RULES}.items():
        value = value_of(arguments, f"--{rule}")
        if value is None:
            continue
        names |= set(entries[value].options if value in entries else ())
        if rule in ("pbt.exploit", "pbt.explore"):
            names.add(f"{rule}_option")
    return names


def unread_hypers(algo: str | None) -> frozenset[str]:
    """Return the options of hypers that an algorithm does not read; it is imported for that. Raises ConfigError."""
    if algo is None:
        return frozenset()
    read = load_algorithm(algo).reads(use_vtrace=True)
    return frozenset(f"hypers.{one.name}" for one in fields(hypers_of(algo)) if one.name not in read)


def print_help(command: Any, prog: str, arguments: list[str]) -> None:
    """Print the options of a command, with its values as defaults. A field that is "" and has no default is required.

    --help: the common options, and those that belong to what the arguments name. --help-all: every option.
    """
    everything = "--help-all" in arguments
    extra, unread = related(arguments), unread_hypers(value_of(arguments, "--algo"))
    shown = [
        option
        for option in table(command).values()
        if (everything or option.metadata.get("common") or extra & {option.field, option.path[0]})
        and option.field not in unread
    ]
    try:
        draw(type(command), shown, lambda option: option.of(command), prog)
    except SystemExit:
        if not everything:
            print(MORE, end="")
