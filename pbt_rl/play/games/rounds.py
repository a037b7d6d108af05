"""Final games of one member: whole episodes, round by round, and the messages about them.

A *round* is one episode of every row. Episodes are counted by rounds, so that a time limit leaves out whole rounds
and does not prefer short episodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np

from pbt_rl.config import Config
from pbt_rl.envs.base import Unit, default_shaping_source, private_step_arrays
from pbt_rl.envs.family import OUTSIDE
from pbt_rl.envs.registry import make_unit
from pbt_rl.envs.time_limits import closing
from pbt_rl.play.member import MAX_ROWS, Player, Policy, evaluation_spec, load_pack
from pbt_rl.record.checkpoints import Checkpoint
from pbt_rl.record.saved import SavedPolicy

JUDGE = "pbt_rl.play.games.process"
"""Module of the process that plays them."""


@dataclass(frozen=True)
class FinalSetup:
    """The first message: who plays how much. episodes: a multiple of the rows."""

    config: Config
    checkpoint: Checkpoint
    member: int
    episodes: int


@dataclass(frozen=True)
class FinalRound:
    """The true objective of one episode of every row; of none, once the player is ready."""

    objectives: tuple[float, ...]


def rows_of(episodes: int) -> int:
    """Return how many rows play, so that every round is whole: the largest divisor that is not above MAX_ROWS."""
    return max(rows for rows in range(1, MAX_ROWS + 1) if episodes % rows == 0)


def rounds(unit: Unit, player: Player) -> Iterator[FinalRound]:
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
    spec, options = evaluation_spec(config)
    pack = load_pack(config, spec, SavedPolicy(Path(), setup.checkpoint, setup.member), seed)
    rows = setup.episodes if spec.resident else rows_of(setup.episodes)  # a row of tensors costs little
    options = replace(options, first_row=OUTSIDE * (1 + setup.member))
    unit = make_unit(spec.env_id, rows, seed, options, default_shaping_source(spec))
    with closing(unit):
        yield FinalRound(())
        yield from islice(
            rounds(unit, Player(Policy(pack, spec, config.model, seed, greedy=False))), setup.episodes // rows
        )
