"""Films of an environment: a camera takes pictures of row 0 of a unit, without changing how it is played.

A unit has no pictures of its own, because learners need none. A family that can be filmed gives a unit with a camera
(`Backend.film`).
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .base import StepArrays, Unit

Picture = NDArray[np.uint8]
"""[H, W, 3]"""


class Camera(Protocol):
    """Takes pictures of row 0 of a unit."""

    @property
    def frames_per_second(self) -> float:
        """Pictures per second of the environment's own time."""

    def shoot(self, step: StepArrays, action_A: NDArray[Any] | None) -> Picture:
        """Show row 0 after the step that this action caused; None after the first reset."""

    def close(self) -> None:
        """Release what belongs to the camera alone."""


class SeenPictures:
    """The RGB picture [3, H, W] that the policy itself sees."""

    def __init__(self, frames_per_second: float) -> None:
        self.frames_per_second = frames_per_second

    def shoot(self, step: StepArrays, action_A: NDArray[Any] | None) -> Picture:  # noqa: ARG002 - a Camera
        """See Camera."""
        return np.moveaxis(step.obs["obs"][0], 0, -1)

    def close(self) -> None:
        """Hold nothing."""


def filmed_as_seen(unit: Unit, frames_per_second: float) -> tuple[Unit, Camera]:
    """Film what the policy sees. frames_per_second: frames of the engine, of which a step takes `frame_skip`."""
    return unit, SeenPictures(frames_per_second / unit.spec.frame_skip)
