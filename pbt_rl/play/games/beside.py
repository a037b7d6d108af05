"""Games beside training: a saved member plays fresh episodes while the run goes on.

Their seeds are their own, and the same each time: two results of a run differ by the weights, not by what the games
happened to begin with.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pbt_rl.config import Config
from pbt_rl.controllers.objectives import mean, spread
from pbt_rl.envs.base import EnvSpec
from pbt_rl.envs.family import OUTSIDE
from pbt_rl.play.film import first_clip
from pbt_rl.play.member import (
    Policy,
    counted_objectives,
    evaluation_spec,
    load_pack,
    play_episodes,
)
from pbt_rl.record.checkpoints import Checkpoint
from pbt_rl.record.saved import SavedPolicy

EPISODES = 20
"""If --final-episodes does not say how many; with tasks one of each."""
SEEDS = 2**31
"""Branch of the run's seed that no actor has: those are counted from 0."""


@dataclass(frozen=True)
class EvaluationSetup:
    """The first message: who plays. descriptor: of the file for a clip of the first episode; -1 for none."""

    config: Config
    checkpoint: Checkpoint
    member: int
    priority: int
    """Raises the niceness."""
    descriptor: int = -1


@dataclass(frozen=True)
class Evaluated:
    """Mean and standard deviation of the true objective over these episodes; with tasks, over the tasks."""

    mean: float
    spread: float
    episodes: int
    seconds: float


def evaluation_episodes(config: Config, spec: EnvSpec) -> int:
    """Return how many episodes are played; with tasks, of each."""
    return config.final_episodes or (1 if spec.tasks else EPISODES)


def evaluation_seed(config: Config) -> int:
    """Return the seed of the games, which is none of those that members train with."""
    return int(np.random.SeedSequence(config.seed, spawn_key=(SEEDS,)).generate_state(1)[0])


def evaluated(setup: EvaluationSetup) -> Evaluated:
    """Play the episodes of the setup; write the clip, if one is asked for."""
    os.nice(setup.priority)
    began = time.monotonic()
    config, seed = setup.config, evaluation_seed(setup.config)
    spec, options = evaluation_spec(config)
    options = replace(options, first_row=OUTSIDE * (1 + setup.member))
    pack = load_pack(config, spec, SavedPolicy(Path(), setup.checkpoint, setup.member), seed)
    policy = Policy(pack, spec, config.model, seed, greedy=False)
    episodes = evaluation_episodes(config, spec)
    if setup.descriptor < 0:
        played = play_episodes(policy, options, episodes, seed)
    else:
        with os.fdopen(setup.descriptor, "wb") as file:
            clip = first_clip(file)
            played = play_episodes(policy, options, episodes, seed, clip)
    counted = counted_objectives(spec, played)
    return Evaluated(mean(counted), spread(counted), len(played), time.monotonic() - began)
