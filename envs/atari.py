"""How Atari games are played and scored, whatever the engine: ale-py (family atari/) or another.

The engine delivers whole games with raw scores. Clipping, lost lives and shaping are applied here, vectorised over
rows, so the objective is the unclipped score of the whole game, whatever the policy learns from.

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
"""ROMs that come with ale-py but have no one-player mode: loading one ends the process."""

SCORE_SCALE = "score_scale"
LIFE_LOSS_PENALTY = "life_loss_penalty"


@dataclass(frozen=True)
class AtariOptions(FamilyOptions):
    """Options of Atari games; frames are emulator frames."""

    frame_skip: int = option(4, at_least=1, at_most=60)
    """Emulator frames of one step: the action is repeated, rewards are summed."""
    frame_stack: int = option(4, at_least=1, at_most=16)
    """Newest frames, stacked as one observation."""
    repeat_action_probability: float = option(0.0, at_least=0, below=1)
    """Sticky actions: probability per frame that the last action is repeated (0.25 in Machado et al. 2018)."""
    full_action_space: bool = False
    """Use all 18 actions instead of those that the game needs."""
    noop_max: int = option(30, at_least=0)
    """Start a game with 0 to this many no-op frames, drawn for each game; FIRE follows them."""
    episodic_life: bool = True
    """Treat a lost life as a terminal state in learning. The game goes on; the objective is its whole score."""
    clip_reward: bool = True
    """Learn from scores clipped to -1..1. The objective is not clipped."""
    fire_reset: bool = True
    """Press FIRE at the start of a game that has this action, and in it after every lost life."""
    max_frames_per_episode: int = 108_000
    """Truncate (not terminate) a game after this many frames; 108,000 are half an hour."""

    def __post_init__(self) -> None:
        if self.max_frames_per_episode <= self.frame_skip:
            raise EnvSetupError(
                f"--atari.max-frames-per-episode {self.max_frames_per_episode} cannot be used: "
                f"give more than --atari.frame-skip, {self.frame_skip}, or no game starts"
            )


def recipe() -> dict[str, object]:
    """Defaults of a run on Atari: the network of Mnih et al. 2015 and the PPO of Schulman et al. 2017 (table 5).

    Minibatches of 256 steps, a clip of 0.1 and an entropy coefficient of 0.01 are that table's. It has three passes
    over a batch; four are those of its authors' code (openai/baselines) and of the runs that others compare with.
    """
    return {
        "model.encoder": "nature",
        "model.hidden": 512,
        "learner.rollout": 32,
        "learner.batch": 1024,
        "learner.minibatches": 4,
        "learner.returns": "gae",
        "learner.epochs": 4,
        "learner.normalize_images": True,
        # As in that paper's Atari runs (table 5), CleanRL's and Sample Factory's: with a constant rate the score sinks
        # after its peak. It multiplies whatever rate PBT has found, of all members alike.
        "learner.lr_schedule": "linear",
        "hypers.unroll": 32,
        # Twice that table's, whose runs have 40 million frames: as it falls to 0, those of few million learn Pong much
        # sooner with it, and Breakout as well (docs/lab/games.md).
        "hypers.learning_rate": 5e-4,
        "hypers.entropy_coef": 0.01,
        "hypers.clip_ratio": 0.1,
        "hypers.gamma": 0.99,
        "hypers.gae_lambda": 0.95,
        "hypers.max_grad_norm": 0.5,
    }


def raw_scores(options: AtariOptions) -> AtariOptions:
    """Return the options of evaluations: steps are scored unclipped. Games are played to their end in any case."""
    return replace(options, clip_reward=False)


@lru_cache(maxsize=8)
def game_facts(rom: str) -> tuple[tuple[str, ...], int]:
    """Read (names of the actions that a game uses, lives at its start) from the emulator. rom: one that ale-py has."""
    import ale_py  # noqa: PLC0415 - families are imported when used

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    emulator = ale_py.ALEInterface()
    path = ale_py.roms.get_rom_path(rom)
    assert path is not None
    emulator.loadROM(path)
    emulator.reset_game()
    return tuple(action.name for action in emulator.getMinimalActionSet()), int(emulator.lives())


class AtariScoring:
    """Turns the scores and lives of R games into what is learned from.

    may_fire: the game has the action FIRE, and it is legal.
    """

    def __init__(self, rows: int, options: AtariOptions, *, may_fire: bool) -> None:
        self._clip, self._episodic_life = options.clip_reward, options.episodic_life
        self.presses_fire = options.fire_reset and may_fire
        """Whether games start, and go on after a lost life, by FIRE."""
        self.fire_R = np.zeros(rows, np.bool_)
        """Rows whose next step is to be FIRE, whatever the policy says: they have lost a life in the last one. In many
        games nothing moves until then."""
        self._lives_R = np.zeros(rows, np.int64)
        self._score_scale_R = np.ones(rows)
        self._life_loss_penalty_R = np.zeros(rows)

    def begin_episode(self, row: int, shaping: Mapping[str, float]) -> None:
        """Use these shaping values from now on. Games without lives have no penalty for losing one."""
        self._score_scale_R[row] = shaping[SCORE_SCALE]
        self._life_loss_penalty_R[row] = shaping.get(LIFE_LOSS_PENALTY, 0.0)

    def played(self, goes_R: NDArray[np.bool_], fire_R: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return the rows of which a step is a transition to learn from.

        Where a lost life is terminal, FIRE leads to the first observation of what comes after, as a reset does. Where
        it is not, FIRE stands in for an action like any other, and what the lost life leads to has its value from it.
        """
        return goes_R & ~fire_R if self._episodic_life else goes_R

    def reset(self, lives_R: NDArray[np.int64]) -> None:
        """Take the lives with which all games start."""
        self._lives_R[:] = lives_R
        self.fire_R[:] = False

    def step(
        self, score_R: NDArray[np.float64], lives_R: NDArray[np.int64], goes_R: NDArray[np.bool_]
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Return (reward, whether a lost life is a terminal state for learning).

        score_R: 0 where the step is not `played`. lives_R: lives that are left after the step. goes_R: rows whose game
        went on in it, by the policy's action or by FIRE.
        """
        lost_R = goes_R * np.maximum(self._lives_R - lives_R, 0)
        self._lives_R = lives_R
        self.fire_R = (lost_R > 0) & (lives_R > 0) & self.presses_fire
        learned_R = np.clip(score_R, -1, 1) if self._clip else score_R
        reward_R = self._score_scale_R * learned_R - self._life_loss_penalty_R * lost_R
        # Some games go on with 0 lives left for some frames: only the game's end is terminal there.
        return reward_R, (lost_R > 0) & (lives_R > 0) & self._episodic_life
