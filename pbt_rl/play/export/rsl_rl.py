"""Export of a trained member for RSL-RL's runner: weights as a checkpoint, options and schedule of values as JSON.

The checkpoint has the keys of rsl-rl-lib 4 and 5 (`actor_state_dict`, ...) and, with a critic, of rsl-rl-lib 3
(`model_state_dict`).
The last layer of the policy includes the scale of actions, and the last layer of the critic includes the scale of
returns. An asymmetric critic is left out, because RSL-RL has one MLP over all inputs, and pbt_rl has one encoder per
input.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pbt_rl.actors.state_pool import SnapshotHeader
from pbt_rl.algos.distributions import DiagonalGaussian
from pbt_rl.algos.encoders import Mlp, ObsEncoder
from pbt_rl.algos.models import FREE_LOG_STD_RANGE, Body, TwinBody
from pbt_rl.algos.normalizers import return_scale
from pbt_rl.config import Config
from pbt_rl.controllers.hypers import SHAPING, Values
from pbt_rl.controllers.lineage import Node
from pbt_rl.errors import ConfigError
from pbt_rl.play.export.net import ExportedPolicy
from pbt_rl.version import __version__

NORMALIZER_EPS = 0.01
"""Number that RSL-RL's `EmpiricalNormalization` adds to the std. (pbt_rl adds 1e-6 to the variance instead.)"""
GROUP = "policy"
"""Name of the observation group in the runner's options, as in the examples of Isaac Lab and RSL-RL."""
Layers = list[tuple[Tensor, Tensor]]
"""(weight [outputs, inputs], bias [outputs]) of each layer."""


def write_rsl_rl(
    policy: ExportedPolicy, path: Path, config: Config, header: SnapshotHeader, line: Sequence[Node]
) -> list[Path]:
    """Write the checkpoint (`path`), and options with schedule (.json). Return both paths.

    header: header of the saved member. line: lineage of its weights, oldest node first. Empty if unknown.
    Raises ConfigError for a network that RSL-RL does not support.
    """
    actor, critic = _actor(policy, path), _critic(policy)
    torch.save(_checkpoint(policy, actor, critic, header), path)
    options = path.with_suffix(".json")
    scale = float(return_scale(policy.statistics(), slice(0, 1))[0])
    found = {
        "runner": _runner(
            policy,
            config,
            header.values,
            actor[0],
            line[0].member if line else header.member,
            critic is not None,
            scale,
        ),
        "schedule": [_row(node.trained, node.values, scale) for node in line],
        "end": {"steps": header.frames},
    }
    options.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return [path, options]


def _actor(policy: ExportedPolicy, path: Path) -> tuple[Layers, Tensor]:
    """Return the layers from observation to action, and the log std of actions.

    Raises ConfigError for a network that RSL-RL does not support. path: used in the error message.
    """
    body, heads, distribution = policy.net.acting_body, policy.net.heads, policy.distribution
    layers = _layers(body, heads.policy)
    against = {
        "its actions are not all continuous, or squashed by a tanh": not isinstance(
            distribution, DiagonalGaussian
        ),
        "the std of its actions depends on the state": heads.log_std is None,
        "it is recurrent": policy.recurrent,
        "it is not one MLP over one observation of numbers": layers is None,
    }
    for why, so in against.items():
        if so:
            raise ConfigError(
                f"{path} cannot be written: RSL-RL's MLPModel does not support this network: {why}"
            )
    assert isinstance(distribution, DiagonalGaussian)
    assert layers is not None
    assert heads.log_std is not None
    log_std = heads.log_std.detach().clamp(*FREE_LOG_STD_RANGE)
    if distribution.centre:
        centre, half = torch.tensor(distribution.centre), torch.tensor(distribution.half)
        weight, bias = layers[-1]
        layers[-1] = (weight * half[:, None], bias * half + centre)
        log_std = log_std + half.log()
    return layers, log_std


def _critic(policy: ExportedPolicy) -> Layers | None:
    """Return the layers from observation to value. None if RSL-RL does not support the critic."""
    body = policy.net.body.critic if isinstance(policy.net.body, TwinBody) else policy.net.body
    layers = None if policy.acts_only else _layers(body, policy.net.heads.value)
    if layers is not None:
        scale = return_scale(policy.statistics(), slice(0, 1))
        layers[-1] = (layers[-1][0] * scale, layers[-1][1] * scale)
    return layers


def _layers(body: Body, head: nn.Module) -> Layers | None:
    """Return the layers of a network that is one MLP over one observation. None for any other network."""
    encoder = body.encoder
    if (
        body.core is not None
        or not isinstance(encoder, ObsEncoder)
        or len(encoder.parts) != 1
        or encoder.last
    ):
        return None
    (part,) = encoder.parts
    if encoder.mix is not None or not isinstance(part, Mlp) or not isinstance(head, nn.Linear):
        return None
    linear = [layer for layer in (*part.layers, head) if isinstance(layer, nn.Linear)]
    return [(layer.weight.detach(), layer.bias.detach()) for layer in linear]


