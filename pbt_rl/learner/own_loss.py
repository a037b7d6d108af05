"""Checks of custom networks and losses before training.

Updates call a loss in two ways: directly, and under torch.func.vmap. The loss is tested in both ways, on synthetic
samples. The functions for targets and advantages are tested on synthetic samples of two policies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pbt_rl.algos.algorithm import LossInputs, Present, UpdateSettings
from pbt_rl.algos.batch import Samples
from pbt_rl.algos.lookup import ALGORITHMS
from pbt_rl.algos.models import PolicyNet
from pbt_rl.algos.own_parts import (
    check_again,
    check_backward,
    constant_inputs,
    copied,
    described,
    failed,
    same,
)
from pbt_rl.algos.rollout import FIELDS, Span
from pbt_rl.config import Config
from pbt_rl.controllers.hypers import hyper_table
from pbt_rl.envs.base import EnvSpec
from pbt_rl.errors import ConfigError
from pbt_rl.learner.build import (
    blank_inputs,
    build_net,
    compute_dtype,
    network_errors,
    obs_layouts,
    one_thread,
    update_settings,
)


@one_thread()
def check_network(config: Config, spec: EnvSpec, devices: Sequence[str]) -> tuple[str, ...]:
    """Build a network, and check custom modules and a custom loss. Return warnings.

    Raises ConfigError if the network cannot be built or a check fails.

    devices: devices of the run. The modules are checked in the compute dtypes of these devices.
    """
    net = build_net(spec, config.model, config.algorithm)
    if ":" in config.algo or ALGORITHMS.is_external(config.algo):
        values = {name: hyper.default for name, hyper in hyper_table(config.hypers).items()}
        try:
            settings = update_settings(config, spec)
            check_loss(settings, values)
            check_targets(settings, values, example_samples(spec, net.state_size, config.learner.rollout))
        except ValueError as error:
            raise ConfigError(f"--algo {config.algo}: {error}") from error
    if not config.model.own_parts:
        return ()
    warnings = _check_parts(net, build_net(spec, config.model, config.algorithm))
    inputs = blank_inputs(spec, net.state_size, 3)
    with torch.enable_grad(), network_errors(), constant_inputs("the network", inputs[0]):
        check_backward("the network", net(*inputs))
    net.zero_grad()
    here = [torch.device(name) for name in devices if name == "cpu" or torch.cuda.is_available()]
    for dtype in {compute_dtype(config.learner.precision, device, spec) for device in here}:
        for parameter in net.body.parameters():  # only parameters, as in a pack
            parameter.data = parameter.data.to(dtype)
        with torch.no_grad(), network_errors():
            net(*inputs)
    return warnings


def _check_parts(net: PolicyNet, again: PolicyNet) -> tuple[str, ...]:
    """Check that a network can be copied, and that its results depend only on weights and inputs. Return warnings.

    Raises ConfigError if one of these checks fails. again: second network that was built with the options of `net`.
    """
    with network_errors():
        copied("the network", net)
    others = dict(again.named_buffers())
    if drawn := [name for name, buffer in net.named_buffers() if not same(buffer, others[name])]:
        raise ConfigError(
            f"--model: buffers that differ between two constructions of the network: {', '.join(drawn)}. Policies "
            "share buffers, and checkpoints do not contain buffers. Draw them with torch.Generator().manual_seed(0), "
            "or make them parameters (with requires_grad=False if they are not learned)"
        )
    with network_errors():
        return tuple(check_again(net, again))


POLICIES, SAMPLES = 2, 16
INVALID = 4
"""Number of invalid samples. Invalid samples contain NaN, as unwritten memory does."""


def check_loss(settings: UpdateSettings, values: Mapping[str, float]) -> None:
    """Run the forward and the backward pass of an algorithm's loss.

    Raises ValueError with a one-line message if a pass fails, or if a result or gradient is wrong. An algorithm with a
    custom `backward` is not checked, because its loss needs a network.

    values: values of all hyperparameters, by name.
    """
    algorithm = settings.algorithm
    if algorithm.backward is not None:
        return
    for field in ("loss_hypers", "target_hypers"):
        if unknown := [name for name in getattr(algorithm, field) if name not in values]:
            raise ValueError(
                f"unknown hyperparameters in {field}: {', '.join(unknown)}. Declare them in a dataclass and pass the "
                f"dataclass as Algorithm(hypers=...). Known hyperparameters: {', '.join(values)}"
            )
    hypers = {name: torch.full((POLICIES,), float(values[name])) for name in algorithm.loss_hypers}

    def of_one(inputs: LossInputs, hypers: dict[str, Tensor]) -> Any:
        return algorithm.loss(inputs, hypers, settings)

    who = _named("loss", algorithm.loss)
    for packed, samples in ((False, SAMPLES), (False, SAMPLES + 8), (True, SAMPLES)):
        inputs = _made_up(samples)
        if packed:
            how = " under torch.func.vmap (no .item(), no `if` on a value)"
            answer = _tried(who, how, torch.func.vmap(of_one), inputs, hypers)
        else:
            one = LossInputs(*(x[0] for x in inputs)), {name: value[0] for name, value in hypers.items()}
            answer = _tried(who, f" for {samples} samples", of_one, *one)
        _check_answer(who, answer, settings, (POLICIES,) if packed else ())
        _check_gradients(who, answer[0], inputs)


def _named(field: str, function: Any) -> str:
    return f"{field} {getattr(function, '__name__', 'of the algorithm')!r}"


def _made_up(samples: int) -> LossInputs:
    """Return random inputs of a loss: [2 policies, samples] each. The last INVALID samples are invalid."""
    drawn = torch.Generator().manual_seed(0)
    valid = torch.ones((POLICIES, samples), dtype=torch.bool)
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
    """Run the backward pass, and check that loss and gradients are finite.

    They are not finite if they depend on an invalid sample, because invalid samples contain NaN.

    Raises ValueError if the backward pass fails, if the loss has no gradient, or if a number is not finite.
    """
    if not loss.requires_grad:
        raise ValueError(f"{who}: the loss has no gradient. It must depend on log_prob, entropy or value")
    try:
        loss.sum().backward()
    except Exception as error:  # user code may raise any exception
        raise ValueError(failed(who, error, " in the backward pass")) from error
    gradients = [x.grad for x in (inputs.log_prob, inputs.entropy, inputs.value) if x.grad is not None]
    if not all(bool(x.isfinite().all()) for x in (loss, *gradients)):
        raise ValueError(
            f"{who}: invalid samples (they contain NaN) change the loss or its gradient. Apply "
            "pbt_rl.algos.losses.masked(x, s.valid) before other operations on x, and use mean(x, s.valid)"
        )


ROWS = 5


def example_samples(spec: EnvSpec, state_size: int, steps: int) -> Samples:
    """Return example samples of two policies, with fields of shape [2, steps, ROWS, ...].

    In row 0, the first step ends an episode, and the last step is invalid. Float fields are random. Observations,
    actions, `truncated` and `first` are 0.
    """
    drawn = torch.Generator().manual_seed(0)
    sizes = {"action": spec.action.components, "state": state_size}
    dtypes = {"bool": torch.bool, "float32": torch.float32, "action": getattr(torch, spec.action.dtype)}
    fields: dict[str, Any] = {}
    for name, field in FIELDS.items():
        length = () if field.span is Span.START else (steps,)
        size = (POLICIES, *length, ROWS, *((sizes[field.width],) if field.width else ()))
        zeros = torch.zeros(size, dtype=dtypes[field.dtype])
        fields[name] = torch.rand(size, generator=drawn) + 0.1 if field.dtype == "float32" else zeros
    valid = torch.ones((POLICIES, steps, ROWS), dtype=torch.bool)
    fields["log_prob"] = -fields["log_prob"]
    fields["terminated"][:, 0, 0], valid[:, -1, 0] = True, False
    stored = {name: layout.stored for name, layout in obs_layouts(spec).items()}
    obs = {
        name: torch.zeros((POLICIES, steps, ROWS, *row), dtype=dtype) for name, (dtype, row) in stored.items()
    }
    return Samples(obs=obs, valid=valid, last_value=torch.rand((POLICIES, ROWS), generator=drawn), **fields)


@torch.no_grad()
def check_targets(settings: UpdateSettings, values: Mapping[str, float], samples: Samples) -> None:
    """Compute an algorithm's advantages or targets on example samples, as updates do.

    Raises ValueError with a one-line message if the computation fails, or if a result has a wrong shape or is not
    finite. An algorithm with a custom `backward` is not checked.

    values: values of all hyperparameters, by name.
    """
    algorithm = settings.algorithm
    if algorithm.backward is not None:
        return
    read = algorithm.reads(use_vtrace=settings.use_vtrace)
    if "gamma" not in read:
        raise ValueError("target_hypers lacks gamma, which every algorithm needs: add 'gamma'")
    hypers = {name: torch.full((POLICIES,), float(value)) for name, value in values.items() if name in read}
    if algorithm.fixed_advantage is not None:
        who = _named("fixed_advantage", algorithm.fixed_advantage)
        advantage = _tried(who, "", algorithm.fixed_advantage, samples, hypers, settings)
        if advantage is not None:
            _check_steps(who, advantage, samples.valid)
            return
    who = _named("targets", algorithm.targets)
    present = Present(samples.log_prob, samples.value, samples.valid, torch.ones(POLICIES))
    answer = _tried(who, "", algorithm.targets, samples, hypers, present, settings)
    if not (isinstance(answer, tuple | list) and len(answer) == 2):
        raise ValueError(f"{who} returned {described(answer)}: it must return (targets, advantages)")
    for one in answer:
        _check_steps(who, one, samples.valid)


def _tried(who: str, how: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of the user. Convert its exceptions to ValueError with a one-line message.

    how: circumstances of the call, for the message.
    """
    try:
        return function(*arguments)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        hint = (
            ". Are all hyperparameters in loss_hypers or target_hypers?"
            if isinstance(error, KeyError)
            else ""
        )
        raise ValueError(f"{failed(who, error, how).partition(' We don')[0]}{hint}") from error


def _check_steps(who: str, answer: Any, valid: Tensor) -> None:
    if not (isinstance(answer, Tensor) and answer.shape == valid.shape):
        raise ValueError(
            f"{who} returned {described(answer)} for {list(valid.shape)} samples (policies, steps, rows): return a "
            "tensor of this shape"
        )
    if not answer[valid].isfinite().all():
        raise ValueError(f"{who} returns NaN or infinite numbers for example samples")
