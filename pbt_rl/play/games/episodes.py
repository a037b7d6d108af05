"""Episodes that one saved member plays, beside training or at the end, and the messages about them.

The seeds of games beside training are their own, and the same each time: two results of a run differ by the weights,
not by what the games happened to begin with.

A *round* of final games is one episode of every row. Episodes are counted by rounds, so that a time limit leaves out
whole rounds and does not prefer short episodes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np

from pbt_rl.config import Config
from pbt_rl.controllers.objectives import mean, spread
from pbt_rl.envs.base import Unit, default_shaping_source, private_step_arrays
from pbt_rl.envs.family import OUTSIDE
from pbt_rl.envs.registry import make_unit
from pbt_rl.envs.time_limits import closing
from pbt_rl.play import member as play
from pbt_rl.play.film import first_clip
from pbt_rl.record.checkpoints import Checkpoint
from pbt_rl.record.saved import SavedPolicy

JUDGE = "pbt_rl.play.games.process"
"""Module of the process that plays them."""


@dataclass(frozen=True)
class FinalSetup:
    """The first message: who plays how much. member: None for random actions. episodes: a multiple of the rows."""

    config: Config
    checkpoint: Checkpoint
    member: int | None
    episodes: int


@dataclass(frozen=True)
class FinalRound:
    """The true objective of one episode of every row; of none, once the player is ready."""

    objectives: tuple[float, ...]


def rows_of(episodes: int) -> int:
    """Return how many rows play, so that every round is whole: the largest divisor that is not above MAX_ROWS."""
    return max(rows for rows in range(1, play.MAX_ROWS + 1) if episodes % rows == 0)


def rounds(unit: Unit, player: play.Acts) -> Iterator[FinalRound]:
    """Play without end; yield round after round."""
    step = private_step_arrays(unit.spec, unit.rows)
    waiting: list[list[float]] = [[] for _ in range(unit.rows)]
    unit.reset(step)
    while True:
        unit.step(player.act(step), step)
        for row in np.flatnonzero(step.episode_done).tolist():
            waiting[row].append(float(step.objective[row]))
        if all(waiting):
            yield FinalRound(tuple(scores.pop(0) for scores in waiting))


def final_rounds(setup: FinalSetup) -> Iterator[FinalRound]:
    """Play the episodes of the setup; yield an empty round first, then every round as it is finished."""
    config, seed = setup.config, setup.config.seed
    spec, options = play.evaluation_spec(config)
    number = config.members
    player: play.Acts = play.RandomPlayer(spec, seed)
    if setup.member is not None:
        number = setup.member
        pack = play.load_pack(config, spec, SavedPolicy(Path(), setup.checkpoint, number), seed)
        player = play.Player(play.Policy(pack, spec, config.model, seed, greedy=False))
    rows = setup.episodes if spec.resident else rows_of(setup.episodes)  # a row of tensors costs little
    options = replace(options, first_row=OUTSIDE * (1 + number))
    unit = make_unit(spec.env_id, rows, seed, options, default_shaping_source(spec))
    with closing(unit):
        yield FinalRound(())
        yield from islice(rounds(unit, player), setup.episodes // rows)


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


def evaluation_seed(config: Config) -> int:
    """Return the seed of the games, which is none of those that members train with."""
    return int(np.random.SeedSequence(config.seed, spawn_key=(SEEDS,)).generate_state(1)[0])


def evaluated(setup: EvaluationSetup) -> Evaluated:
    """Play the episodes of the setup; write the clip, if one is asked for."""
    os.nice(setup.priority)
    began = time.monotonic()
    config, seed = setup.config, evaluation_seed(setup.config)
    spec, options = play.evaluation_spec(config)
    options = replace(options, first_row=OUTSIDE * (1 + setup.member))
    pack = play.load_pack(config, spec, SavedPolicy(Path(), setup.checkpoint, setup.member), seed)
    policy = play.Policy(pack, spec, config.model, seed, greedy=False)
    episodes = config.final_episodes or (1 if spec.tasks else EPISODES)
    if setup.descriptor < 0:
        played = play.play_episodes(policy, options, episodes, seed)
    else:
        with os.fdopen(setup.descriptor, "wb") as file:
            clip = first_clip(file)
            played = play.play_episodes(policy, options, episodes, seed, clip)
    counted = play.counted_objectives(spec, played)
    return Evaluated(mean(counted), spread(counted), len(played), time.monotonic() - began)
