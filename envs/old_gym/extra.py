"""Declares what to do with an environment of before Gymnasium, and the ids of Crafter, which is one."""

from __future__ import annotations

from importlib import import_module

from ..packages import Package
from ..values import attribute

FAMILIES = ()


def REMEDY(env: object) -> str:
    """What to return instead of an object, if it has what an environment of before Gymnasium has; else nothing."""
    needed = ("reset", "step", "observation_space", "action_space")
    if any(attribute(env, name) is None for name in needed):
        return ""
    return (
        "an environment of the interface before Gymnasium: return pbt_rl.envs.old_gym.OldGym(env) of it, or one of "
        "Shimmy's wrappers: GymV21CompatibilityV0(env=env) if its step returns four values, "
        "GymV26CompatibilityV0(env=env) if five"
    )


def _register_crafter() -> None:
    registry = import_module("gymnasium")
    for name, reward in (("CrafterReward-v1", True), ("CrafterNoReward-v1", False)):
        registry.register(name, "pbt_rl.envs.old_gym:make_crafter", kwargs={"reward": reward})


PACKAGES = {"crafter": Package("crafter", ("Crafter",), _register_crafter, "CrafterReward-v1")}
"""See `envs.packages`."""
ASKED = ()
"""Command lines that ask for it: none, it is used in Python."""
