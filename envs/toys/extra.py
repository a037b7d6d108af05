"""Declares more toys, by name."""

from __future__ import annotations

FAMILIES = ()
TOYS = {
    "treasure": "pbt_rl.envs.toys.treasure:Treasure",
    "counting": "pbt_rl.envs.toys.counting:Counting",
    "masked": "pbt_rl.envs.toys.actions:Masked",
    "hybrid": "pbt_rl.envs.toys.actions:Hybrid",
    "crashing": "pbt_rl.envs.toys.faults:Crashing",
    "hanging": "pbt_rl.envs.toys.faults:Hanging",
    "nan": "pbt_rl.envs.toys.faults:NotANumber",
    "wrong-shape": "pbt_rl.envs.toys.faults:WrongShape",
}
"""See `envs.toy`."""
ASKED = ("train --env toy/masked --show",)
"""Command lines that ask for it."""
