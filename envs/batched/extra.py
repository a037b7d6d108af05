"""Declares what plays a Gymnasium `VectorEnv` of tensors that a factory with `rows` and `device` returns."""

from __future__ import annotations


def _fits(env: object) -> bool:
    from gymnasium.vector import VectorEnv  # noqa: PLC0415 - lists of environments do without it

    return isinstance(env, VectorEnv)


FAMILIES = ()
RESIDENT_KINDS = {"pbt_rl.envs.batched.vector": _fits}
NEEDS = ("pbt_rl.envs.resident",)
WITH_TORCH = True
"""Where an environment is made."""
ASKED = ()
"""Command lines that ask for it."""
