"""A third algorithm in one file: advantage-weighted regression (Peng et al. 2019), with a statistic of its own."""

from dataclasses import replace

from pbt_rl.algos.appo import APPO
from pbt_rl.algos.losses import (
    COMMON_STATISTICS,
    explained_variance,
    masked,
    mean,
    normalize_advantage,
)

MOST_WEIGHT = 20.0


def awr_loss(s, hypers, _settings):
    weight = normalize_advantage(s.advantage, s.valid).exp().clamp(max=MOST_WEIGHT)
    target, value = masked(s.target, s.valid), masked(s.value, s.valid)
    policy_loss = -mean(weight * masked(s.log_prob, s.valid), s.valid)
    value_loss = 0.5 * mean((value - target).square(), s.valid)
    entropy = mean(s.entropy, s.valid)
    stats = {
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": entropy,
        "explained_variance": explained_variance(value.detach(), target, s.valid),
        "regression_weight": mean(weight, s.valid),
    }
    return policy_loss + hypers["value_coef"] * value_loss - hypers["entropy_coef"] * entropy, stats


AWR = replace(
    APPO,
    loss=awr_loss,
    loss_hypers=("value_coef", "entropy_coef"),
    statistics=COMMON_STATISTICS | {"regression_weight": "mean weight of a sample in the regression"},
)
NOT_ONE = object()
