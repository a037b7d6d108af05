"""Atari games by ale-py's native vector environment: one engine thread, 84x84 grey, newest frame only.

The engine emulates, skips, max-pools, presses FIRE and shrinks the screen. Clipping, lost lives, shaping and
no-op starts are done here, vectorised over rows: so the objective is the unclipped score of the whole game,
whatever the learner sees.

Start-up. Seeding an emulator loads its ROM again (about 90 ms a row), as its constructor did. Without
sticky actions all the engine's randomness is the count of its no-op frames, drawn from the machine's
entropy; so we switch those off and play the no-ops ourselves from our own generator: reproducible, and no
row is loaded twice.

Axes: R rows.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .base import ActionSpec, ArraySpec, EnvSetupError, EnvSpec, ShapingSource, StepArrays

MULTIPLAYER_ONLY = frozenset({"combat", "joust", "maze_craze", "warlords"})
"""ROMs that come with ale-py but have no one-player mode: loading one ends the process."""

SCORE_SCALE = "score_scale"
LIFE_LOSS_PENALTY = "life_loss_penalty"


@dataclass(frozen=True)
class AtariOptions:
    """Options of Atari games; frames are emulator frames."""

    frame_skip: int = field(default=4, metadata={"at_least": 1, "at_most": 60})
    """Emulator frames of one step: the action is repeated, rewards are summed."""
    frame_stack: int = field(default=4, metadata={"at_least": 1, "at_most": 16})
    """Newest frames, stacked as one observation."""
    repeat_action_probability: float = field(default=0.0, metadata={"at_least": 0, "below": 1})
    """Sticky actions: probability per frame that the last action is repeated (0.25 in Machado et al. 2018)."""
    full_action_space: bool = False
    """Use all 18 actions instead of those that the game needs."""
    noop_max: int = field(default=30, metadata={"at_least": 0})
    """Start a game with 0 to this many no-op frames, in whole steps of --atari.frame-skip."""
    episodic_life: bool = True
    """Treat a lost life as a terminal state in learning. The game goes on; the objective is its whole score."""
    clip_reward: bool = True
    """Learn from scores clipped to -1..1. The objective is not clipped."""
    fire_reset: bool = True
    """Press FIRE at the start of a game that has this action."""
    max_frames_per_episode: int = 108_000
    """Truncate (not terminate) a game after this many frames; 108,000 are half an hour."""

    def __post_init__(self) -> None:
        least = self.noop_max + self.frame_skip
        if self.max_frames_per_episode <= least:
            raise EnvSetupError(
                f"--atari.max-frames-per-episode {self.max_frames_per_episode} cannot be used: "
                f"give more than noop-max + frame-skip, {least}, or no game starts"
            )


def names() -> tuple[str, ...]:
    """All games, sorted: ale-py's ROMs that one player can play."""
    from ale_py import roms  # noqa: PLC0415 - families are imported when used

    return tuple(sorted(set(roms.get_all_rom_ids()) - MULTIPLAYER_ONLY))


def probe(game: str, options: AtariOptions) -> EnvSpec:
    """Describe a game. Loads its ROM once a process. Raises EnvSetupError for an unknown game."""
    actions, lives = _game_facts(game)
    shaping = {SCORE_SCALE: 1.0}
    if lives:
        shaping[LIFE_LOSS_PENALTY] = 0.01  # not 0, so that a controller's factor can move it
    return EnvSpec(
        env_id=f"atari/{game}",
        obs={"obs": ArraySpec((84, 84), "uint8")},
        action=ActionSpec(nvec=(18 if options.full_action_space else actions,)),
        frame_skip=options.frame_skip,
        frame_stack=options.frame_stack,
        shaping=shaping,
    )


def recipe(_game: str) -> dict[str, object]:
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


