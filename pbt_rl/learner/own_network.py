"""What networks and losses of a user's own are checked for before anything starts."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch

from pbt_rl.algos.models import PolicyNet
from pbt_rl.config import Config
from pbt_rl.controllers.hypers import hyper_table
from pbt_rl.envs.base import EnvSpec
from pbt_rl.errors import ConfigError
from pbt_rl.learner.build import blank_inputs, build_net, compute_dtype, network_errors, update_settings
from pbt_rl.learner.own_loss import check_loss


def check(config: Config, spec: EnvSpec, devices: Sequence[str], net: PolicyNet) -> None:
    """Try a network with parts of the user's own in the dtypes of its devices, and a loss of their own.

    Raises ConfigError.
    """
    if ":" in config.algo:
        values = {name: hyper.default for name, hyper in hyper_table(config.hypers).items()}
        try:
            check_loss(update_settings(config, spec), values)
        except ValueError as error:
            raise ConfigError(f"--algo {config.algo}: {error}") from error
    if not config.model.own_parts:
        return
    _check_parts(net, build_net(spec, config.model, config.algorithm))
    inputs = blank_inputs(spec, net.state_size, 3)
    here = [torch.device(name) for name in devices if name == "cpu" or torch.cuda.is_available()]
    for dtype in {compute_dtype(config.learner.precision, device, spec) for device in here}:
        for parameter in net.body.parameters():  # as in a pack, which leaves buffers alone
            parameter.data = parameter.data.to(dtype)
        with torch.no_grad(), network_errors():
            net(*inputs)


def _check_parts(net: PolicyNet, again: PolicyNet) -> None:
    """Compare two networks of the same options. Raises ConfigError for parts that a pack cannot hold."""
    try:
        copy.deepcopy(net)
    except Exception as error:  # whatever the user's part holds may raise anything
        raise ConfigError(
            f"--model: the network cannot be copied ({error}): its parts must hold nothing that copy.deepcopy refuses, "
            "such as locks, open files and writers"
        ) from error
    others = dict(again.named_buffers())
    drawn = [name for name, buffer in net.named_buffers() if not torch.equal(buffer, others[name])]
    if drawn:
        raise ConfigError(
            f"--model: buffers that differ each time that the network is made: {', '.join(drawn)}. Policies share "
            "them, and no checkpoint holds them: draw them by torch.Generator().manual_seed(0), or make them "
            "parameters (with requires_grad=False if they are not learned)"
        )
