"""Declares the toys whose rows are tensors. It needs torch where an environment is made, and not before."""

from __future__ import annotations

from ..family import Family

FAMILIES = (
    Family(
        "tensors",
        "toys on the learner's device",
        "tensors/pendulum",
        ("torch",),
        "pip install torch",
        ".tensors.backend",
        takes_keywords=True,
        on_device=True,
    ),
)
ASKED = ("train --env tensors/pendulum --show",)
"""Command lines that ask for it."""
NEEDS = ("pbt_rl.envs.resident",)
WITH_TORCH = True
