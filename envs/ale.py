"""Atari games by ale-py's native vector environment: one engine thread, 84x84 grey, newest frame only.

The engine emulates, plays the no-op frames of a game's start, skips, max-pools and shrinks the screen. Scores and lives
are interpreted by `AtariScoring`; FIRE, at a game's start and after a lost life, is pressed here.

No-op frames are single frames and come before FIRE, as in DQN's protocol. That matters: without sticky actions they are
all that tells two games apart, and in Breakout the ball's way depends on the frame in which it is launched, modulo
four. With no-ops in whole steps, or after FIRE, every ball of every game goes the same way at first; a policy learns
that way by heart, sooner than it learns to play.

Start-up. An emulator takes about 0.1 s to make, most of it for a table of colours that nothing here uses, and as long
again to be seeded: the engine draws no-ops from the machine's entropy unless it is seeded, and seeding loads its ROM
again. That is the price of reproducible games. The library holds the interpreter while it makes emulators: the two
units of an actor take 12 s if they have 32 rows, and one of 40 policies has hundreds. So rows are dealt to several
engines: a small one is there from the beginning, and an actor that may begin without all its rows has the others made
while it runs (`Engines`, `grow`).

Axes: R rows of the unit, E rows of one engine.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
    begins_empty,
    may_grow,
    rows_of_a_policy,
)
from .episodes import EpisodeBook, write_reset
from .family import Backend
from .pulse import all_at_once, pulse_of

ENGINE_ROWS = 16
"""Most rows of an engine of a large unit. Fewer cost speed: a call takes about 0.1 ms, the step of a row 0.3 ms."""
FIRST_ROWS = 8
"""Rows of the first engine of a unit that is not large; the others have up to LATER_ROWS, as each costs a call."""
LATER_ROWS = 32
LARGE_ROWS = 64
"""A unit with more rows is large."""
WHOLE_ROWS = 16
"""A unit with no more rows is not divided."""


def dealt(rows: int, together: int) -> list[NDArray[np.intp]]:
    """Deal rows to engines, in the order in which they are made; [E] each.

    together: neighbouring rows that belong to one policy. Each policy gets a row in turn, forth and back, so that all
    have as much of the time in which the unit grows.
    """
    row_EP = np.arange(rows).reshape(-1, together).T.copy()
    row_EP[1::2] = row_EP[1::2, ::-1]
    if rows > LARGE_ROWS:
        parts = np.array_split(row_EP.ravel(), -(-rows // ENGINE_ROWS))
    else:
        first, later = np.split(row_EP.ravel(), [FIRST_ROWS])
        parts = [first, *np.array_split(later, -(-later.size // LATER_ROWS))]
    return [np.sort(part) for part in parts]


class Engines:
    """Answers `step` and `reset` as one engine of all rows. A row without an emulator is black, and silent.

    make: makes an engine of so many rows. together: neighbouring rows that belong to one policy. empty: the first
    engine is made later, too.
    """

    def __init__(
        self, make: Callable[[int], Any], rows: int, together: int = 1, *, empty: bool = False
    ) -> None:
        self._make, self._rows = make, rows
        self._parts = dealt(rows, together)
        self._seeds: NDArray[np.int64] | None = None
        self._engines: list[Any] = [] if empty else [make(self._size(0))]
        self._arrived: list[tuple[NDArray[np.intp], Any]] = []
        """First answers of engines, which the next step delivers."""

    @property
    def missing(self) -> NDArray[np.bool_]:
        """Rows without an emulator, [R]."""
        missing_R = np.zeros(self._rows, np.bool_)
        for part in self._parts[len(self._engines) :]:
            missing_R[part] = True
        return missing_R

    @property
    def next_size(self) -> int:
        """Rows of the engine that is made next; 0 if all are there."""
        return self._size(len(self._engines)) if len(self._engines) < len(self._parts) else 0

    def grow(self) -> NDArray[np.intp]:
        """Make the next engine; return its rows, whose games begin with the next step."""
        number = len(self._engines)
        self._engines.append(self._make(self._size(number)))
        self._arrived.append((self._parts[number], self._begun(number, self._seeds)))
        return self._parts[number]

    def reset(self, *, seed: NDArray[np.int64] | None = None) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Begin a game on every row that is there. seed: one per row; engines made later take theirs from it."""
        self._seeds = self._seeds if seed is None else seed
        self._arrived = [(self._parts[e], self._begun(e, seed)) for e in range(len(self._engines))]
        frames_R, *_, info = self._arrivals()
        return frames_R, info

    def step(self, action_R: NDArray[np.integer[Any]]) -> tuple[Any, ...]:
        """Step every row that is there, but for those whose games begin."""
        there = len(self._engines) - len(self._arrived)
        answers = self._arrivals()
        *arrays_R, info_R = answers
        for part, engine in zip(self._parts[:there], self._engines, strict=False):
            *arrays_E, info = engine.step(action_R[part])
            for array_R, array_E in zip(
                (*arrays_R, info_R["lives"]), (*arrays_E, info["lives"]), strict=True
            ):
                array_R[part] = array_E
        return answers

    def _size(self, number: int) -> int:
        return len(self._parts[number])

    def _begun(
        self, number: int, seed: NDArray[np.int64] | None
    ) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        frames_E, info = self._engines[number].reset(seed=None if seed is None else seed[self._parts[number]])
        return frames_E.copy(), info["lives"].copy()

    def _arrivals(self) -> tuple[Any, ...]:
        """Return (frames, scores, over, cut, info) with nothing but the rows whose games begin."""
        rows = self._rows
        frames_R, lives_R = np.zeros((rows, 1, *SEEN), np.uint8), np.zeros(rows, np.int64)
        for part, (frames_E, lives_E) in self._arrived:
            frames_R[part], lives_R[part] = frames_E, lives_E
        self._arrived = []
        over_R, cut_R = np.zeros(rows, np.bool_), np.zeros(rows, np.bool_)
        return frames_R, np.zeros(rows), over_R, cut_R, {"lives": lives_R}


