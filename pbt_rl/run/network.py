"""What the network sees of an environment, in words."""

from __future__ import annotations

from math import prod

from pbt_rl.algos.encoders import CNNS, is_grid, is_image, is_text
from pbt_rl.config import Config
from pbt_rl.envs.base import ACTION_MASK, LAST, EnvSpec
from pbt_rl.learner.build import normalized_obs, obs_layouts

SHOWN = 6
"""Components of an action that are shown."""


def network_sees(config: Config, spec: EnvSpec) -> list[str]:
    """Return what the network sees, array by array, and what its actions are scaled to."""
    normalized, encoder = normalized_obs(config, spec), config.model.encoder
    parts = []
    for name, layout in obs_layouts(spec).items():
        if name in (ACTION_MASK, LAST):
            continue
        (shape, dtype), given = layout.seen, spec.obs[name].given
        size = "x".join(map(str, shape))
        if is_text(shape, dtype):
            what = f"a text of {shape[0]} words"
        elif is_grid(shape, dtype):
            what = f"a grid {size}"
        elif is_image(shape, dtype):
            what = f"a picture {size}"
        else:
            what = f"{prod(shape):,} number{'s' * (prod(shape) != 1)}"
        read = _reader(encoder, shape, dtype)
        how = f"{read}, normalised" if name in normalized else read
        alone = ", for the critic alone" * (name in spec.critic)
        parts.append(f"{name}: {what}{f' ({given})' * bool(given)}, by {how}{alone}")
    lines = [f"the network sees {'; '.join(parts)}"]
    scaled = _scaled(spec) if config.model.action_bounds == "clip" else ""
    return [*lines, scaled] if scaled else lines


def _reader(encoder: str, shape: tuple[int, ...], dtype: str) -> str:
    if ":" in encoder:
        return encoder
    if is_text(shape, dtype):
        return "an embedding of each word"
    if is_image(shape, dtype) and encoder != "mlp":
        return f"the CNN {'nature' if encoder not in CNNS else encoder}"
    return "an MLP"


def _scaled(spec: EnvSpec) -> str:
    centres, halves = spec.action.units
    bounds = [
        f"{low:g}..{high:g}"
        for low, high, centre, half, free in zip(
            spec.action.low, spec.action.high, centres, halves, spec.action.unbounded, strict=True
        )
        if (centre, half) != (0, 1) and not free
    ]
    if not bounds:
        return ""
    shown = ", ".join(dict.fromkeys(bounds[:SHOWN])) + (", ..." if len(bounds) > SHOWN else "")
    bends = "" if any(spec.action.unbounded) else " (--model.action-bounds tanh bends it instead)"
    return f"actions: -1..1 of the network is scaled to {shown}{bends}"