def _checkpoint(
    policy: ExportedPolicy, actor: tuple[Layers, Tensor], critic: Layers | None, header: SnapshotHeader
) -> dict[str, Any]:
    normalizer = _normalizer(policy)
    mlp, log_std = _named("mlp.", actor[0]), actor[1]
    checkpoint: dict[str, Any] = {
        "actor_state_dict": normalizer | mlp | {"distribution.log_std_param": log_std},
        "iter": header.updates,
        "infos": {"pbt_rl": __version__, "member": header.member, "frames": header.frames},
    }
    if critic is None:
        return checkpoint
    checkpoint["critic_state_dict"] = normalizer | _named("mlp.", critic)
    of_both = {f"{who}_{name}": x for who in ("actor", "critic") for name, x in normalizer.items()}
    checkpoint["model_state_dict"] = (
        {"log_std": log_std} | _named("actor.", actor[0]) | _named("critic.", critic) | of_both
    )
    count = 1 + 2 * (len(actor[0]) + len(critic))
    adam = torch.optim.Adam([torch.zeros(1) for _ in range(count)], lr=header.values["learning_rate"])
    checkpoint["optimizer_state_dict"] = adam.state_dict()
    return checkpoint


def _named(prefix: str, layers: Layers) -> dict[str, Tensor]:
    """Return name -> tensor with the names of RSL-RL's `MLP`, in which layers and activations alternate."""
    named = {}
    for number, (weight, bias) in enumerate(layers):
        named[f"{prefix}{2 * number}.weight"] = weight.contiguous().clone()
        named[f"{prefix}{2 * number}.bias"] = bias.contiguous().clone()
    return named


def _normalizer(policy: ExportedPolicy) -> dict[str, Tensor]:
    """Return the state of RSL-RL's `EmpiricalNormalization`, (x - mean) / (std + eps). Empty without normalisation."""
    if not policy.normalises:
        return {}
    (name,) = (port.obs for port in policy.inputs)
    statistics = policy.statistics()
    variance = statistics[f"obs_var.{name}"]
    return {
        "obs_normalizer._mean": statistics[f"obs_mean.{name}"].clone(),
        "obs_normalizer._var": variance.clone(),
        "obs_normalizer._std": (variance + 1e-6).sqrt() - NORMALIZER_EPS,
        "obs_normalizer.count": statistics[f"obs_count.{name}"][0].long(),
    }


def _runner(
    policy: ExportedPolicy,
    config: Config,
    values: Values,
    layers: Layers,
    founder: int,
    critic: bool,
    scale: float,
) -> dict[str, Any]:
    """Return the options of RSL-RL's `OnPolicyRunner`.

    values: hyperparameters of the member. layers: layers of the actor. critic: True if the checkpoint has a critic.
    founder: member from whose initial weights the exported weights descend. scale: scale of returns.
    """
    learner = config.learner
    assert isinstance(policy.distribution, DiagonalGaussian)
    half = policy.distribution.half or (1.0,)  # RSL-RL has one std for all actions, unscaled
    mlp = {
        "class_name": "MLPModel",
        "hidden_dims": [len(weight) for weight, _ in layers[:-1]],
        "activation": config.model.activation,
        "obs_normalization": policy.normalises,
    }
    gaussian = {
        "class_name": "GaussianDistribution",
        "init_std": config.initial_std(founder) * sum(half) / len(half),
        "std_type": "log",
    }
    return {
        "class_name": "OnPolicyRunner",
        "num_steps_per_env": learner.rollout,
        "save_interval": 50,
        "obs_groups": {"actor": [GROUP], "critic": [GROUP] if critic else [GROUP, "critic"]},
        "actor": {**mlp, "distribution_cfg": gaussian},
        "critic": mlp,
        "algorithm": {
            "class_name": "PPO",
            "num_learning_epochs": learner.epochs,
            "num_mini_batches": learner.minibatches,
            "schedule": "adaptive" if learner.lr_schedule == "kl-adaptive" else "fixed",
            "desired_kl": learner.lr_schedule_kl,
            "use_clipped_value_loss": False,  # RSL-RL would clip values by the clip ratio
            "normalize_advantage_per_mini_batch": learner.normalize_advantage,
            "rnd_cfg": None,
            "symmetry_cfg": None,
            **_algorithm(values, scale),
        },
    }


def _algorithm(values: Values, scale: float) -> dict[str, float]:
    """Return hyperparameters with the names of RSL-RL's `PPO`. scale: scale of returns in the value loss of pbt_rl."""
    return {
        "learning_rate": values["learning_rate"],
        "clip_param": values["clip_ratio"],
        "entropy_coef": values["entropy_coef"],
        "value_loss_coef": values["value_coef"] / 2 / scale**2,
        "gamma": values["gamma"],
        "lam": values["gae_lambda"],
        "max_grad_norm": values["max_grad_norm"],
    }


def _row(steps: int, values: Values, scale: float) -> Mapping[str, Any]:
    weights = {k.removeprefix(SHAPING): v for k, v in values.items() if k.startswith(SHAPING)}
    return {"steps": steps, "algorithm": _algorithm(values, scale), "reward_weights": weights}