FRAMES_PER_SECOND = 60
SEEN = (84, 84)
"""Height and width of a frame."""
SCREEN = (210, 160)
"""Height and width of a game's own picture."""

_FRAMES = (
    "Frames, one at a time, are those of `ale_py.vector_env.AtariVectorEnv({game!r}, N, stack_num=1, "
    "frameskip={frame_skip}, noop_max={noops}, repeat_action_probability={repeat_action_probability}, "
    "full_action_space={full_action_space}, max_num_frames_per_episode={max_frames_per_episode}, "
    "reward_clipping=False, use_fire_reset=False)`: grey, 84x84, the maximum of a step's last two emulator frames."
)
_FIRE = (
    "FIRE ({fire}) is then pressed for one step, whatever the policy says. The frame after it is the "
    "first of an episode for the policy: a stack begins anew with copies of it, and a recurrent state with zeros. FIRE "
    "is pressed, too, for the step after each lost life but the last"
)
_FIRE_BEGINS = "; it begins an episode for the policy there as well."
_FIRE_GOES_ON = ", within the episode."
_SCORE = "Its score is the sum of all rewards, unclipped, to its end: a lost life does not end it."


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
        obs={"obs": ArraySpec(SEEN, "uint8")},
        action=ActionSpec(nvec=(18 if options.full_action_space else len(actions),)),
        frame_skip=options.frame_skip,
        frame_stack=options.frame_stack,
        shaping=shaping,
    )


def engine(game: str, rows: int, options: AtariOptions, **picture: Any) -> Any:
    """Make the emulators of some rows; `picture` says how frames look. With the same seeds they play alike."""
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
        noop_max=options.noop_max + 1,  # it draws below that
        episodic_life=False,
        reward_clipping=False,
        use_fire_reset=False,  # the engine's FIRE comes before the no-ops
        **picture,
    )


