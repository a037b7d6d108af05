"""The family tensors/: specs and default options of the toys in tensor_toys.py.

This module imports torch when it makes a simulator.
"""

from __future__ import annotations

from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from pbt_rl.errors import EnvSetupError

from ..base import ActionSpec, ArraySpec, EnvSpec
from ..families import SIMULATOR
from ..family import Backend, EnvOptions
from .custom_simulators import vector_envs_of

MOST_STEPS = 2**31 - 1
"""Maximum length of an episode. Steps are counted in int32."""
SPECS = {
    "pendulum": EnvSpec(
        "tensors/pendulum",
        {"obs": ArraySpec((3,), "float32")},
        ActionSpec(low=(-2.0,), high=(2.0,)),
        shaping={"angle": 1.0, "speed": 0.1, "effort": 0.001},
        simulator=True,
        time_limit=200,
    ),
    "cartpole": EnvSpec(
        "tensors/cartpole",
        {"obs": ArraySpec((4,), "float32")},
        ActionSpec(nvec=(2,)),
        shaping={"alive": 1.0, "centre": 0.0},
        simulator=True,
        time_limit=500,
    ),
}
RECIPE: dict[str, object] = SIMULATOR | {
    "model.encoder": "mlp",
    "model.hidden": (64,),
    "model.layers": 2,
    "model.critic": "separate",
    "learner.rollout": 24,
    "learner.batch": 24 * 256,
    "learner.minibatches": 4,
    "learner.epochs": 5,
    "hypers.unroll": 24,
    "hypers.learning_rate": 1e-3,
    "hypers.clip_ratio": 0.2,
    "hypers.gae_lambda": 0.95,
    # A member with 256 rows completes about two episodes of pendulum in each row per period.
    "train_for_frames": 2_500_000,
}
OWN: dict[str, dict[str, object]] = {
    "pendulum": {
        "hypers.gamma": 0.95,
        "hypers.entropy_coef": 0.0,
        "learner.normalize_returns": True,
    },
    "cartpole": {"hypers.gamma": 0.99, "hypers.entropy_coef": 0.005},
}


def probe(name: str, options: EnvOptions) -> EnvSpec:
    """Return the spec of a toy. Raises EnvSetupError for an unknown name.

    Also raises EnvSetupError if `limit` (--env-option), the length of an episode, is not from 1 to MOST_STEPS.
    """
    if name not in SPECS:
        close = get_close_matches(name, SPECS, n=1)
        hint = f" Did you mean tensors/{close[0]}?" if close else ""
        raise EnvSetupError(f"tensors/{name} does not exist.{hint} Available: {', '.join(SPECS)}")
    limit = options.keywords.get("limit", SPECS[name].time_limit)
    if not isinstance(limit, int) or isinstance(limit, bool) or not 0 < limit <= MOST_STEPS:
        raise EnvSetupError(
            f"tensors/{name}: --env-option limit={limit} cannot be used. Use a whole number from 1 to {MOST_STEPS:,}"
        )
    return replace(SPECS[name], time_limit=limit)


def make_simulator(name: str, rows: int, seed: int, device: str, options: EnvOptions) -> Any:
    """Make a device simulator of R rows. Raises EnvSetupError for a wrong limit or an unsupported option.

    name: key of SPECS. device: name of a torch device, such as "cuda:0".
    """
    from .tensor_toys import CartPole, Pendulum  # noqa: PLC0415 - it imports torch

    made = {"pendulum": Pendulum, "cartpole": CartPole}[name]
    try:
        return made(probe(name, options), rows, device, seed, **options.keywords)
    except TypeError as error:
        raise EnvSetupError(f"tensors/{name}: {error}. Supported: limit=STEPS (--env-option)") from None


BACKEND = Backend(
    names=lambda: tuple(SPECS),
    probe=probe,
    make_vector_env=vector_envs_of(make_simulator),
    recipe=lambda name, _options: RECIPE | OWN.get(name, {}),
    make_simulator=make_simulator,
)
