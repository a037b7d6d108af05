"""Declares what plays a Gymnasium `VectorEnv` of tensors that a factory with `rows` and `device` returns."""

from __future__ import annotations

from gymnasium.vector import VectorEnv

from ..family import ResidentKind

FAMILIES = ()
RESIDENT_KINDS = (
    ResidentKind(
        "a Gymnasium VectorEnv of tensors",
        lambda env: isinstance(env, VectorEnv),
        "pbt_rl.envs.batched.vector",
    ),
)
WITH_TORCH = True
"""Where an environment is made."""
ASKED = ()
"""Command lines that ask for it."""
