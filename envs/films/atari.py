"""Films of Atari games, in colour."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..ale import AtariUnit, engine
from ..atari import AtariOptions
from ..base import ShapingSource, StepArrays
from ..family import EnvOptions
from .camera import Camera, Picture

FRAMES_PER_SECOND = 60
SCREEN = (210, 160)
"""Height and width of a game's own picture."""


class ColourTwin:
    """The same Atari game as a unit's first a second time, in colour: whatever is pressed there is pressed here.

    Both draw alike, as they have the same seed.
    """

    def __init__(self, game: str, options: AtariOptions, unit: AtariUnit) -> None:
        self._unit = unit
        self._seed: NDArray[np.int64] | None = unit.seed_R[:1]
        height, width = SCREEN
        self.frames_per_second = FRAMES_PER_SECOND / options.frame_skip
        self._engine: Any = engine(game, 1, options, img_height=height, img_width=width, grayscale=False)

    def shoot(self, step: StepArrays, action_A: NDArray[Any] | None) -> Picture:  # noqa: ARG002 - a Camera
        """See Camera."""
        if action_A is None:
            frames, _ = self._engine.reset(seed=self._seed)
            self._seed = None
        else:
            frames = self._engine.step(self._unit.pressed_R[:1])[0]
        picture: Picture = frames[0, 0].copy()
        return picture

    def close(self) -> None:
        """Release the engine."""
        self._engine = None


def film(
    game: str, rows: int, seed: int, options: EnvOptions, shaping: ShapingSource
) -> tuple[AtariUnit, Camera]:
    """Make a unit with a camera on its row 0."""
    own = options.of(AtariOptions)
    unit = AtariUnit(game, rows, seed, own, shaping)
    return unit, ColourTwin(game, own, unit)
