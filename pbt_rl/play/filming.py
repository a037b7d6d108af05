"""Filming the first episode of an evaluation. An extra makes the films."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import IO, Protocol, cast

from pbt_rl.envs import registry
from pbt_rl.envs.base import EnvSpec, Unit, default_shaping_source
from pbt_rl.envs.film import Camera, Picture
from pbt_rl.envs.registry import EnvOptions
from pbt_rl.errors import ConfigError
from pbt_rl.extras import offered


class TakesPictures(Protocol):
    """A film that is being made."""

    def add(self, picture: Picture) -> None:
        """Append a picture."""

    def close(self) -> None:
        """Finish it."""


BeginsFilm = Callable[[float], TakesPictures]
"""Begins a film of so many pictures per second."""


class FilmMaker(Protocol):
    """A module that makes films. An extra names it as `FILMS` in its `extra.py`."""

    def check_film(self, path: Path) -> None:
        """Raise ConfigError if a film could not be written there, before anything is played."""

    def Film(self, path: Path, frames_per_second: float) -> TakesPictures:
        """Begin the film of an episode."""

    def check_clips(self) -> None:
        """Raise ConfigError if clips could not be made, before anything starts."""

    def Clip(self, file: IO[bytes], frames_per_second: float) -> TakesPictures:
        """Begin a clip: half a minute, small enough for TensorBoard."""


def film_maker(option: str) -> FilmMaker:
    """Return what makes films. Raises ConfigError, which names the option, if this copy has nothing that does."""
    for module in offered("pbt_rl", "FILMS"):
        return cast("FilmMaker", import_module(module))
    raise ConfigError(f"--{option} cannot be used: no extra of this copy of pbt_rl makes films")


def filmed_unit(spec: EnvSpec, rows: int, seed: int, options: EnvOptions) -> tuple[Unit, Camera]:
    """Make a unit with a camera on its row 0. Raises ConfigError for environments without pictures."""
    filmed = registry.film(spec.env_id, rows, seed, options, default_shaping_source(spec))
    if filmed is None:
        raise ConfigError(f"--video: {spec.env_id} has no pictures: leave --video out")
    return filmed
