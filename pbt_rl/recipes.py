"""Recipes: values of options for an environment, and published command lines by name (`--recipe NAME`).

The environment's own recipe comes first, the algorithm's values and then a named recipe over it, and the user's options
win.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from pbt_rl.algos import registry as algorithms
from pbt_rl.envs.registry import EnvOptions, keywords, recipe
from pbt_rl.errors import ConfigError, environment_code

PAPER_PBT: Mapping[str, object] = {
    "pbt.ready": "asynchronous",
    "pbt.period_frames": 4_000_000,
    "pbt.start_frames": 4_000_000,
    "pbt.exploit": "truncation",
    "pbt.replace_fraction": 0.2,
    "pbt.replace_gap": 0.0,
    "pbt.replace_gap_absolute": 0.0,
    "pbt.explore": "factors",
    "pbt.factors": (1.2, 0.8),
    "pbt.objective_episodes": 10,
}
"""How the recipes of Jaderberg et al. 2017, section 4.1, compare and change members."""

RECIPES: Mapping[str, Mapping[str, object]] = {
    # Sample Factory's published command line for DMLab-30 with four agents, option by option. Its numbers of processes
    # (90 workers of 12 environments, core affinity) are planned from the machine here; experience is decorrelated at
    # the start by the units' different levels. Returns are V-trace's, and the network sees the last action and reward
    # (unlike there), as in every run on DMLab.
    "dmlab30-pbt": {
        "env": "dmlab30",
        "num_policies": 4,
        "algo": "appo",
        "train_for_frames": 10_000_000_000,
        "model.encoder": "impala",
        "model.hidden": 512,
        "model.core": "lstm",
        "model.core_size": 512,
        "learner.rollout": 32,
        "learner.batch": 2048,
        "learner.epochs": 1,
        "learner.minibatches": 1,
        "learner.max_policy_lag": 35,
        "hypers.unroll": 32,
        "hypers.gamma": 0.99,
        "hypers.learning_rate": 1e-4,
        "hypers.entropy_coef": 0.003,
        "hypers.max_grad_norm": 1e9,  # no limit
        "dmlab.actions": "extended",
        "dmlab.reward_unit": 5.0,
        "dmlab.renderer": "software",
        "dmlab.one_level_per_unit": True,
        "pbt.period_frames": 10_000_000,
        "pbt.start_frames": 100_000_000,
        "pbt.replace_gap": 0.05,
        "pbt.replace_gap_absolute": 5.0,
        "pbt.tune": ("learning_rate", "entropy_coef", "value_coef", "clip_ratio", "clip_value"),
    },
    # UNREAL under PBT on DMLab (Jaderberg et al. 2017, section 4.1 and appendix A.2): 40 members that choose by
    # truncation, each at its own times, and perturb learning rate, entropy cost and unroll. Steps are 4 frames. The
    # paper's limit of the gradient, 40, is of losses summed over 20 steps; ours are means.
    "unreal-dmlab": {
        "env": "dmlab/explore_goal_locations_small",
        "num_policies": 40,
        "algo": "unreal",
        "train_for_frames": 1_000_000_000,
        "learner.rollout": 50,
        "hypers.unroll": 20,
        "hypers.gamma": 0.99,
        "hypers.pixel_control_coef": 0.1,
        "hypers.reward_prediction_coef": 1.0,
        "hypers.value_replay_coef": 1.0,
        "hypers.max_grad_norm": 2.0,
        **PAPER_PBT,
        "pbt.tune": ("learning_rate=1e-5:5e-3", "entropy_coef=5e-4:1e-2", "unroll=5:50"),
    },
    # FuN under PBT on Atari (Jaderberg et al. 2017, section 4.1 and appendix A.2): alpha from 0.25 to 1 there, learning
    # rate and entropy cost around the FuN paper's, from memory: its appendix was not at hand. The paper's populations
    # are of 10 to 80 members, its games Amidar, Gravitar, Ms. Pacman and Enduro. Steps are 4 frames.
    "fun-atari": {
        "env": "atari/ms_pacman",
        "num_policies": 20,
        "algo": "fun",
        "train_for_frames": 1_000_000_000,
        "learner.rollout": 400,
        "learner.lr_schedule": "constant",
        "hypers.unroll": 400,
        "hypers.gamma": 0.99,
        "hypers.worker_gamma": 0.95,
        "hypers.learning_rate": 1e-4,
        "hypers.entropy_coef": 3e-4,
        "hypers.intrinsic_coef": 0.5,
        **PAPER_PBT,
        "pbt.tune": (
            "learning_rate=3.16e-5:3.16e-4",
            "entropy_coef=1e-4:1e-3",
            "intrinsic_coef=0.25:1",
        ),
    },
}


def named(name: str) -> Mapping[str, object]:
    """Dotted name of a config field -> value. Raises ConfigError for an unknown name."""
    if name not in RECIPES:
        raise ConfigError(f"--recipe {name} cannot be used: the recipes are {', '.join(RECIPES)}")
    return RECIPES[name]


def environment_recipe(env: str, env_option: Iterable[str] = ()) -> dict[str, object]:
    """Return the recipe of an environment. Raises EnvSetupError if the environment cannot be found or made."""
    with environment_code(env):
        return recipe(env, EnvOptions(keywords=keywords(env_option)))


def algorithm_recipe(algo: str, env_recipe: Mapping[str, object]) -> Mapping[str, object]:
    """Return what an algorithm lays over the recipe of an environment. Raises ConfigError if it cannot be loaded.

    appo, for which those recipes are written, is not loaded for it: torch would come with it.
    """
    if algo == "appo" or not algorithms.is_known(algo):
        return {}
    try:
        return algorithms.load(algo).recipe(env_recipe)
    except ValueError as error:
        raise ConfigError(f"--algo {algo} cannot be used: {error}") from error


def apply_recipe(config: Any, values: Mapping[str, object]) -> Any:
    """Return the config with dotted fields replaced: {"learner.rollout": 32, ...}."""
    nested: dict[str, dict[str, object]] = {}
    flat: dict[str, object] = {}
    for name, value in values.items():
        head, _, rest = name.partition(".")
        if rest:
            nested.setdefault(head, {})[rest] = value
        else:
            flat[head] = value
    parts = {head: dataclasses.replace(getattr(config, head), **inner) for head, inner in nested.items()}
    return dataclasses.replace(config, **flat, **parts)
