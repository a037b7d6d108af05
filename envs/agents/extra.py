"""Declares the families whose environments have several agents."""

from __future__ import annotations

from ..family import Family

FAMILIES = (
    Family(
        "dmlab2d",
        "DeepMind Lab2D levels",
        "dmlab2d/commons_harvest",
        ("dmlab2d",),
        "pip install 'pbt-rl[dmlab2d]'",
        ".lab2d",
        takes_keywords=True,
        several_agents=True,
    ),
    Family(
        "pettingzoo",
        "PettingZoo: environments of several agents",
        "pettingzoo/classic/connect_four_v3",
        ("pettingzoo",),
        "pip install 'pbt-rl[pettingzoo]'",
        ".pettingzoo.family",
        takes_keywords=True,
        several_agents=True,
    ),
)
