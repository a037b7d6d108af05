"""Declares the families of mjlab and Isaac Lab, and what plays an RSL-RL `VecEnv` that a user's factory returns."""

from __future__ import annotations

from ..family import Family
from .recipe import RECIPES

FAMILIES = (
    Family(
        "mjlab",
        "mjlab's robots (MuJoCo Warp), on the learner's device",
        "mjlab/Mjlab-Velocity-Flat-Unitree-Go1",
        ("mjlab",),
        "pip install mjlab",
        ".rsl.mjlab",
        recipes=RECIPES,
        takes_keywords=True,
        on_device=True,
    ),
    Family(
        "isaaclab",
        "Isaac Lab's tasks, on the learner's device (never run, see docs/simulators.md)",
        "isaaclab/Isaac-Velocity-Flat-Anymal-C-v0",
        ("isaaclab", "isaaclab_tasks", "isaaclab_rl"),
        "install Isaac Lab as https://isaac-sim.github.io/IsaacLab says, and pbt_rl into its Python environment",
        ".rsl.isaaclab",
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
ASKED = (
    "train --env mjlab/Mjlab-Cartpole-Balance --show",
    "train --env tensors/cartpole --recipe rsl-ppo --show",
)
"""Command lines that ask for it."""
TESTS = ("tests/envs/test_isaaclab.py", "tests/envs/test_rsl.py")
