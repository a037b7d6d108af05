"""Declares the family of gymnax."""

from __future__ import annotations

from ..family import Family

FAMILIES = (
    Family(
        "gymnax",
        "JAX environments of gymnax, on the learner's device",
        "gymnax/CartPole-v1",
        ("gymnax", "six"),  # gymnax imports six without requiring it
        "pip install gymnax six",
        ".gymnax.backend",
        takes_keywords=True,
        on_device=True,
    ),
)
NEEDS = ("pbt_rl.envs.resident",)
WITH_TORCH = True
"""Where an environment is made; the list of names needs neither torch nor JAX."""
ASKED = ("train --env gymnax/CartPole-v1 --show",)
"""Command lines that ask for it."""
