"""Recipes: values of options for an environment and an algorithm, and published command lines (`--recipe NAME`).

They lie over each other in this order: the environment's, the algorithm's, values derived from the budget of the run,
a named one, a file, the user's own options.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from pbt_rl.algos import registry as algorithms
from pbt_rl.config import Config
from pbt_rl.controllers.registry import controller_entry
from pbt_rl.envs.registry import FAMILIES, EnvOptions, keywords, recipe
from pbt_rl.errors import ConfigError, environment_code, require
from pbt_rl.registry import Recipe

MOST_HOURS, COMPARISONS = 10_000, 30
"""Of a budget of time."""
USUAL_FRAMES: int = Config.train_for_frames
FIRST_SHARE, PERIODS = 20, 25
"""Of a budget of frames: the first comparison is due after a twentieth of it, each later one after a 25th."""
ENDLESS_FRAMES = 10**15
"""With --hours: the time ends the run, and not the usual number of frames."""
PAIRS = ("env_option", "shaping")
"""Options of a run that hold key=value entries."""

RECIPES: Mapping[str, Recipe] = {
    name: one
    for recipes in (
        *(family.recipes for family in FAMILIES.values()),
        *(entry.recipes for entry in algorithms.ALGORITHMS.values()),
    )
    for name, one in recipes.items()
}
"""What families and algorithms declare, by name."""


def named(name: str) -> Mapping[str, object]:
    """Dotted name of a config field -> value. Raises ConfigError for an unknown name."""
    if name not in RECIPES:
        there = f"the recipes are {', '.join(RECIPES)}" if RECIPES else "there are no recipes here"
        raise ConfigError(f"--recipe {name} cannot be used: {there}")
    return RECIPES[name].values


def composed(*given: Mapping[str, Any], algo: str, fields: Collection[str]) -> dict[str, Any]:
    """Return dotted field of the config -> value: what is given, over the recipes of its environment and algorithm.

    given: from the weakest to the strongest, such as a named recipe, a file and typed options; `env` is in one of them.
    Entries key=value (PAIRS) are exchanged one by one. algo: used if none of them names one. fields: of
    the config; what a recipe says of other options is left out. Raises ConfigError, or
    EnvSetupError if the environment cannot be found or made.
    """
    values: dict[str, Any] = {}
    for stronger in given:
        pairs = {name: merged(values.get(name, ()), stronger[name]) for name in PAIRS if name in stronger}
        values |= {**stronger, **pairs}
    recommended = environment_recipe(values["env"], values.get("env_option", ()))
    of_env = {name: value for name, value in recommended.items() if name.partition(".")[0] in fields}
    whole = {**of_env, **algorithm_recipe(values.get("algo", algo), of_env), **values}
    whole |= following_hours(whole, values)
    return whole | following_budget(whole, values)


def following_budget(values: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the times of comparisons that follow from the run's own budget, without those that are set.

    By frames: the first after a twentieth of them, the others a 25th apart (docs/tune.md). By time, as with `hours`, if
    only --train-for-seconds is given, because how many frames these hold depends on the machine.
    """
    of_frames = ("train_for_frames", "pbt.start_frames", "pbt.period_frames")
    by_rounds = values.get("controller", "pbt") != "pbt" or values.get("pbt.evaluate_episodes")
    serial = values.get("mode") == "serial"  # equal seeds give equal decisions
    seconds = values.get("train_for_seconds", 0)
    follows: dict[str, Any] = {}
    if seconds and not (
        serial or by_rounds or "pbt.ready" in given or any(name in given for name in of_frames)
    ):
        follows = timed(seconds)
    follows |= in_frames(values.get("train_for_frames", USUAL_FRAMES))
    return {name: value for name, value in follows.items() if name not in values}


def in_frames(budget_frames: int) -> dict[str, int]:
    """Return the options for comparisons within a budget of frames of each member."""
    return {
        "pbt.start_frames": budget_frames // FIRST_SHARE,
        "pbt.period_frames": max(1, budget_frames // PERIODS),
    }


def timed(seconds: float) -> dict[str, Any]:
    """Return the options for COMPARISONS comparisons by time. The stretch after the last one is trained on, too."""
    return {"pbt.ready": "timed", "pbt.period_seconds": float(f"{seconds / (COMPARISONS + 1):.3g}")}


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
        **timed(seconds),
    }
    return {name: value for name, value in follows.items() if name not in given}


def merged(entries: Sequence[str], stronger: Sequence[str]) -> tuple[str, ...]:
    """Return key=value entries, without those whose key others have, and behind them the others."""
    keys = {entry.partition("=")[0] for entry in stronger}
    return (*(entry for entry in entries if entry.partition("=")[0] not in keys), *stronger)


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
