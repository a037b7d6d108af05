"""Options and scoring of Atari games, for ale-py (atari/) and EnvPool (envpool/).

Each of these packages has a vector env of emulators, the *engine*. The engine delivers whole games with raw scores.
This module applies clipping, lost lives and shaping, vectorised over rows. The objective is always the unclipped score
of the whole game.

Axes: R rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from pbt_rl.errors import EnvSetupError
from pbt_rl.options.declare import option

from .base import FamilyOptions

MULTIPLAYER_ONLY = frozenset({"combat", "joust", "maze_craze", "warlords"})
"""ROMs of ale-py without a one-player mode. Loading such a ROM ends the process."""

SCORE_SCALE = "score_scale"
LIFE_LOSS_PENALTY = "life_loss_penalty"


@dataclass(frozen=True)
class AtariOptions(FamilyOptions):
    """Options of Atari games. All frames are emulator frames."""

    frame_skip: int = option(4, at_least=1, at_most=60)
    """Emulator frames per step. The action is repeated, and rewards are summed."""
    frame_stack: int = option(4, at_least=1, at_most=4)
    """Number of newest frames that are stacked as one observation. At most 4, because a stored pixel has 4 bytes."""
    repeat_action_probability: float = option(0.0, at_least=0, below=1)
    """Sticky actions: probability per frame that the last action is repeated (0.25 in Machado et al. 2018)."""
    full_action_space: bool = False
    """Use all 18 actions instead of the game's minimal set."""
    noop_max: int = option(30, at_least=0)
    """Maximum number of no-op frames at the start of a game, before FIRE. The number is drawn for each game."""
    episodic_life: bool = True
    """Treat a lost life as a terminal state in learning. The game continues, and the objective is its total score."""
    clip_reward: bool = True
    """Clip rewards to -1..1 for learning. The objective is not clipped."""
    fire_reset: bool = True
    """Press FIRE at the start of a game and after every lost life, if the game has this action."""
    max_frames_per_episode: int = 108_000
    """Number of frames after which a game is truncated (not terminated). 108,000 frames are half an hour."""

    def __post_init__(self) -> None:
        if self.max_frames_per_episode <= self.frame_skip:
            raise EnvSetupError(
                f"--atari.max-frames-per-episode {self.max_frames_per_episode} cannot be used. Set it above "
                f"--atari.frame-skip {self.frame_skip}"
            )


def recipe() -> dict[str, object]:
    """Return default options: the network of Mnih et al. 2015 and the PPO of Schulman et al. 2017 (table 5).

    Minibatches of 256 steps, a clip ratio of 0.1 and an entropy coefficient of 0.01 are from that table. The table has
    three epochs per batch. Four epochs are used here, as in the authors' code (openai/baselines) and in most published
    results.
    """
    return {
        "model.encoder": "nature",
        "model.hidden": (512,),
        "learner.rollout": 32,
        "learner.batch": 1024,
        "learner.minibatches": 4,
        "learner.returns": "gae",
        "learner.epochs": 4,
        "learner.normalize_images": True,
        # As in the table, CleanRL and Sample Factory. With a constant learning rate, the score falls after its peak.
        # The schedule multiplies the learning rate, which PBT tunes, by a factor that follows from the member's frames
        # (or from the run's time).
        "learner.lr_schedule": "linear",
        "hypers.unroll": 32,
        # Twice the table's learning rate, which is for 40 million frames. In runs of a few million frames the learning
        # rate decays to 0 sooner. With twice the rate, these runs learn Pong and Breakout much sooner
        # (docs/lab/games.md).
        "hypers.learning_rate": 5e-4,
        "hypers.entropy_coef": 0.01,
        "hypers.clip_ratio": 0.1,
        "hypers.gamma": 0.99,
        "hypers.gae_lambda": 0.95,
        "hypers.max_grad_norm": 0.5,
    }


def raw_scores(options: AtariOptions) -> AtariOptions:
    """Return the options of an evaluation: rewards are not clipped."""
    return replace(options, clip_reward=False)


@lru_cache(maxsize=8)
def game_facts(rom: str) -> tuple[tuple[str, ...], int]:
    """Return (actions of the minimal set, initial number of lives) of a game. rom: name of the ROM in ale-py."""
    import ale_py  # noqa: PLC0415 - families are imported when used

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    emulator = ale_py.ALEInterface()
    path = ale_py.roms.get_rom_path(rom)
    assert path is not None
    emulator.loadROM(path)
    emulator.reset_game()
    return tuple(action.name for action in emulator.getMinimalActionSet()), int(emulator.lives())


class AtariScoring:
    """Converter of the scores and lives of R games to rewards and terminal flags.

    may_fire: True if the action set has FIRE.
    """

    def __init__(self, rows: int, options: AtariOptions, *, may_fire: bool) -> None:
        self._clip, self._episodic_life = options.clip_reward, options.episodic_life
        self.presses_fire = options.fire_reset and may_fire
        """True if FIRE is pressed at the start of a game and after a lost life."""
        self.fire_R = np.zeros(rows, np.bool_)
        """Rows whose next action is replaced by FIRE, because they lost a life in the last step. Many games wait for
        FIRE before they continue.
        """
        self._lives_R = np.zeros(rows, np.int64)
        self._score_scale_R = np.ones(rows)
        self._life_loss_penalty_R = np.zeros(rows)

    def begin_episode(self, row: int, shaping: Mapping[str, float]) -> None:
        """Set the shaping values of a row. Games without lives have no penalty for a lost life."""
        self._score_scale_R[row] = shaping[SCORE_SCALE]
        self._life_loss_penalty_R[row] = shaping.get(LIFE_LOSS_PENALTY, 0.0)

    def played(self, goes_R: NDArray[np.bool_], fire_R: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return a mask [R] of rows whose step is a transition to learn from.

        If a lost life is terminal, the FIRE after a lost life counts as a reset. Otherwise this FIRE is a normal
        transition.
        goes_R: rows whose game continued in this step. fire_R: rows in which FIRE was pressed after a lost life.
        """
        return goes_R & ~fire_R if self._episodic_life else goes_R

    def reset(self, lives_R: NDArray[np.int64]) -> None:
        """Set the lives at the start of all games."""
        self._lives_R[:] = lives_R
        self.fire_R[:] = False

    def step(
        self, score_R: NDArray[np.float64], lives_R: NDArray[np.int64], goes_R: NDArray[np.bool_]
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Return (reward [R], mask [R] of lost lives that are terminal states for learning).

        score_R: score of the step, 0 in rows that are not `played`.
        lives_R: lives left after the step.
        goes_R: rows whose game continued in this step, by the policy's action or by FIRE after a lost life.
        """
        lost_R = goes_R * np.maximum(self._lives_R - lives_R, 0)
        self._lives_R = lives_R
        self.fire_R = (lost_R > 0) & (lives_R > 0) & self.presses_fire
        learned_R = np.clip(score_R, -1, 1) if self._clip else score_R
        reward_R = self._score_scale_R * learned_R - self._life_loss_penalty_R * lost_R
        # Some games continue for some frames with 0 lives. Then only the end of the game is terminal.
        return reward_R, (lost_R > 0) & (lives_R > 0) & self._episodic_life