def played(game: str, options: AtariOptions) -> str:
    """Say how a game is played, for those who play it without this package."""
    names = game_facts(game)[0]
    actions = ", ".join(f"{i} {name}" for i, name in enumerate(names))
    lines = [_FRAMES.format(game=game, noops=options.noop_max + 1, **asdict(options))]
    if options.frame_stack > 1:
        lines.append(f"The newest {options.frame_stack} frames are stacked.")
    lines.append("All 18 actions are legal." if options.full_action_space else f"Actions: {actions}.")
    lines.append(
        f"A game starts with 0 to {options.noop_max} single emulator frames without an action. {_SCORE}"
    )
    fire = _fire(game, options)
    if options.fire_reset and fire is not None:
        lines.append(_FIRE.format(fire=fire) + (_FIRE_BEGINS if options.episodic_life else _FIRE_GOES_ON))
    return "\n".join(f"- {line}" for line in lines)


def _fire(game: str, options: AtariOptions) -> int | None:
    """Return the number of the action FIRE; None if there is none."""
    names = game_facts(game)[0]
    if options.full_action_space:
        return 1
    return names.index("FIRE") if "FIRE" in names else None


class AtariUnit:
    """R games of one kind, stepped together on one engine thread.

    The reset, the FIRE by which a game starts and the one that follows a lost life (where that is terminal) deliver
    `first`: the action is ignored and the transition is not a real one.
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
                    lambda part: self._make(game, part, options),
                    rows,
                    rows_of_a_policy(shaping),
                    empty=begins_empty(shaping),
                )
                self._missing_R = self._engine.missing
            else:
                self._engine = self._make(game, rows, options)
        self.seed_R = np.random.SeedSequence(seed).generate_state(rows).astype(np.int64) % 2**31
        """Of the emulators: taken by the first reset only, their generators go on from there."""
        self._seeded = False

        fire = _fire(game, options)
        self._fire = fire or 0
        self._scoring = AtariScoring(rows, options, may_fire=fire is not None)

        self._ended_R = np.zeros(rows, np.bool_)  # the engine's next step resets the row
        self._starts_R = np.zeros(rows, np.bool_)  # the next step is the FIRE by which the game starts
        self.pressed_R = np.zeros(rows, np.int64)
        """What was given to the engine in the last step."""

    def _make(self, game: str, rows: int, options: AtariOptions) -> Any:
        return engine(game, rows, options)

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
        """See `Unit.reset`. The first call seeds the emulators."""
        with all_at_once(self._pulse, self.rows):
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
        """See `Unit.step`. action: [R, 1] int32."""
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
        """Release the engine: its thread is joined when the last reference goes."""
        self._engine = None

    def _begin_game(self, row: int) -> None:
        self._scoring.begin(row, self._book.begin(row))
        self._starts_R[row] = self._scoring.presses_fire


def _unknown_game(game: str, known: tuple[str, ...]) -> str:
    if game in MULTIPLAYER_ONLY:
        return f"atari/{game} needs several players and cannot be trained here; `pbt-rl envs` lists the games"
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", game).lower().replace("-", "_")
    close = difflib.get_close_matches(snake, known)
    hint = f"; did you mean {', '.join('atari/' + name for name in close)}?" if close else ""
    return f"atari/{game} is not an Atari game{hint} `pbt-rl envs` lists all {len(known)} games"


BACKEND = Backend(
    names=names,
    probe=lambda name, options: probe(name, options.of(AtariOptions)),
    make_unit=lambda name, rows, seed, options, shaping: AtariUnit(
        name, rows, seed, options.of(AtariOptions), shaping
    ),
    recipe=lambda _name, _options: recipe(),
    begins="the first emulators are made",
    for_evaluation=lambda options: options.with_family(raw_scores(options.of(AtariOptions))),
    played=lambda name, options: played(name, options.of(AtariOptions)),
)
