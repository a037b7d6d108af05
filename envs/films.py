"""Vector envs with a camera on row 0, for all families with pictures. Filming does not change the episodes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import chain
from typing import Any, Protocol

import gymnasium
import numpy as np
from numpy.typing import NDArray

from pbt_rl.errors import EnvSetupError

from .ale import AtariVectorEnv, engine
from .atari import AtariOptions
from .base import ShapingSource, StepArrays, VectorEnv
from .custom import find_factory, kind_of, make, simulator_backend, takes, vector_env_of
from .episode_book import all_at_once, heartbeat_of
from .family import Backend, EnvOptions
from .first_trial import environment_traceback
from .frames import Frames, Picture
from .gym import GymVectorEnv, maker
from .lookup import backend_of, family_of, seeing
from .user_values import metadata_of


class Camera(Protocol):
    """Camera on row 0 of a vector env."""

    @property
    def frames_per_second(self) -> float:
        """Pictures per second of simulated time."""

    def shoot(self, step: StepArrays, action_A: NDArray[Any] | None) -> Picture:
        """Return a picture of row 0 after a step, uint8 [H, W, 3].

        step: output of the step.
        action_A: action of the step. None: after the first reset.
        Raises EnvSetupError if the environment cannot be rendered.
        """

    def close(self) -> None:
        """Release the resources of the camera."""


class SeenPictures:
    """Camera that returns the policy's RGB observation "obs" [3, H, W] as a picture [H, W, 3]."""

    def __init__(self, frames_per_second: float) -> None:
        self.frames_per_second = frames_per_second

    def shoot(self, step: StepArrays, action_A: NDArray[Any] | None) -> Picture:  # noqa: ARG002 - see Camera
        return np.moveaxis(step.obs["obs"][0], 0, -1)

    def close(self) -> None:
        """Do nothing."""


USUAL_FPS, MOST_FPS = 30.0, 1000


class RenderCamera:
    """Camera that calls the environment's `render`, which must return a picture.

    row: row to show if `render` returns pictures of all rows.
    remedy: advice for the error message.
    """

    def __init__(self, env: Any, row: int | None = None, remedy: str = "") -> None:
        self._env, self._row, self._remedy = env, row, remedy
        self._frames = Frames()
        fps = metadata_of(env).get("render_fps")
        self.frames_per_second = (
            float(fps) if isinstance(fps, int | float | np.number) and 0 < fps < MOST_FPS else USUAL_FPS
        )

    def shoot(self, step: StepArrays, action_A: NDArray[Any] | None) -> Picture:  # noqa: ARG002 - see Camera
        """Render a picture. Raises EnvSetupError if the environment cannot be rendered."""
        try:
            picture: Any = self._env.render()
        except (gymnasium.error.Error, ImportError, NotImplementedError) as error:
            why = str(error).rstrip(".") or type(error).__name__
            raise EnvSetupError(
                f"--video: the environment cannot be rendered: {why}{self._remedy}"
            ) from error
        except (Exception, SystemExit) as error:  # the environment's own code
            raise EnvSetupError(
                f"--video: render() raised {type(error).__name__}.\n{environment_traceback(error)}"
            ) from error
        with suppress(TypeError, LookupError):  # the next check reports other values
            picture = picture if self._row is None else picture[self._row]
        try:
            return self._frames.picture(picture)
        except ValueError as error:
            raise EnvSetupError(
                f"--video: render() returned {error}, not a picture [H, W, 3]{self._remedy}"
            ) from None

    def close(self) -> None:
        """Do nothing, because the vector env closes its environments."""


FRAMES_PER_SECOND = 60
SCREEN = (210, 160)
"""Height and width of the console's picture."""


class ColourTwin:
    """Camera with a second emulator, in colour, that gets the actions of row 0.

    The second emulator plays the same game as row 0, because both have the same seed.
    """

    def __init__(self, game: str, options: AtariOptions, vector_env: AtariVectorEnv) -> None:
        self._vector_env = vector_env
        self._seed: NDArray[np.int64] | None = vector_env.seed_R[:1]
        height, width = SCREEN
        self.frames_per_second = FRAMES_PER_SECOND / options.frame_skip
        self._engine: Any = engine(game, 1, options, img_height=height, img_width=width, grayscale=False)

    def shoot(self, step: StepArrays, action_A: NDArray[Any] | None) -> Picture:  # noqa: ARG002 - see Camera
        if action_A is None:
            frames, _ = self._engine.reset(seed=self._seed)
            self._seed = None
        else:
            frames = self._engine.step(self._vector_env.pressed_R[:1])[0]
        picture: Picture = frames[0, 0].copy()
        return picture

    def close(self) -> None:
        """Release the second emulator."""
        self._engine = None


