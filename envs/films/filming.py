"""Units with a camera on row 0, of any family that has pictures."""

from __future__ import annotations

from importlib import import_module

from ..base import ShapingSource, Unit
from ..family import Backend, EnvOptions
from ..registry import backend_of, family_of, seeing
from .camera import Camera, RenderCamera, SeenPictures

MODULES = {"atari": "atari", "gym": "gym", "": "custom"}
"""Family -> module here with its `film`; "": environments of the user's own."""
REMEDY = ": render() of its rows must show row 0 as uint8 [H, W, 3]"


def film(
    env_id: str, rows: int, seed: int, options: EnvOptions, shaping: ShapingSource
) -> tuple[Unit, Camera] | None:
    """Make a unit with a camera on its row 0; None for a family without pictures."""
    backend, name = backend_of(env_id, options)
    if backend.film is not None:
        filmed = film_by(backend, name, rows, seed, options, shaping)
    elif _family(env_id) in MODULES:
        module = import_module(f".{MODULES[_family(env_id)]}", __package__)
        filmed = module.film(name, rows, seed, options, shaping)
    else:
        return None
    return None if filmed is None else (seeing(filmed[0], options), filmed[1])


def film_by(
    backend: Backend, name: str, rows: int, seed: int, options: EnvOptions, shaping: ShapingSource
) -> tuple[Unit, Camera] | None:
    """Make a unit of a family that says itself what shows its row 0: see `Backend.film`."""
    made = None if backend.film is None else backend.film(name, rows, seed, options, shaping)
    if made is None:
        return None
    unit, shows = made
    if isinstance(shows, int | float):
        return unit, SeenPictures(shows / unit.spec.frame_skip)
    return unit, RenderCamera(shows, remedy=REMEDY)


def has_pictures(env_id: str, options: EnvOptions) -> bool:
    """Return whether environments of its family can be filmed at all."""
    return backend_of(env_id, options)[0].film is not None or _family(env_id) in MODULES


def _family(env_id: str) -> str:
    family = family_of(env_id)
    return "" if family is None else family.name
