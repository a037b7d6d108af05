"""Declares the family of mjlab, and what plays an RSL-RL `VecEnv` that a factory of the user's own returns."""

from __future__ import annotations

from ..family import Family

FAMILIES = (
    Family(
        "mjlab",
        "mjlab's robots (MuJoCo Warp), on the learner's device",
        "mjlab/Mjlab-Velocity-Flat-Unitree-Go1",
        ("mjlab",),
        "pip install mjlab",
        ".rsl.mjlab",
        takes_keywords=True,
        on_device=True,
    ),
)
RESIDENT_KINDS = {
    "pbt_rl.envs.rsl.vec_env": lambda env: all(
        hasattr(env, name) for name in ("get_observations", "num_actions", "num_envs")
    )
}
NEEDS = ("pbt_rl.envs.resident",)
WITH_TORCH = True
"""Where an environment is made; the list of names needs no torch."""
ASKED = ("train --env mjlab/Mjlab-Cartpole-Balance --show",)
"""Command lines that ask for it."""
