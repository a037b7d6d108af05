"""Films of the user's own environments."""

from __future__ import annotations

from ..base import ShapingSource, Unit
from ..custom import find_factory, kind_of, make, of_an_extra, takes, unit_of
from ..episodes import all_at_once, pulse_of
from ..family import EnvOptions
from .camera import Camera, RenderCamera
from .filming import film_by

REMEDY = (
    ": its factory must return an environment whose render() gives a picture; with a parameter render_mode it is asked "
    'for "rgb_array"'
)


def film(
    env_id: str, rows: int, seed: int, options: EnvOptions, shaping: ShapingSource
) -> tuple[Unit, Camera] | None:
    """Make a unit with a camera on its row 0, whose factory is told to draw if it can be told.

    Whether `render()` gives pictures shows when the first one is taken. None for an extra's factories without any.
    """
    other = of_an_extra(env_id)
    if other is not None:
        return film_by(other, env_id, rows, seed, options, shaping)
    keywords = dict(options.keywords)
    if takes(find_factory(env_id), "render_mode"):
        keywords.setdefault("render_mode", "rgb_array")
    with all_at_once(pulse_of(shaping), rows):
        env = make(env_id, rows, keywords)
    unit = unit_of(env, env_id, rows, seed, shaping, options.keywords)
    kind = kind_of(env)
    return unit, RenderCamera(env, row=0 if kind is not None and kind.all_rows else None, remedy=REMEDY)