def _film_atari(
    game: str, rows: int, seed: int, options: EnvOptions, shaping: ShapingSource
) -> tuple[AtariVectorEnv, Camera]:
    own = options.of(AtariOptions)
    vector_env = AtariVectorEnv(game, rows, seed, own, shaping)
    return vector_env, ColourTwin(game, own, vector_env)


def _film_gym(
    gym_id: str, rows: int, seed: int, options: EnvOptions, shaping: ShapingSource
) -> tuple[GymVectorEnv, RenderCamera]:
    """Make a vector env with a camera on row 0. Raises EnvSetupError if the environment renders no `rgb_array`."""
    others = maker(gym_id, options.keywords)
    plain = others()
    modes = [mode for mode in metadata_of(plain).get("render_modes") or [] if isinstance(mode, str)]
    plain.close()
    if "rgb_array" not in modes:
        raise EnvSetupError(
            f"--video: gym/{gym_id} cannot render rgb_array. Its render modes: {', '.join(modes) or 'none'}"
        )
    first = maker(gym_id, {**options.keywords, "render_mode": "rgb_array"})()
    envs = chain([first], iter(others, None))
    return GymVectorEnv(f"gym/{gym_id}", lambda: next(envs), rows, seed, shaping), RenderCamera(first)


OWN_REMEDY = (
    '. Its factory must return an environment whose render() returns a picture. The factory gets "rgb_array" if it '
    "has a parameter render_mode"
)


def _film_own(
    env_id: str, rows: int, seed: int, options: EnvOptions, shaping: ShapingSource
) -> tuple[VectorEnv, Camera] | None:
    """Make a vector env with a camera on row 0. The factory gets `render_mode` if it has this parameter.

    Returns None for a device simulator without pictures. The first picture raises EnvSetupError if `render()` fails.
    """
    other = simulator_backend(env_id)
    if other is not None:
        return film_by(other, env_id, rows, seed, options, shaping)
    keywords = dict(options.keywords)
    if takes(find_factory(env_id), "render_mode"):
        keywords.setdefault("render_mode", "rgb_array")
    with all_at_once(heartbeat_of(shaping), rows):
        env = make(env_id, rows, keywords, options.first_row)
    vector_env = vector_env_of(env, env_id, rows, seed, shaping, options)
    kind = kind_of(env)
    return vector_env, RenderCamera(
        env, row=0 if kind is not None and kind.all_rows else None, remedy=OWN_REMEDY
    )


FILMED: Mapping[
    str, Callable[[str, int, int, EnvOptions, ShapingSource], tuple[VectorEnv, Camera] | None]
] = {
    "atari": _film_atari,
    "gym": _film_gym,
    "": _film_own,
}
"""Family -> function that makes its vector env and camera, for families without `Backend.film`. "": the user's own
environments.
"""
REMEDY = ". Its render() must return a picture of row 0, uint8 [H, W, 3]"
WITHOUT_DISPLAY = {"SDL_VIDEODRIVER": "dummy", "MUJOCO_GL": "egl"}
"""Environment variables with which pygame and MuJoCo render pictures on a machine without a display."""


def film(
    env_id: str, rows: int, seed: int, options: EnvOptions, shaping: ShapingSource
) -> tuple[VectorEnv, Camera] | None:
    """Make a vector env with a camera on row 0. None if the environment has no pictures.

    Raises EnvSetupError if the environment cannot be made, or if a gym/ environment has no render mode `rgb_array`.
    On a machine without a display, this function sets the environment variables in WITHOUT_DISPLAY.
    """
    if not os.environ.get("DISPLAY") and not os.environ.get("WAYLAND_DISPLAY"):
        for variable, value in WITHOUT_DISPLAY.items():
            os.environ.setdefault(variable, value)
    backend, name = backend_of(env_id, options)
    own = FILMED.get(_family(env_id))
    if own is not None:
        filmed = own(name, rows, seed, options, shaping)
    else:
        filmed = film_by(backend, name, rows, seed, options, shaping)
    return None if filmed is None else (seeing(filmed[0], options), filmed[1])


def film_by(
    backend: Backend, name: str, rows: int, seed: int, options: EnvOptions, shaping: ShapingSource
) -> tuple[VectorEnv, Camera] | None:
    """Make a vector env with a camera on row 0 by `Backend.film`. None if the environment has no pictures."""
    made = None if backend.film is None else backend.film(name, rows, seed, options, shaping)
    if made is None:
        return None
    vector_env, shows = made
    if isinstance(shows, int | float):
        return vector_env, SeenPictures(shows / vector_env.spec.frame_skip)
    return vector_env, RenderCamera(shows, remedy=REMEDY)


def has_pictures(env_id: str, options: EnvOptions) -> bool:
    """Check whether the family of an id has environments with pictures. This environment may still have none."""
    return backend_of(env_id, options)[0].film is not None or _family(env_id) in FILMED


def _family(env_id: str) -> str:
    family = family_of(env_id)
    return "" if family is None else family.name
