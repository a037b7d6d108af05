"""The family gymnax/: names and default options. This module imports torch and JAX when it makes an environment."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from ..base import EnvSpec
from ..families import SIMULATOR
from ..family import Backend, EnvOptions
from ..first_trial import FirstProbe
from ..gym import PLANES, recipe
from ..time_limits import LONG_SECONDS, told_of_long
from .custom_simulators import vector_envs_of

NAMES = (
    "Acrobot-v1",
    "Asterix-MinAtar",
    "BernoulliBandit-misc",
    "Breakout-MinAtar",
    "CartPole-v1",
    "Catch-bsuite",
    "DeepSea-bsuite",
    "DiscountingChain-bsuite",
    "FourRooms-misc",
    "Freeway-MinAtar",
    "FrozenLake-misc",
    "GaussianBandit-misc",
    "MemoryChain-bsuite",
    "MetaMaze-misc",
    "MountainCar-v0",
    "MountainCarContinuous-v0",
    "Pendulum-v1",
    "PointRobot-misc",
    "Pong-misc",
    "Reacher-misc",
    "Seaquest-MinAtar",
    "SimpleBandit-bsuite",
    "SpaceInvaders-MinAtar",
    "Swimmer-misc",
    "UmbrellaChain-bsuite",
)
"""Names in gymnax 1.0.1. MNISTBandit-bsuite is excluded because it downloads data."""


def probe(name: str, keywords: Mapping[str, Any]) -> EnvSpec:
    """Return the spec of an environment. Raises EnvSetupError for an unknown name or keyword, and unsupported spaces.

    keywords: parameters of the environment (--env-option).
    """
    for tell in told_of_long:
        tell()  # on a busy machine the import of JAX may take minutes
    from .gymnax_rows import describe  # noqa: PLC0415 - it imports JAX

    return describe(name, keywords)


def make_simulator(name: str, rows: int, seed: int, device: str, options: EnvOptions) -> Any:
    """Make a device simulator of R rows. Raises EnvSetupError as `probe` does, and if JAX lacks the device.

    device: name of a torch device, such as "cuda:0".
    """
    from .gymnax_rows import GymnaxRows  # noqa: PLC0415 - it imports JAX and torch

    return GymnaxRows(name, rows, seed, device, options.keywords)


FIRST = FirstProbe("gymnax/", probe)


def _probe(name: str, options: EnvOptions) -> EnvSpec:
    """Return the spec of an environment that is made in a fork.

    If this process has imported JAX, the environment is made without a fork, because a fork would hang.
    """
    return (probe if "jax" in sys.modules else FIRST)(name, options.keywords)


def _recipe(name: str, options: EnvOptions) -> dict[str, object]:
    spec = (probe if "jax" in sys.modules else FIRST.for_recipe)(name, options.keywords)
    return recipe(spec) | SIMULATOR | (PLANES if name.endswith("-MinAtar") else {})


BACKEND = Backend(
    names=lambda: NAMES,
    probe=_probe,
    make_vector_env=vector_envs_of(make_simulator),
    recipe=_recipe,
    make_simulator=make_simulator,
    step_seconds=LONG_SECONDS,
)
