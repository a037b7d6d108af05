"""Cameras, which take pictures of row 0 of a unit, without changing how it is played.

A unit has no pictures of its own, because learners need none.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..base import EnvSetupError, StepArrays
from ..values import metadata_of

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


USUAL_FPS, MOST_FPS = 30.0, 1000


class RenderCamera:
    """Shows what an environment renders, made with `render_mode="rgb_array"`. row: of a vector, which renders all.

    remedy: what to do if it gives no picture.
    """

    def __init__(self, env: Any, row: int | None = None, remedy: str = "") -> None:
        self._env, self._row, self._remedy = env, row, remedy
        fps = metadata_of(env).get("render_fps")
        self.frames_per_second = (
            float(fps) if isinstance(fps, int | float | np.number) and 0 < fps < MOST_FPS else USUAL_FPS
        )

    def shoot(self, step: StepArrays, action_A: NDArray[Any] | None) -> Picture:  # noqa: ARG002 - a Camera
        """See Camera. Raises EnvSetupError if the environment cannot be drawn."""
        try:
            picture: Any = self._env.render()
            if self._row is not None and picture is not None:
                picture = picture[self._row]
        except Exception as error:  # the environment's own code
            why = str(error).rstrip(".") or type(error).__name__
            raise EnvSetupError(f"--video: the environment cannot be drawn: {why}{self._remedy}") from error
        if not isinstance(picture, np.ndarray) or picture.ndim != 3:
            raise EnvSetupError(
                f"--video: render() returned {type(picture).__name__}, not a picture [H, W, 3]{self._remedy}"
            )
        return picture[..., :3].astype(np.uint8, copy=False)

    def close(self) -> None:
        """The unit closes its environments."""
