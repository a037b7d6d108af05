"""`pbt-rl train`: from the command line to a config, over the recipes that give its defaults."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from pbt_rl.cli.help import print_help
from pbt_rl.cli.parse import typed, value_of
from pbt_rl.config import Config, hypers_of
from pbt_rl.envs.base import EnvSetupError
from pbt_rl.errors import ConfigError, require
from pbt_rl.extras import offered
from pbt_rl.given.files import read_config, read_file, with_start_values, written
from pbt_rl.options import as_base, build, option, table
from pbt_rl.recipes import RECIPES, composed, named
from pbt_rl.record.folder import RunFolder
from pbt_rl.run.spare import SpareLearner, spare_learner

PROG = "pbt-rl train"
Form = Literal["text", "toml", "yaml", "json"]
FIELDS = [f.name for f in fields(Config)]
HELP = {"-h", "--help", "--help-all"}
WITHOUT_A_RUN = HELP | {"--show"}


@dataclass(frozen=True)
class TrainCommand(Config):
    """Train a population of policies."""

    show: bool = option(False, common=True)
    """Print the plan (actors, units, rows, devices, batch), the values that are tuned and the options that differ from
    the defaults, and start nothing."""
    format: Form = "text"
    """With --show: print the whole config instead, as a file for --config."""
    config: Path | None = option(None, common=True)
    """File of options, FILE.toml, FILE.yaml or FILE.json, such as runs/NAME/config.json. The command line wins."""
    recipe: str = option(
        "", texts=lambda: {name: recipe.help for name, recipe in RECIPES.items()}, common=True
    )
    """Options of a published command line, by name. {each}"""


def run(arguments: list[str]) -> int:
    """Train, or with --show print what would be trained."""
    serial = value_of(arguments, "--mode") == "serial"
    spare = None if serial or WITHOUT_A_RUN & set(arguments) else spare_learner()
    try:
        return _run(arguments, spare)
    finally:
        if spare is not None:
            spare.discard()


def _run(arguments: list[str], spare: SpareLearner | None) -> int:
    config, show = parse_train(arguments)
    from pbt_rl.record.folder import to_json
    from pbt_rl.run.train import resolve, train
    from pbt_rl.run.views import describe_plan

    if not show:
        return train(config, spare=spare)
    resolved = resolve(config)
    initial = resolved.controller().initial(config.members)
    if show != "text":
        print(written(to_json(config), show), end="")
        return 0
    lines = describe_plan(resolved)
    for more in offered("pbt_rl", "SHOWN"):
        lines += more(resolved, initial[0])
    print("\n".join(lines))
    return 0


def parse_train(arguments: list[str]) -> tuple[Config, Form | None]:
    """Return the config of `pbt-rl train ARGUMENTS`, and the form in which only to show it, if so.

    The recipes of environment and algorithm give the defaults, a named one lies over them, then a file,
    and the command line wins.
    """
    run = value_of(arguments, "--resume")
    if run is not None and RunFolder(Path(run)).is_run:
        raise ConfigError(
            f"--resume takes true or false here; what goes on with a run is: pbt-rl resume {run}"
        )
    if HELP & set(arguments):
        print_help(_help_defaults(arguments), PROG, arguments)
        raise SystemExit(0)
    command = _command(arguments)
    if command is None:
        raise ConfigError(
            "--env is missing: give it as family/name, such as atari/pong, or module:factory; see `pbt-rl envs`"
        )
    require(command.show or command.format == "text", "format", command.format, "it is for --show: add that")
    return with_start_values(as_base(Config, command)), command.format if command.show else None


def _command(arguments: list[str]) -> TrainCommand | None:
    """Return the command over the recipes and a file; None if no environment is named."""
    name, file = value_of(arguments, "--recipe"), value_of(arguments, "--config")
    recipe = {} if name is None else named(name)
    in_file = {} if file is None else read_file(Path(file))
    algo = value_of(arguments, "--algo") or str(in_file.get("algo") or recipe.get("algo", Config.algo))
    hypers = hypers_of(algo)
    options = typed(table(TrainCommand, hypers=hypers), arguments, PROG)
    weaker = {} if file is None else read_config(Path(file), algo)
    if not any(given.get("env") for given in (recipe, weaker, options)):
        return None
    return build(TrainCommand, composed(recipe, weaker, options, algo=algo, fields=FIELDS), hypers=hypers)


def _help_defaults(arguments: list[str]) -> TrainCommand:
    rest = [argument for argument in arguments if argument not in HELP]
    try:
        return _command(rest) or TrainCommand(env="")
    except EnvSetupError:  # the options of an environment that cannot be made here can be read all the same
        return TrainCommand(env="")
