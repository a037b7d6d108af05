"""A third algorithm in one file: advantage-weighted regression (Peng et al. 2019), with a statistic of its own."""

from dataclasses import dataclass, replace

from pbt_rl.algos.appo import APPO
from pbt_rl.algos.hypers import hyper
from pbt_rl.algos.losses import COMMON_STATISTICS, explained_variance, masked, mean, normalize_advantage

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


@dataclass(frozen=True)
class TemperedHypers:
    temperature: float = hyper(2.0, bounds=(0.1, 10), legal=(1e-3, 1000), scale="log", tuned=True)
    """What advantages are divided by."""
    depth: int = hyper(3, bounds=(1, 9), legal=(1, 99), scale="integer")
    """A whole number that nothing reads."""


def tempered_loss(s, hypers, settings):
    shared = {name: value for name, value in hypers.items() if name != "temperature"}
    return awr_loss(s._replace(advantage=s.advantage / hypers["temperature"]), shared, settings)


TEMPERED = replace(
    AWR, loss=tempered_loss, hypers=TemperedHypers, loss_hypers=(*AWR.loss_hypers, "temperature")
)


@dataclass(frozen=True)
class GammaAgain:
    gamma: float = hyper(0.5, bounds=(0.1, 0.9), legal=(0, 1), scale="linear")


TWICE = replace(AWR, hypers=GammaAgain)
NOT_ONE = object()
