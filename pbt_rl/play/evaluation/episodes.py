"""Evaluation episodes of one saved member, and the messages of the evaluation process.

All evaluations during training have equal seeds, which differ from the seeds of training. The first episode of each
row therefore begins in the same state, if the environment is reproducible under a seed and ignores `env_index`. The
initial states of later episodes are equal only if steps draw no random numbers.

In the final evaluation, a *round* is one episode on every row. Only complete rounds count. Otherwise, the longest
episodes would be missing if the evaluation reached its own time limit.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pbt_rl.config import Config
from pbt_rl.controllers.objectives import mean, spread
from pbt_rl.envs.base import VectorEnv, default_shaping_source, private_step_arrays
from pbt_rl.envs.family import OUTSIDE
from pbt_rl.envs.lookup import make_vector_env
from pbt_rl.envs.time_limits import closing
from pbt_rl.play import member as play
from pbt_rl.play.film import first_clip
from pbt_rl.record.checkpoints import Checkpoint
from pbt_rl.record.saved import SavedPolicy

JUDGE = "pbt_rl.play.evaluation.process"
"""Module of the process that plays evaluation episodes."""


@dataclass(frozen=True)
class FinalSetup:
    """First message to the process of a final evaluation. member: None for the random policy."""

    config: Config
    checkpoint: Checkpoint
    member: int | None
    episodes: int


@dataclass(frozen=True)
class FinalRound:
    """Episodes that have ended since the last message.

    objectives: if a round is complete, the objectives of one episode on each row, in order of the rows. Otherwise ().
    ended: number of episodes that have ended since the last message.
    """

    objectives: tuple[float, ...]
    ended: int


def rows_of(episodes: int) -> int:
    """Return the number of rows for an evaluation: the largest divisor of `episodes` up to MAX_ROWS."""
    return max(rows for rows in range(1, play.MAX_ROWS + 1) if episodes % rows == 0)


def rounds(vector_env: VectorEnv, player: play.Acts, number: int) -> Iterator[FinalRound]:
    """Play `number` episodes on each row. Yield a message when episodes have ended.

    A round is complete as soon as each row has ended one more episode. Short episodes are therefore not preferred.
    """
    step = private_step_arrays(vector_env.spec, vector_env.rows)
    scores: list[list[float]] = [[] for _ in range(vector_env.rows)]
    complete = 0
    vector_env.reset(step)
    while complete < number:
        vector_env.step(player.act(step), step)
        ended = [row for row in np.flatnonzero(step.episode_done).tolist() if len(scores[row]) < number]
        for row in ended:
            scores[row].append(float(step.objective[row]))
        if not ended:
            continue
        if is_round := min(map(len, scores)) > complete:
            complete += 1
        objectives = tuple(row[complete - 1] for row in scores) if is_round else ()
        yield FinalRound(objectives, len(ended))


def final_rounds(setup: FinalSetup) -> Iterator[FinalRound]:
    """Play the episodes of a final evaluation. Yield a message when episodes have ended."""
    config, seed = setup.config, setup.config.seed
    spec, options = play.evaluation_spec(config)
    number = config.members
    player: play.Acts = play.RandomPlayer(spec, seed)
    if setup.member is not None:
        number = setup.member
        pack = play.load_pack(config, spec, SavedPolicy(Path(), setup.checkpoint, number), seed, check=False)
        player = play.Player(play.Policy(pack, spec, config.model, seed, greedy=False))
    # Rows of a device simulator cost little.
    rows = setup.episodes if spec.simulator else rows_of(setup.episodes)
    options = replace(options, first_row=OUTSIDE * (1 + number))
    vector_env = make_vector_env(spec.env_id, rows, seed, options, default_shaping_source(spec))
    with closing(vector_env):
        yield from rounds(vector_env, player, setup.episodes // rows)


EPISODES = 20
"""Default number of episodes of an evaluation during training. If the environment has tasks: one episode per task."""
SEEDS = 2**31
"""Spawn key of the evaluation seed. (Learners and actors have the spawn keys 0, 1, ...)"""


@dataclass(frozen=True)
class EvaluationSetup:
    """First message to the process of an evaluation during training.

    descriptor: file descriptor for the clip. -1: no clip is filmed.
    """

    config: Config
    checkpoint: Checkpoint
    member: int
    priority: int
    """Number to add to the niceness of the process."""
    descriptor: int = -1


@dataclass(frozen=True)
class Evaluated:
    """Result of an evaluation during training.

    mean, spread: mean and std of the objective over the episodes, or over the tasks if the environment has tasks.
    """

    mean: float
    spread: float
    episodes: int
    seconds: float


def evaluation_seed(config: Config) -> int:
    """Derive the seed of evaluation episodes from the seed of the run, with a separate spawn key."""
    return int(np.random.SeedSequence(config.seed, spawn_key=(SEEDS,)).generate_state(1)[0])


def evaluated(setup: EvaluationSetup) -> Evaluated:
    """Play the episodes of an evaluation during training. Write the clip if `setup` has a descriptor."""
    os.nice(setup.priority)
    began = time.monotonic()
    config, seed = setup.config, evaluation_seed(setup.config)
    spec, options = play.evaluation_spec(config)
    options = replace(options, first_row=OUTSIDE * (1 + setup.member))
    pack = play.load_pack(
        config, spec, SavedPolicy(Path(), setup.checkpoint, setup.member), seed, check=False
    )
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
