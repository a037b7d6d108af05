"""Recipes: default options of an environment or algorithm, and published command lines (`--recipe NAME`).

`command.py` merges them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pbt_rl.algos import lookup as algorithms
from pbt_rl.envs.lookup import FAMILIES, EnvOptions, keywords, recipe
from pbt_rl.errors import ConfigError, environment_code
from pbt_rl.registry import Recipe

RECIPES: Mapping[str, Recipe] = {
    name: one
    for recipes in (
        *(family.recipes for family in FAMILIES.values()),
        *(entry.recipes for entry in algorithms.ALGORITHMS.values()),
    )
    for name, one in recipes.items()
}
"""Recipes of all families and algorithms, by name."""


def named(name: str) -> Mapping[str, object]:
    """Return a named recipe: dotted field -> value. Raises ConfigError for an unknown name."""
    if name not in RECIPES:
        there = f"the recipes are {', '.join(RECIPES)}" if RECIPES else "there are no recipes here"
        raise ConfigError(f"--recipe {name} cannot be used: {there}")
    return RECIPES[name].values


def environment_recipe(env: str, env_option: Iterable[str] = ()) -> dict[str, object]:
    """Return the recipe of an environment. Raises EnvSetupError if the environment cannot be found or made."""
    with environment_code(env):
        return recipe(env, EnvOptions(keywords=keywords(env_option)))


def algorithm_recipe(algo: str, env_recipe: Mapping[str, object]) -> Mapping[str, object]:
    """Return the recipe of an algorithm, given that of the environment. Raises ConfigError if it cannot be loaded.

    An algorithm with `recipes_are_for_it` is not loaded, because that would import torch.
    """
    entry = algorithms.ALGORITHMS.get(algo)
    if not algorithms.is_known(algo) or (entry is not None and entry.recipes_are_for_it):
        return {}
    try:
        return algorithms.load(algo).recipe(env_recipe)
    except ValueError as error:
        raise ConfigError(f"--algo {algo} cannot be used: {error}") from error
