"""A3C: the n-step actor-critic of Mnih et al. 2016, in the batched form of GA3C (Babaeizadeh et al. 2017).

Each policy has one set of RMSProp statistics for the rollouts of all vector envs, as in the paper's *shared* RMSProp.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from .algorithm import Algorithm, Hypers, LossInputs, Present, UpdateSettings
from .batch import Samples
from .losses import COMMON_STATISTICS, Scalar, Stats, explained_variance, masked, mean
from .optim import RMSPROP
from .returns import Trajectories, gae


def a3c_loss(s: LossInputs, *, value_coef: Scalar, entropy_coef: Scalar) -> tuple[Tensor, Stats]:
    """Return advantage actor-critic loss and statistics, all 0-d float32 (Mnih et al. 2016, section 4).

        policy_loss = -mean(log_prob * A)
        value_loss = 0.5 * mean((value - target)^2)
        loss = policy_loss + value_coef * value_loss - entropy_coef * mean(entropy)

    The paper and GA3C sum over steps. This function uses means, because the best learning rate for a sum depends on the
    batch size. Coefficients are floats or 0-d tensors. Stats are detached; see `A3C.statistics`.
    """
    advantage, target = masked(s.advantage, s.valid), masked(s.target, s.valid)
    value = masked(s.value, s.valid)
    policy_loss = -mean(s.log_prob * advantage, s.valid)
    value_loss = 0.5 * mean((value - target).square(), s.valid)
    entropy = mean(s.entropy, s.valid)
    loss = policy_loss + value_coef * value_loss - entropy_coef * entropy
    stats = {
        "policy_loss": policy_loss.detach(),
        "value_loss": value_loss.detach(),
        "entropy": entropy.detach(),
        "explained_variance": explained_variance(value.detach(), target, s.valid),
    }
    return loss, stats


def n_step_targets(
    s: Samples, hypers: Hypers, present: Present, _settings: UpdateSettings
) -> tuple[Tensor, Tensor]:
    """Return (n-step returns in reward units, advantages divided by the return scale), [G, T, B] each.

    G: policies of a group. Both results use the value predictions of the current weights. The bootstrap value after
    the last step is `s.last_value`, which is not recomputed for each minibatch.
    """
    gamma = hypers["gamma"]
    value_T1 = torch.cat([present.value, s.last_value.unsqueeze(1)], dim=1)
    of = Trajectories(s.reward, value_T1, s.terminated, s.truncated, present.valid)
    advantage = gae(of, gamma, torch.ones_like(gamma), hypers["unroll"])
    return advantage + present.value, advantage / present.return_scale[:, None, None]


RATE_FACTOR = 3.0
"""Ratio of a3c's learning rate (RMSProp) to the recipe's learning rate (Adam, for appo). On CartPole 3e-3 is better
than 1e-3 (docs/lab/results/a3c.csv). On Breakout, after a million frames, 1.5e-3 is better than 7.5e-4
(docs/lab/games.md). A2C's reference implementation has 7e-4."""


def short_rollouts(env_recipe: Mapping[str, object]) -> Mapping[str, object]:
    """Return options for one update per rollout of t_max = 5 steps, as in the paper.

    With a recurrent core a rollout has 20 steps, because a core needs sequences of more than 5 steps. A learning rate
    in the recipe is multiplied by RATE_FACTOR.

    env_recipe, result: dotted option -> value, such as "learner.rollout".
    """
    steps = 5 if env_recipe.get("model.core", "none") == "none" else 20
    rate = env_recipe.get("hypers.learning_rate")
    return {
        **({"hypers.learning_rate": RATE_FACTOR * rate} if isinstance(rate, float) else {}),
        "learner.rollout": steps,
        "hypers.unroll": steps,
        "learner.minibatches": 1,
        "learner.epochs": 1,
    }


A3C = Algorithm(
    loss=lambda samples, hypers, _settings: a3c_loss(samples, **hypers),
    targets=n_step_targets,
    optimizer=RMSPROP,
    loss_hypers=("value_coef", "entropy_coef"),
    target_hypers=("gamma", "unroll"),
    statistics=COMMON_STATISTICS,
    recipe=short_rollouts,
    learns_per_vector_env=True,
)
