"""Atari games on ale-py's native vector environment (the *engine*) of one thread: grey frames of 84x84.

The engine runs the emulators, plays the no-op frames at a game's start, skips frames, max-pools and shrinks the
screen. The engine returns only the newest frame. `AtariScoring` handles scores and lives. This module presses FIRE at a
game's start and after a lost life.

The no-ops are single frames before FIRE, as in DQN's protocol. Without sticky actions, the no-ops are the only
randomness. In Breakout the ball's path depends on the frame of its launch, modulo four. If the no-ops were whole steps,
or came after FIRE, the first ball of every game would take the same path. A policy would memorise this path instead of
learning to play.

Axes: R rows of the vector env.
"""

from __future__ import annotations

import difflib
import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbt_rl.errors import EnvSetupError

from .atari import (
    LIFE_LOSS_PENALTY,
    MULTIPLAYER_ONLY,
    SCORE_SCALE,
    AtariOptions,
    AtariScoring,
    game_facts,
)
from .base import ActionSpec, ArraySpec, EnvSpec, ShapingSource, StepArrays
from .episode_book import EpisodeBook, all_at_once, heartbeat_of, write_reset

SEEN = (84, 84)
"""Height and width of a frame."""


def names() -> tuple[str, ...]:
    """Return all games, sorted: ale-py's ROMs with a one-player mode."""
    from ale_py import roms  # noqa: PLC0415 - families are imported when used

    return tuple(sorted(set(roms.get_all_rom_ids()) - MULTIPLAYER_ONLY))


def probe(game: str, options: AtariOptions) -> EnvSpec:
    """Return the spec of a game. Raises EnvSetupError for an unknown game."""
    known = names()
    if game not in known:
        raise EnvSetupError(_unknown_game(game, known))
    actions, lives = game_facts(game)
    shaping = {SCORE_SCALE: 1.0}
    if lives:
        shaping[LIFE_LOSS_PENALTY] = 0.01  # not 0, because PBT multiplies values by a factor
    return EnvSpec(
        env_id=f"atari/{game}",
        obs={"obs": ArraySpec(SEEN, "uint8")},
        action=ActionSpec(nvec=(18 if options.full_action_space else len(actions),)),
        frame_skip=options.frame_skip,
        frame_stack=options.frame_stack,
        shaping=shaping,
    )


def engine(game: str, rows: int, options: AtariOptions, **picture: Any) -> Any:
    """Make an engine with one emulator per row. picture: ale-py's keywords for the format of the frames."""
    from ale_py import vector_env as ale  # noqa: PLC0415 - families are imported when used

    return ale.AtariVectorEnv(
        game,
        rows,
        num_threads=1,
        max_num_frames_per_episode=options.max_frames_per_episode,
        repeat_action_probability=options.repeat_action_probability,
        full_action_space=options.full_action_space,
        stack_num=1,
        frameskip=options.frame_skip,
        noop_max=options.noop_max + 1,  # the upper limit is exclusive
        episodic_life=False,
        reward_clipping=False,
        use_fire_reset=False,  # the engine would press FIRE before the no-ops
        **picture,
    )


def fire_of(game: str, options: AtariOptions) -> int | None:
    """Return the index of the action FIRE. None if the game's minimal set lacks FIRE. The full set always has FIRE."""
    names = game_facts(game)[0]
    if options.full_action_space:
        return 1
    return names.index("FIRE") if "FIRE" in names else None


