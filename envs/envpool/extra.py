"""Declares the family of EnvPool."""

from __future__ import annotations

from ..atari import AtariOptions
from ..family import Family

FAMILIES = (
    Family(
        "envpool",
        "EnvPool's native vectors",
        "envpool/Pong-v5",
        ("envpool",),
        "pip install 'pbt-rl[envpool]'",
        ".envpool.unit",
        takes_keywords=True,
        options={"atari": AtariOptions},
    ),
)
ASKED = ("train --env envpool/Pong-v5 --show",)
"""Command lines that ask for it."""