class AtariUnit:
    """R games of one kind, stepped together on one engine thread.

    A game starts with a drawn number of no-op steps. Each of them, like the reset itself, delivers `first`:
    the action is ignored and the transition is not a real one.
    """

    def __init__(
        self, game: str, rows: int, seed: int, options: AtariOptions, shaping: ShapingSource
    ) -> None:
        assert rows > 0
        from ale_py.vector_env import AtariVectorEnv  # noqa: PLC0415 - families are imported when used

        self.spec = probe(game, options)
        self.rows = rows
        self._options = options
        self._shaping = shaping
        self._engine: Any = AtariVectorEnv(
            game,
            rows,
            num_threads=1,
            max_num_frames_per_episode=options.max_frames_per_episode,
            repeat_action_probability=options.repeat_action_probability,
            full_action_space=options.full_action_space,
            stack_num=1,
            frameskip=options.frame_skip,
            noop_max=0,
            episodic_life=False,
            reward_clipping=False,
            use_fire_reset=options.fire_reset,
        )
        start, engine_seeds = np.random.SeedSequence(seed).spawn(2)
        self._rng = np.random.default_rng(start)
        sticky = options.repeat_action_probability > 0
        # Taken by the first reset only: the engine's generators go on from there.
        self._engine_seeds = engine_seeds.generate_state(rows).astype(np.int64) % 2**31 if sticky else None

        actions = [action.name for action in self._engine.ale.get_action_set()]
        self._noop = actions.index("NOOP") if "NOOP" in actions else 0
        # Two board games have no NOOP among their own actions: they start without.
        self._max_noops = options.noop_max // options.frame_skip if "NOOP" in actions else 0

        self._ended_R = np.zeros(rows, np.bool_)  # the engine's next step resets the row
        self._noops_left_R = np.zeros(rows, np.int64)
        self._lives_R = np.zeros(rows, np.int64)
        self._score_scale_R = np.ones(rows)
        self._life_loss_penalty_R = np.zeros(rows)
        self._shaping_version_R = np.zeros(rows, np.int64)
        self._score_R = np.zeros(rows)
        self._shaped_R = np.zeros(rows)
        self._length_R = np.zeros(rows, np.int64)

    def reset(self, out: StepArrays) -> None:
        """See `Unit.reset`. The first call seeds the emulators where sticky actions need it."""
        frames_R, info = self._engine.reset(seed=self._engine_seeds)
        self._engine_seeds = None
        self._ended_R[:] = False
        self._lives_R[:] = info["lives"]
        for row in range(self.rows):
            self._begin_game(row)
        out.obs["obs"][:] = frames_R[:, 0]
        out.first[:] = True
        for array_R in (out.reward, out.terminated, out.truncated, out.episode_done):
            array_R[:] = 0
        self._write_episode(out)

    def step(self, action: NDArray[Any], out: StepArrays) -> None:
        """See `Unit.step`. action: [R, 1] int32."""
        reset_R = self._ended_R
        noop_R = ~reset_R & (self._noops_left_R > 0)
        played_R = ~(reset_R | noop_R)
        frames_R, score_R, over_R, cut_R, info = self._engine.step(np.where(noop_R, self._noop, action[:, 0]))

        self._noops_left_R[noop_R] -= 1
        for row in np.flatnonzero(reset_R):
            self._begin_game(int(row))

        lives_R = info["lives"].astype(np.int64)
        lost_R = played_R * np.maximum(self._lives_R - lives_R, 0)
        self._lives_R = lives_R
        score_R = score_R * played_R
        learned_R = np.clip(score_R, -1, 1) if self._options.clip_reward else score_R
        reward_R = self._score_scale_R * learned_R - self._life_loss_penalty_R * lost_R

        # Some games go on with 0 lives left for some frames: only the game's end is terminal there.
        life_over_R = (lost_R > 0) & (lives_R > 0) & self._options.episodic_life
        out.obs["obs"][:] = frames_R[:, 0]
        out.reward[:] = reward_R
        out.terminated[:] = played_R & (over_R | life_over_R)
        out.truncated[:] = played_R & cut_R & ~out.terminated
        out.first[:] = ~played_R
        out.episode_done[:] = played_R & (over_R | cut_R)

        self._ended_R = over_R | cut_R
        self._score_R += score_R
        self._shaped_R += out.reward
        self._length_R += played_R
        self._write_episode(out)

    def close(self) -> None:
        """Release the engine: its thread is joined when the last reference goes."""
        self._engine = None

    def _begin_game(self, row: int) -> None:
        version, values = self._shaping(row)
        self._shaping_version_R[row] = version
        self._score_scale_R[row] = values[SCORE_SCALE]
        if LIFE_LOSS_PENALTY in self.spec.shaping:
            self._life_loss_penalty_R[row] = values[LIFE_LOSS_PENALTY]
        self._noops_left_R[row] = self._rng.integers(self._max_noops + 1)
        self._score_R[row] = self._shaped_R[row] = self._length_R[row] = 0

    def _write_episode(self, out: StepArrays) -> None:
        out.objective[:] = self._score_R
        out.raw_return[:] = self._score_R
        out.shaped_return[:] = self._shaped_R
        out.length[:] = self._length_R
        out.shaping_version[:] = self._shaping_version_R


@lru_cache(maxsize=8)
def _game_facts(game: str) -> tuple[int, int]:
    """Read (actions that the game uses, lives at its start) from the emulator."""
    known = names()
    if game not in known:
        raise EnvSetupError(_unknown_game(game, known))
    import ale_py  # noqa: PLC0415 - families are imported when used

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    emulator = ale_py.ALEInterface()
    rom = ale_py.roms.get_rom_path(game)
    assert rom is not None
    emulator.loadROM(rom)
    emulator.reset_game()
    return len(emulator.getMinimalActionSet()), int(emulator.lives())


def _unknown_game(game: str, known: tuple[str, ...]) -> str:
    if game in MULTIPLAYER_ONLY:
        return f"atari/{game} needs several players and cannot be trained here; `pbt-rl envs` lists the games"
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", game).lower().replace("-", "_")
    close = difflib.get_close_matches(snake, known)
    hint = f"; did you mean {', '.join('atari/' + name for name in close)}?" if close else ""
    return f"atari/{game} is not an Atari game{hint} `pbt-rl envs` lists all {len(known)} games"