class AtariVectorEnv:
    """R rows of one Atari game in one engine.

    Four kinds of steps set `first` (see `StepArrays`): resets, the FIRE that starts a game, the FIRE after a lost life
    if lost lives are terminal, and steps of rows without an emulator. In these steps the policy's action is ignored,
    and learners mask the transition.
    """

    def __init__(
        self, game: str, rows: int, seed: int, options: AtariOptions, shaping: ShapingSource
    ) -> None:
        assert rows > 0
        self.spec = probe(game, options)
        self.rows = rows
        self._book = EpisodeBook(rows, shaping)
        self._heartbeat = heartbeat_of(shaping)
        self._missing_R = np.zeros(rows, np.bool_)
        """True for rows without an emulator. Such rows exist only during lazy construction."""
        with all_at_once(self._heartbeat, rows):
            self._engine: Any = self._make_all(game, options)
        self.seed_R = np.random.SeedSequence(seed).generate_state(rows).astype(np.int64) % 2**31
        """Seeds of the emulators. An emulator is seeded at most once, at its first reset."""
        self._seeded = False

        fire = fire_of(game, options)
        self._fire = fire or 0
        self._scoring = AtariScoring(rows, options, may_fire=fire is not None)

        self._ended_R = np.zeros(rows, np.bool_)  # the engine's next step resets the row
        self._starts_R = np.zeros(rows, np.bool_)  # the next step is the FIRE that starts the game
        self.pressed_R = np.zeros(rows, np.int64)
        """Actions of the last step, after replacement by FIRE."""

    def _make_all(self, game: str, options: AtariOptions) -> Any:
        """Make the engine for all rows."""
        return self._make(game, self.rows, options)

    _make = staticmethod(engine)

    def reset(self, out: StepArrays) -> None:
        """Reset all rows. The first call seeds the emulators."""
        with all_at_once(self._heartbeat, self.rows):
            frames_R, info = self._engine.reset(seed=None if self._seeded else self.seed_R)
        self._seeded = True
        self._ended_R[:] = False
        self._scoring.reset(info["lives"])
        for row in np.flatnonzero(~self._missing_R):
            self._begin_game(int(row))
        out.obs["obs"][:] = frames_R[:, 0]
        write_reset(out)
        self._book.write(out)

    def step(self, action: NDArray[Any], out: StepArrays) -> None:
        """Advance all rows by one step. action: [R, 1] int32."""
        reset_R = self._ended_R
        fire_R = self._scoring.fire_R & ~reset_R
        start_R = self._starts_R & ~reset_R
        goes_R = ~(reset_R | start_R | self._missing_R)
        played_R = self._scoring.played(goes_R, fire_R)
        self.pressed_R = np.where(start_R | fire_R, self._fire, action[:, 0])
        frames_R, score_R, over_R, cut_R, info = self._engine.step(self.pressed_R)

        self._starts_R[start_R] = False
        for row in np.flatnonzero(reset_R):
            self._begin_game(int(row))

        score_R = score_R * goes_R
        lives_R = info["lives"].astype(np.int64)
        reward_R, life_over_R = self._scoring.step(score_R * played_R, lives_R, goes_R)
        out.obs["obs"][:] = frames_R[:, 0]
        out.reward[:] = np.where(played_R, reward_R, 0)
        out.terminated[:] = played_R & (over_R | life_over_R)
        out.truncated[:] = played_R & cut_R & ~out.terminated
        out.first[:] = ~played_R
        out.episode_done[:] = goes_R & (over_R | cut_R)

        self._ended_R = over_R | cut_R
        self._book.add(score_R, out.reward, played_R)
        self._book.write(out)

    def close(self) -> None:
        """Drop the reference to the engine. The engine's destructor joins the engine thread."""
        self._engine = None

    def _begin_game(self, row: int) -> None:
        self._scoring.begin_episode(row, self._book.open_episode(row))
        self._starts_R[row] = self._scoring.presses_fire


def _unknown_game(game: str, known: tuple[str, ...]) -> str:
    if game in MULTIPLAYER_ONLY:
        return f"atari/{game} needs several players. `pbt-rl envs` lists the supported games"
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", game).lower().replace("-", "_")
    close = difflib.get_close_matches(snake, known)
    hint = f"; did you mean {', '.join('atari/' + name for name in close)}?" if close else ";"
    return f"atari/{game} is not an Atari game{hint} `pbt-rl envs` lists all {len(known)} games"
