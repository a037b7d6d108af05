"""Options of `pbt-rl train` and `pbt_rl.train`, merged from layers.

Later layers take precedence: comparison times that follow from the budget, recipe of the environment, recipe of the
algorithm, values that follow from --hours, recipe of --recipe, file of --config, command line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pbt_rl.algos import lookup as algorithms
from pbt_rl.config import Config, Hypers, hypers_of
from pbt_rl.config.budget import comparison_times, following_budget, following_hours
from pbt_rl.config.start_values import with_start_values
from pbt_rl.envs.lookup import FAMILIES, EnvOptions, family_of, keywords, recipe
from pbt_rl.errors import ConfigError, algorithm_code, environment_code
from pbt_rl.options.declare import as_base, build, merged, option, table
from pbt_rl.options.files import checked, read_file
from pbt_rl.options.values import path_given
from pbt_rl.options.words import Entry, Line, split, typed
from pbt_rl.registry import Recipe

PROG = "pbt-rl train"
CONFIG = "config.json"
"""Name of the file with the options of a run. As a --config file, it never deletes a run (`overwrite`)."""
RECIPES: Mapping[str, Recipe] = {
    name: one
    for recipes in (
        *(family.recipes for family in FAMILIES.values()),
        *(entry.recipes for entry in algorithms.ALGORITHMS.values()),
    )
    for name, one in recipes.items()
}
"""Recipes of all families and algorithms, by name."""


@dataclass(frozen=True)
class TrainCommand(Config):
    """Train a population of policies."""

    show: bool = option(False, common=True)
    """Do not train, but print the plan (actors, vector envs, devices, batch), the tuned values, and the options that
    differ from the defaults."""
    probe: bool = option(True)
    """With --show: train for a few seconds to estimate the duration of the run. Results of the trial are deleted."""
    recipe: str = option(
        "", texts=lambda: {name: recipe.help for name, recipe in RECIPES.items()}, common=True
    )
    """Name of a set of published options. {each}"""
    format: Literal["text", "toml", "yaml", "json"] = "text"
    """Output of --show. text: the plan. toml, yaml, json: all options of the run, as a --config file."""
    config: Path | None = option(None, common=True)
    """File with options: FILE.toml, FILE.yaml or FILE.json, such as runs/NAME/config.json. Options on the command line
    take precedence."""


@dataclass(frozen=True)
class Layers:
    """Layers of options. Each layer maps dotted fields to values. Later layers take precedence."""

    hypers: type[Hypers]
    """Hypers class of the algorithm that the layers select."""
    recipe: Mapping[str, Any]
    """Recipe of --recipe."""
    file: Mapping[str, Any]
    """Content of the --config file."""
    typed: Mapping[str, Any]
    """Options on the command line."""

    @classmethod
    def read(cls, line: Line) -> Layers:
        """Read the option layers of a command line: recipe, config file and typed options.

        Raises ConfigError for invalid options.
        The environment is not made. A custom algorithm is imported. If the line has no --env, a word before the first
        option is the environment's id.
        """
        if line.head and line.last("env") is None:  # `train gym/CartPole-v1`
            line = replace(line, head=(), entries=(Entry("--env", None, line.head), *line.entries))
        recipe_name, given = line.last("recipe"), line.last("config")
        recipe = {} if recipe_name is None else _named(recipe_name)
        path = None if given is None else path_given("--config", given)
        content = {} if path is None else read_file(path)
        algos = line.last("algo"), content.get("algo"), recipe.get("algo")
        hypers = hypers_of(str(next(filter(None, algos), Config.algo)))
        file = checked(content, table(Config, hypers=hypers), path)
        if path is not None and path.name == CONFIG:
            file.pop("overwrite", None)
        return cls(hypers, recipe, file, typed(table(TrainCommand, hypers=hypers), line, PROG))

    @cached_property
    def values(self) -> dict[str, Any]:
        """Dotted field -> value, from recipe, file and command line. A later source replaces the value of an
        earlier source, except that NAME=VALUE entries are merged by NAME.
        """
        pairs = {one.field for one in table(Config).values() if one.holds_pairs}
        values: dict[str, Any] = {}
        for layer in (self.recipe, self.file, self.typed):
            entries = {name: merged(values.get(name, ()), layer[name]) for name in pairs & layer.keys()}
            values |= {**layer, **entries}
        return values

    @property
    def given(self) -> set[str]:
        """Dotted fields that the user sets, on the command line or in a file."""
        return {name for name, value in self.file.items() if value is not None} | self.typed.keys()

    def check_env(self) -> None:
        """Raise ConfigError if --env is missing. Raise EnvSetupError for an unknown environment."""
        if not self.values.get("env"):
            raise ConfigError(
                "--env is missing: give it as family/name, such as atari/pong, or module:factory; see `pbt-rl envs`"
            )
        family_of(str(self.values["env"]))

    def command(self, before: Config | None = None) -> TrainCommand:
        """Build the command. The environment may be made, because its recipe is a layer.

        before: config of the run that the command continues, if any. The run keeps its comparison times, except times
        that the user gives.
        Raises ConfigError for invalid options, and EnvSetupError if the environment cannot be made.
        """
        self.check_env()
        given, known = self.values, {f.name for f in fields(Config)}
        recommended = _environment_recipe(given["env"], given.get("env_option", ()))
        # A recipe may set options of a family that is not installed.
        of_env = {name: value for name, value in recommended.items() if name.partition(".")[0] in known}
        of_algorithm = _algorithm_recipe(given.get("algo", Config.algo), of_env, self.hypers)
        kept = {} if before is None else comparison_times(before)
        whole = {**of_env, **of_algorithm, **kept, **given}
        # --hours on the command line takes precedence over a file, which may contain all options.
        whole |= following_hours(whole, {**kept, **(self.typed if "hours" in self.typed else given)})
        return build(TrainCommand, whole | following_budget(whole, given), hypers=self.hypers)

    def config(self, before: Config | None = None) -> Config:
        """Build the config of the run, without the options of `TrainCommand`.

        before: as in `command`.
        Raises ConfigError for invalid options, and EnvSetupError if the environment cannot be made.
        """
        return with_start_values(as_base(Config, self.command(before)))


def _named(name: str) -> Mapping[str, object]:
    """Return the recipe with this name: dotted field -> value. Raises ConfigError for an unknown name."""
    if name not in RECIPES:
        raise ConfigError(f"--recipe {name} cannot be used: the recipes are {', '.join(RECIPES)}")
    return RECIPES[name].values


def _environment_recipe(env: str, env_option: Iterable[str]) -> dict[str, object]:
    """Return the recipe of an environment: dotted field -> value. env_option: KEY=VALUE texts for the factory.

    Raises EnvSetupError if the environment cannot be made.
    """
    with environment_code(env):
        return recipe(env, EnvOptions(keywords=keywords(env_option)))


def _algorithm_recipe(
    algo: str, env_recipe: Mapping[str, object], hypers: type[Hypers]
) -> Mapping[str, object]:
    """Return the recipe of an algorithm for an environment: dotted field -> value.

    Raises ConfigError if the algorithm cannot be loaded, or if its recipe raises an error, has unknown options, or has
    values of another type.

    If the algorithm is unknown, or the recipes of environments already fit it (`recipes_are_for_it`), return {}. Such
    an algorithm is not loaded, because loading imports torch.

    env_recipe: recipe of the environment. hypers: hypers class of the algorithm.
    """
    entry = algorithms.ALGORITHMS.get(algo)
    if not algorithms.is_known(algo) or (entry is not None and entry.recipes_are_for_it):
        return {}
    with algorithm_code(f"--algo {algo} cannot be used", "recipe"):
        found = algorithms.load(algo).recipe(env_recipe)
        if not isinstance(found, Mapping):
            raise ValueError(  # noqa: TRY004 - the user's function is wrong, not our call
                f"recipe returned {type(found).__name__}: return a dict, option -> value"
            )
        return checked(found, table(Config, hypers=hypers))


def parse_train(arguments: Sequence[str]) -> Config:
    """Build the config of `pbt-rl train ARGUMENTS`.

    Raises ConfigError for invalid options, and EnvSetupError if the environment cannot be made.
    """
    return Layers.read(split(arguments)).config()


def layers_of(options: Mapping[str, Any]) -> Layers:
    """Return the layers of a config whose options are given in Python. Raises ConfigError for invalid options.

    options: fields of `Config`. The options of a group are a mapping, an option group, or dotted names.
    """
    given, algo = options.get("env", ""), options.get("algo", Config.algo)
    if not isinstance(given, str):
        raise ConfigError(
            f"env={given!r:.200} cannot be used: other processes make the environment. Give its name, as family/name "
            "or module:factory"
        )
    hypers = hypers_of(algo if isinstance(algo, str) else Config.algo)
    return Layers(hypers, {}, {}, checked(options, table(Config, hypers=hypers)))


def make_config(**options: Any) -> Config:
    """Build a config from options, as in `layers_of`, and the recipes.

    Raises ConfigError for invalid options, and EnvSetupError if the environment cannot be made.
    """
    return layers_of(options).config()
