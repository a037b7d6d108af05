"""How Atari games are played and scored, whatever the engine: by ale-py (family atari/) or EnvPool.

The engine delivers whole games with raw scores. Clipping, lost lives and shaping are applied here, vectorised over
rows, so the objective is the unclipped score of the whole game, whatever the policy learns from.

Axes: R rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .base import EnvSetupError

MULTIPLAYER_ONLY = frozenset({"combat", "joust", "maze_craze", "warlords"})
"""ROMs that come with ale-py but have no one-player mode: loading one ends the process."""

SCORE_SCALE = "score_scale"
LIFE_LOSS_PENALTY = "life_loss_penalty"


def _require(condition: bool, option: str, value: object, remedy: str) -> None:
    if not condition:
        raise EnvSetupError(f"--atari.{option} {value} cannot be used: {remedy}")


@dataclass(frozen=True)
class AtariOptions:
    """How Atari games are played; frames are emulator frames."""

    frame_skip: int = 4
    """Emulator frames of one step: the action is repeated, rewards are summed."""
    frame_stack: int = 4
    """Newest frames that a policy sees together."""
    repeat_action_probability: float = 0.0
    """Sticky actions: chance, each frame, that the last action is repeated (0.25 in Machado et al. 2018)."""
    full_action_space: bool = False
    """Offer all 18 actions instead of those that the game uses."""
    noop_max: int = 30
    """A game starts with 0 to this many no-op frames, drawn in whole steps of --atari.frame-skip."""
    episodic_life: bool = True
    """A lost life is a terminal state for learning. The game goes on; the objective is its whole score."""
    clip_reward: bool = True
    """Learn from scores clipped to -1..1. The objective is not clipped."""
    fire_reset: bool = True
    """Press FIRE at the start of a game where the game has that action."""
    max_frames_per_episode: int = 108_000
    """A game is cut (truncated, not terminated) after this many frames; 108,000 are half an hour."""

    def __post_init__(self) -> None:
        _require(1 <= self.frame_skip <= 60, "frame-skip", self.frame_skip, "give 1 to 60")
        _require(1 <= self.frame_stack <= 16, "frame-stack", self.frame_stack, "give 1 to 16")
        _require(
            0 <= self.repeat_action_probability < 1,
            "repeat-action-probability",
            self.repeat_action_probability,
            "give 0 or more and less than 1",
        )
        _require(self.noop_max >= 0, "noop-max", self.noop_max, "give 0 or more")
        _require(
            self.max_frames_per_episode > self.noop_max + self.frame_skip,
            "max-frames-per-episode",
            self.max_frames_per_episode,
            f"give more than noop-max + frame-skip, {self.noop_max + self.frame_skip}, or no game starts",
        )


def recipe() -> dict[str, object]:
    """Defaults of a run on Atari: the network of Mnih et al. 2015 and the PPO of Schulman et al. 2017."""
    return {
        "model.encoder": "nature",
        "model.hidden": 512,
        "learner.rollout": 32,
        "learner.batch": 1024,
        "learner.minibatches": 16,
        "learner.returns": "gae",
        "learner.epochs": 2,
        "learner.normalize_returns": False,
        "hypers.unroll": 32,
        "hypers.learning_rate": 2.5e-4,
        "hypers.entropy_coef": 0.005,
        "hypers.clip_ratio": 0.2,
        "hypers.gamma": 0.99,
        "hypers.gae_lambda": 0.95,
        "hypers.max_grad_norm": 0.5,
    }


def whole_games(options: AtariOptions) -> AtariOptions:
    """Return the options of evaluations: games are played to their end and scored unclipped."""
    return replace(options, episodic_life=False, clip_reward=False)


class AtariScoring:
    """Turns the scores and lives of R games into what is learned from."""

    def __init__(self, rows: int, options: AtariOptions) -> None:
        self._clip, self._episodic_life = options.clip_reward, options.episodic_life
        self._lives_R = np.zeros(rows, np.int64)
        self._score_scale_R = np.ones(rows)
        self._life_loss_penalty_R = np.zeros(rows)

    def begin(self, row: int, shaping: Mapping[str, float]) -> None:
        """Use these shaping values from now on. Games without lives have no penalty for losing one."""
        self._score_scale_R[row] = shaping[SCORE_SCALE]
        self._life_loss_penalty_R[row] = shaping.get(LIFE_LOSS_PENALTY, 0.0)

    def reset(self, lives_R: NDArray[np.int64]) -> None:
        """Take the lives with which all games start."""
        self._lives_R[:] = lives_R

    def step(
        self, score_R: NDArray[np.float64], lives_R: NDArray[np.int64], played_R: NDArray[np.bool_]
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Return (reward, whether a lost life is a terminal state for learning).

        score_R: 0 if not played. lives_R: lives that are left after the step.
        """
        lost_R = played_R * np.maximum(self._lives_R - lives_R, 0)
        self._lives_R = lives_R
        learned_R = np.clip(score_R, -1, 1) if self._clip else score_R
        reward_R = self._score_scale_R * learned_R - self._life_loss_penalty_R * lost_R
        # Some games go on with 0 lives left for some frames: only the game's end is terminal there.
        return reward_R, (lost_R > 0) & (lives_R > 0) & self._episodic_life
