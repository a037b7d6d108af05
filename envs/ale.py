"""Atari games by ale-py's native vector environment: one engine thread, 84x84 grey, newest frame only.

The engine emulates, skips, max-pools, presses FIRE and shrinks the screen. Scores and lives are interpreted by
`AtariScoring`; no-op starts, and FIRE after a lost life, are played here.

Start-up. Seeding an emulator loads its ROM again (about 90 ms per row), as its constructor did. Without sticky
actions the engine's only randomness is the number of its no-op frames, drawn from the machine's entropy. So these are
switched off and the unit plays no-ops from its own generator: this is reproducible, and no row is loaded twice. A
large unit of an actor that may begin without all its rows makes most of them while it runs (`Engines`, `grow`).

Axes: R rows.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .ale_engines import WHOLE_ROWS, Engines
from .atari import (
    LIFE_LOSS_PENALTY,
    MULTIPLAYER_ONLY,
    SCORE_SCALE,
    AtariOptions,
    AtariScoring,
    game_facts,
    raw_scores,
    recipe,
)
from .base import (
    ActionSpec,
    ArraySpec,
    EnvSetupError,
    EnvSpec,
    ShapingSource,
    StepArrays,
    may_grow,
    rows_of_a_policy,
)
from .episodes import EpisodeBook, write_reset
from .family import Backend
from .film import Camera, Picture
from .pulse import all_at_once, pulse_of

FRAMES_PER_SECOND = 60
SCREEN = (210, 160)
"""Height and width of a game's own picture."""


def names() -> tuple[str, ...]:
    """Return all games, sorted: ale-py's ROMs that one player can play."""
    from ale_py import roms  # noqa: PLC0415 - families are imported when used

    return tuple(sorted(set(roms.get_all_rom_ids()) - MULTIPLAYER_ONLY))


def probe(game: str, options: AtariOptions) -> EnvSpec:
    """Describe a game. Loads its ROM once per process. Raises EnvSetupError for an unknown game."""
    known = names()
    if game not in known:
        raise EnvSetupError(_unknown_game(game, known))
    actions, lives = game_facts(game)
    shaping = {SCORE_SCALE: 1.0}
    if lives:
        shaping[LIFE_LOSS_PENALTY] = 0.01  # not 0, so that a controller's factor can move it
    return EnvSpec(
        env_id=f"atari/{game}",
        obs={"obs": ArraySpec((84, 84), "uint8")},
        action=ActionSpec(nvec=(18 if options.full_action_space else len(actions),)),
        frame_skip=options.frame_skip,
        frame_stack=options.frame_stack,
        shaping=shaping,
    )


