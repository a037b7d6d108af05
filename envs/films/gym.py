"""Films of Gymnasium's environments."""

from __future__ import annotations

from typing import Any

import gymnasium

from ..base import EnvSetupError, ShapingSource
from ..family import EnvOptions
from ..gym import GymUnit, maker
from ..values import metadata_of
from .camera import RenderCamera


def film(
    gym_id: str, rows: int, seed: int, options: EnvOptions, shaping: ShapingSource
) -> tuple[GymUnit, RenderCamera]:
    """Make a unit with a camera on its row 0. Raises EnvSetupError if the environment renders no `rgb_array`."""
    made: list[gymnasium.Env[Any, Any]] = []
    others = maker(gym_id, options.keywords)
    first = maker(gym_id, {**options.keywords, "render_mode": "rgb_array"})

    def make() -> gymnasium.Env[Any, Any]:
        made.append(others() if made else first())
        return made[-1]

    plain = others()
    modes = [mode for mode in metadata_of(plain).get("render_modes") or [] if isinstance(mode, str)]
    plain.close()
    if "rgb_array" not in modes:
        raise EnvSetupError(
            f"--video: gym/{gym_id} cannot render rgb_array, only {', '.join(modes) or 'nothing'}"
        )
    unit = GymUnit(f"gym/{gym_id}", make, rows, seed, shaping)
    return unit, RenderCamera(made[0])
