"""Recipes: values of options for an environment and an algorithm, and published command lines (`--recipe NAME`).

They lie over each other in this order: the environment's, the algorithm's, what follows from --hours, a named one, a
file, the user's own options.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from pbt_rl.algos import registry as algorithms
from pbt_rl.config import Config
from pbt_rl.controllers.registry import controller_entry
from pbt_rl.envs.registry import FAMILIES, EnvOptions, keywords, recipe
from pbt_rl.errors import ConfigError, environment_code, require
from pbt_rl.options.declare import merged, table
from pbt_rl.registry import Recipe

MOST_HOURS, COMPARISONS = 10_000, 30
"""Of --hours."""
ENDLESS_FRAMES = 10**15
"""With --hours: the time ends the run, and not the usual number of frames."""

RECIPES: Mapping[str, Recipe] = {
    name: one
    for recipes in (
        *(family.recipes for family in FAMILIES.values()),
        *(entry.recipes for entry in algorithms.ALGORITHMS.values()),
    )
    for name, one in recipes.items()
}
"""What families and algorithms declare, by name."""


_FIELDS = {f.name for f in fields(Config)}
_PAIRS = [one.field for one in table(Config).values() if one.holds_pairs]


def named(name: str) -> Mapping[str, object]:
    """Dotted name of a config field -> value. Raises ConfigError for an unknown name."""
    if name not in RECIPES:
        there = f"the recipes are {', '.join(RECIPES)}" if RECIPES else "there are no recipes here"
        raise ConfigError(f"--recipe {name} cannot be used: {there}")
    return RECIPES[name].values


def composed(*given: Mapping[str, Any]) -> dict[str, Any]:
    """Return dotted field of the config -> value: what is given, over the recipes of its environment and algorithm.

    given: from the weakest to the strongest, such as a named recipe, a file and typed options; `env` is in one of them.
    NAME=VALUE entries are exchanged one by one. What a recipe says of options that no run here has is left out. Raises
    ConfigError, or EnvSetupError if the environment cannot be found or made.
    """
    values: dict[str, Any] = {}
    for stronger in given:
        pairs = {name: merged(values.get(name, ()), stronger[name]) for name in _PAIRS if name in stronger}
        values |= {**stronger, **pairs}
    recommended = environment_recipe(values["env"], values.get("env_option", ()))
    of_env = {name: value for name, value in recommended.items() if name.partition(".")[0] in _FIELDS}
    whole = {**of_env, **algorithm_recipe(values.get("algo", Config.algo), of_env), **values}
    return whole | following_hours(whole, values)


def following_hours(values: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what follows from `hours`, without what is given; nothing without it. Raises ConfigError."""
    hours = values.get("hours")
    if hours is None:
        return {}
    require(0 < hours <= MOST_HOURS, "hours", f"{hours:g}", f"give a number above 0, at most {MOST_HOURS:,}")
    compares = controller_entry(values.get("controller", "pbt")).compares and values.get("pbt.enabled", True)
    remedy = "it says when members are compared, and these are not: give --train-for-seconds instead"
    require(compares, "hours", f"{hours:g}", remedy)
    seconds = given.get("train_for_seconds") or 3600 * hours
    follows = {
        "train_for_seconds": seconds,
        "train_for_frames": ENDLESS_FRAMES,
        "pbt.ready": "timed",
        "pbt.period_seconds": float(f"{seconds / (COMPARISONS + 1):.3g}"),  # the last one is trained on, too
    }
    return {name: value for name, value in follows.items() if name not in given}


def environment_recipe(env: str, env_option: Iterable[str] = ()) -> dict[str, object]:
    """Return the recipe of an environment. Raises EnvSetupError if the environment cannot be found or made."""
    with environment_code(env):
        return recipe(env, EnvOptions(keywords=keywords(env_option)))


def algorithm_recipe(algo: str, env_recipe: Mapping[str, object]) -> Mapping[str, object]:
    """Return what an algorithm lays over the recipe of an environment. Raises ConfigError if it cannot be loaded.

    One for which those recipes are written is not loaded: torch would come with it.
    """
    entry = algorithms.ALGORITHMS.get(algo)
    if not algorithms.is_known(algo) or (entry is not None and entry.recipes_are_for_it):
        return {}
    try:
        return algorithms.load(algo).recipe(env_recipe)
    except ValueError as error:
        raise ConfigError(f"--algo {algo} cannot be used: {error}") from error