class AtariUnit:
    """R games of one kind, stepped together on one engine thread.

    A game starts with a drawn number of no-op steps. Each of them, like the reset itself and the FIRE that follows a
    lost life (where that is terminal), delivers `first`: the action is ignored and the transition is not a real one.
    """

    def __init__(
        self, game: str, rows: int, seed: int, options: AtariOptions, shaping: ShapingSource
    ) -> None:
        assert rows > 0
        self.spec = probe(game, options)
        self.rows = rows
        self._book = EpisodeBook(rows, shaping)
        self._pulse = pulse_of(shaping)
        self._missing_R = np.zeros(rows, np.bool_)
        self._engine: Any
        with all_at_once(self._pulse, rows):
            if may_grow(shaping) and rows > WHOLE_ROWS:
                self._engine = Engines(
                    lambda part: self._make(game, part, options), rows, rows_of_a_policy(shaping)
                )
                self._missing_R = self._engine.missing
            else:
                self._engine = self._make(game, rows, options)
        start, engine_seeds = np.random.SeedSequence(seed).spawn(2)
        self._rng = np.random.default_rng(start)
        sticky = options.repeat_action_probability > 0
        # Taken by the first reset only: the engine's generators go on from there.
        self._engine_seeds = engine_seeds.generate_state(rows).astype(np.int64) % 2**31 if sticky else None

        actions = [action.name for action in self._engine.ale.get_action_set()]
        self._noop = actions.index("NOOP") if "NOOP" in actions else 0
        self._fire = actions.index("FIRE") if "FIRE" in actions else 0
        self._scoring = AtariScoring(rows, options, may_fire="FIRE" in actions)
        # Two board games have no NOOP among their own actions: they start without.
        self._max_noops = options.noop_max // options.frame_skip if "NOOP" in actions else 0

        self._ended_R = np.zeros(rows, np.bool_)  # the engine's next step resets the row
        self._noops_left_R = np.zeros(rows, np.int64)
        self.pressed_R = np.zeros(rows, np.int64)
        """What was given to the engine in the last step."""

    def _make(self, game: str, rows: int, options: AtariOptions) -> Any:
        from ale_py.vector_env import AtariVectorEnv  # noqa: PLC0415 - families are imported when used

        return AtariVectorEnv(
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

    @property
    def grows(self) -> bool:
        """See `Grows`."""
        return bool(self._missing_R.any())

    def grow(self) -> None:
        """See `Grows`."""
        with all_at_once(self._pulse, self._engine.next_size):
            rows = self._engine.grow()
        self._missing_R[rows] = False
        self._ended_R[rows] = True

    def reset(self, out: StepArrays) -> None:
        """See `Unit.reset`. The first call seeds the emulators if sticky actions need it."""
        with all_at_once(self._pulse, self.rows):
            frames_R, info = self._engine.reset(seed=self._engine_seeds)
        self._engine_seeds = None
        self._ended_R[:] = False
        self._scoring.reset(info["lives"])
        for row in np.flatnonzero(~self._missing_R):
            self._begin_game(int(row))
        out.obs["obs"][:] = frames_R[:, 0]
        write_reset(out)
        self._book.write(out)

    def step(self, action: NDArray[Any], out: StepArrays) -> None:
        """See `Unit.step`. action: [R, 1] int32."""
        reset_R = self._ended_R
        fire_R = self._scoring.fire_R & ~reset_R
        noop_R = ~reset_R & (self._noops_left_R > 0)
        goes_R = ~(reset_R | noop_R | self._missing_R)
        played_R = self._scoring.played(goes_R, fire_R)
        self.pressed_R = np.where(noop_R, self._noop, np.where(fire_R, self._fire, action[:, 0]))
        frames_R, score_R, over_R, cut_R, info = self._engine.step(self.pressed_R)

        self._noops_left_R[noop_R] -= 1
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
        """Release the engine: its thread is joined when the last reference goes."""
        self._engine = None

    def _begin_game(self, row: int) -> None:
        self._scoring.begin(row, self._book.begin(row))
        self._noops_left_R[row] = self._rng.integers(self._max_noops + 1)


def _unknown_game(game: str, known: tuple[str, ...]) -> str:
    if game in MULTIPLAYER_ONLY:
        return f"atari/{game} needs several players and cannot be trained here; `pbt-rl envs` lists the games"
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", game).lower().replace("-", "_")
    close = difflib.get_close_matches(snake, known)
    hint = f"; did you mean {', '.join('atari/' + name for name in close)}?" if close else ""
    return f"atari/{game} is not an Atari game{hint} `pbt-rl envs` lists all {len(known)} games"


# -- films ---------------------------------------------------------------------------------------------------


class ColourTwin:
    """The same Atari game as a unit's first a second time, in colour: whatever is pressed there is pressed here."""

    def __init__(self, game: str, options: AtariOptions, unit: AtariUnit) -> None:
        from ale_py.vector_env import AtariVectorEnv  # noqa: PLC0415 - families are imported when used

        assert options.repeat_action_probability == 0, "a twin with sticky actions goes another way"
        self._unit = unit
        height, width = SCREEN
        self.frames_per_second = FRAMES_PER_SECOND / options.frame_skip
        self._engine: Any = AtariVectorEnv(
            game,
            1,
            num_threads=1,
            max_num_frames_per_episode=options.max_frames_per_episode,
            full_action_space=options.full_action_space,
            img_height=height,
            img_width=width,
            grayscale=False,
            stack_num=1,
            frameskip=options.frame_skip,
            noop_max=0,
            reward_clipping=False,
            use_fire_reset=options.fire_reset,
        )

    def shoot(self, step: StepArrays, action_A: NDArray[Any] | None) -> Picture:  # noqa: ARG002 - a Camera
        """See Camera."""
        if action_A is None:
            frames, _ = self._engine.reset()
        else:
            frames = self._engine.step(self._unit.pressed_R[:1])[0]
        picture: Picture = frames[0, 0].copy()
        return picture

    def close(self) -> None:
        """Release the engine."""
        self._engine = None


class GreyFrames:
    """The picture that the policy itself sees: the newest 84x84 grey frame."""

    def __init__(self, options: AtariOptions) -> None:
        self.frames_per_second = FRAMES_PER_SECOND / options.frame_skip

    def shoot(self, step: StepArrays, action_A: NDArray[Any] | None) -> Picture:  # noqa: ARG002 - a Camera
        """See Camera."""
        return np.repeat(step.obs["obs"][0][..., None], 3, axis=-1)

    def close(self) -> None:
        """Hold nothing."""


def film(
    game: str, rows: int, seed: int, options: AtariOptions, shaping: ShapingSource
) -> tuple[AtariUnit, Camera]:
    """Make a unit with a camera on its row 0.

    A game is played a second time, in colour and beside the first, with the same actions. A game with sticky actions
    draws them from its own generator, so a second one would diverge: its film shows the policy's grey frames.
    """
    sticky = options.repeat_action_probability > 0
    unit = AtariUnit(game, rows, seed, options, shaping)
    return unit, GreyFrames(options) if sticky else ColourTwin(game, options, unit)


BACKEND = Backend(
    names=names,
    probe=lambda name, options: probe(name, options.atari),
    make_unit=lambda name, rows, seed, options, shaping: AtariUnit(name, rows, seed, options.atari, shaping),
    recipe=lambda _name, _options: recipe(),
    for_evaluation=lambda options: replace(options, atari=raw_scores(options.atari)),
    film=lambda name, rows, seed, options, shaping: film(name, rows, seed, options.atari, shaping),
)
