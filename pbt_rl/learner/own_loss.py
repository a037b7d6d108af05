"""Checks of custom networks and losses before training.

A loss is tested on synthetic samples in both ways in which updates call it: directly, and under torch.func.vmap.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pbt_rl.algos.algorithm import LossInputs, UpdateSettings
from pbt_rl.algos.lookup import ALGORITHMS
from pbt_rl.algos.models import PolicyNet
from pbt_rl.algos.own_parts import place_of
from pbt_rl.config import Config
from pbt_rl.controllers.hypers import hyper_table
from pbt_rl.envs.base import EnvSpec
from pbt_rl.errors import ConfigError
from pbt_rl.learner.build import (
    blank_inputs,
    build_net,
    compute_dtype,
    network_errors,
    one_thread,
    update_settings,
)


@one_thread()
def check_network(config: Config, spec: EnvSpec, devices: Sequence[str]) -> None:
    """Build a network, and check custom modules and a custom loss. Raises ConfigError.

    devices: devices of the run. The modules are checked in the compute dtypes of these devices.
    """
    net = build_net(spec, config.model, config.algorithm)
    if ":" in config.algo or ALGORITHMS.is_external(config.algo):
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
        for parameter in net.body.parameters():  # only parameters, as in a pack
            parameter.data = parameter.data.to(dtype)
        with torch.no_grad(), network_errors():
            net(*inputs)


def _check_parts(net: PolicyNet, again: PolicyNet) -> None:
    """Check that a network can be copied, and that its buffers are not random. Raises ConfigError.

    again: second network that was built with the options of `net`.
    """
    try:
        copy.deepcopy(net)
    except Exception as error:  # custom modules may raise any exception
        raise ConfigError(
            f"--model: the network cannot be copied ({error}). Remove objects that copy.deepcopy cannot copy, such as "
            "locks, open files and writers, from its modules"
        ) from error
    others = dict(again.named_buffers())
    if drawn := [name for name, buffer in net.named_buffers() if not torch.equal(buffer, others[name])]:
        raise ConfigError(
            f"--model: buffers that differ between two constructions of the network: {', '.join(drawn)}. Policies "
            "share buffers, and checkpoints do not contain buffers. Draw them with torch.Generator().manual_seed(0), "
            "or make them parameters (with requires_grad=False if they are not learned)"
        )


POLICIES, SAMPLES = 2, 16
INVALID = 4
"""Number of invalid samples. Invalid samples contain NaN, as unwritten memory does."""


def check_loss(settings: UpdateSettings, values: Mapping[str, float]) -> None:
    """Run the forward and the backward pass of an algorithm's loss. Raises ValueError with a one-line message.

    An algorithm with a custom `backward` is not checked, because its loss needs a network.

    values: values of all hyperparameters, by name.
    """
    algorithm = settings.algorithm
    if algorithm.backward is not None:
        return
    if unknown := [name for name in algorithm.loss_hypers if name not in values]:
        raise ValueError(
            f"unknown hyperparameters in loss_hypers: {', '.join(unknown)}. Declare them in a dataclass and pass the "
            f"dataclass as Algorithm(hypers=...). Known hyperparameters: {', '.join(values)}"
        )
    hypers = {name: torch.full((POLICIES,), float(values[name])) for name in algorithm.loss_hypers}

    def of_one(inputs: LossInputs, hypers: dict[str, Tensor]) -> Any:
        return algorithm.loss(inputs, hypers, settings)

    who = f"loss {getattr(algorithm.loss, '__name__', 'of the algorithm')!r}"
    for packed in (False, True):
        inputs = _made_up()
        try:
            if packed:
                answer = torch.func.vmap(of_one)(inputs, hypers)
            else:
                answer = of_one(LossInputs(*(x[0] for x in inputs)), {k: v[0] for k, v in hypers.items()})
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            text = (str(error).splitlines() or ["no message"])[0].partition(" We don't support")[0]
            how = " under torch.func.vmap (no .item(), no `if` on a value)" if packed else ""
            raise ValueError(f"{who} raised {type(error).__name__}{place_of(error)}{how}: {text}") from error
        _check_answer(who, answer, settings, (POLICIES,) if packed else ())
        _check_gradients(who, answer[0], inputs)


def _made_up() -> LossInputs:
    """Return random samples of two policies, [2, N]. The last INVALID samples are invalid."""
    drawn = torch.Generator().manual_seed(0)
    valid = torch.ones((POLICIES, SAMPLES), dtype=torch.bool)
    valid[:, -INVALID:] = False

    def numbers() -> Tensor:
        return torch.where(valid, torch.rand(valid.shape, generator=drawn) + 0.1, torch.nan)

    learned = {name: numbers().requires_grad_() for name in ("log_prob", "entropy", "value")}
    others = ("advantage", "target", "old_log_prob", "old_value", "acting_log_prob")
    return LossInputs(valid=valid, **learned, **{name: numbers() for name in others})


def _check_answer(who: str, answer: Any, settings: UpdateSettings, shape: tuple[int, ...]) -> None:
    if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], dict)):
        raise ValueError(
            f"{who} returned {type(answer).__name__}: it must return (loss, statistics), a tensor and a dict of tensors"
        )
    loss, statistics = answer
    named = {"the loss": loss} | {f"the statistic {name!r}": value for name, value in statistics.items()}
    for name, value in named.items():
        found = f"is a {type(value).__name__}"
        if isinstance(value, Tensor):
            found = "" if value.shape == shape else f"has the shape {list(value.shape[len(shape) :])}"
        if found:
            raise ValueError(f"{who}: {name} {found}; it must be a scalar tensor, such as a mean")
    explained = settings.algorithm.statistics
    if statistics.keys() != explained.keys() and settings.algorithm.auxiliary is None:
        raise ValueError(
            f"{who} returns the statistics {', '.join(statistics)}, but Algorithm(statistics=...) describes "
            f"{', '.join(explained)}: describe exactly the returned statistics"
        )


def _check_gradients(who: str, loss: Tensor, inputs: LossInputs) -> None:
    """Run the backward pass. Raises ValueError if the loss has no gradient or depends on an invalid sample."""
    if not loss.requires_grad:
        raise ValueError(f"{who}: the loss has no gradient. It must depend on log_prob, entropy or value")
    loss.sum().backward()
    gradients = [x.grad for x in (inputs.log_prob, inputs.entropy, inputs.value) if x.grad is not None]
    if not all(bool(x.isfinite().all()) for x in (loss, *gradients)):
        raise ValueError(
            f"{who}: invalid samples (they contain NaN) change the loss or its gradient. Apply "
            "pbt_rl.algos.losses.masked(x, s.valid) before other operations on x, and use mean(x, s.valid)"
        )
