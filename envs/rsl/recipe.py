"""RSL-RL's published values: `--recipe rsl-ppo`, and the defaults of the families that it is the trainer of.

PUBLISHED is `config/example_config.yaml` of https://github.com/leggedrobotics/rsl_rl (rsl-rl-lib 3 to 5), which are
also the defaults of its `PPO.__init__`, in our units: its value loss has no factor of 1/2, so that its weight of 1.0
is ours of 2.0, and its `clip_param` clips ratio and value. What differs: weights begin orthogonal; advantages are
normalised per minibatch, not per batch; the rate follows the divergence after a batch, not after each minibatch; the
gradients of policy and value are limited together, not each.
"""

from __future__ import annotations

from pbt_rl.registry import Recipe

from ..family import budget
from ..resident.kinds import RESIDENT_RECIPE

PUBLISHED: dict[str, object] = RESIDENT_RECIPE | {
    "model.encoder": "mlp",
    "model.critic": "separate",
    "model.hidden": 256,
    "model.layers": 3,
    "model.activation": "elu",
    "learner.rollout": 24,
    "learner.epochs": 5,
    "learner.minibatches": 4,
    "learner.lr_schedule": "kl-adaptive",
    "learner.lr_schedule_kl": 0.01,
    "learner.normalize_observations": False,
    "learner.normalize_returns": False,
    "hypers.unroll": 24,
    "hypers.learning_rate": 1e-3,
    "hypers.entropy_coef": 0.01,
    "hypers.value_coef": 2.0,
    "hypers.clip_ratio": 0.2,
    "hypers.clip_value": 0.2,
    "hypers.gamma": 0.99,
    "hypers.gae_lambda": 0.95,
    "hypers.max_grad_norm": 1.0,
}
ROBOTS: dict[str, object] = PUBLISHED | {
    "model.hidden": 128,
    "learner.lr_schedule": "constant",
    "learner.normalize_observations": True,
    "learner.normalize_returns": True,
    "hypers.entropy_coef": 0.005,
    "hypers.value_coef": 0.5,
    "hypers.clip_value": 1.0,
    **budget(100_000_000),
}
"""Defaults of a population on robots. PBT tunes the rate, which then follows no divergence, and weights of terms, which
change the size of returns: so those are normalised. Layers and entropy are mjlab's (`RslRlModelCfg` and
`RslRlPpoAlgorithmCfg` of 1.6)."""
RECIPES = {
    "rsl-ppo": Recipe(
        "RSL-RL's published PPO values, for simulators on the device; the learning rate follows the divergence.",
        PUBLISHED,
    )
}
