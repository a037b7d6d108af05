"""One update: every policy of a pack learns from one batch, as its algorithm prescribes.

`update` is a generator that pauses after every optimiser step, so that its caller may edit the population
between any two; it holds nothing that such an edit makes invalid but the `current_P` it was given.

Axes: P policies, G policies of one group, T steps, B rows of a policy, N = T * B samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from .algorithm import LossInputs, Present, UpdateSettings
from .batch import Batch, Samples
from .losses import Stats
from .observations import ObsLayout
from .pack import Pack
from .weights import Group

LR_FACTOR_RANGE = (0.01, 100.0)
KL_STEP = 1.5


@dataclass(frozen=True)
class StepStats:
    """Statistics of one optimiser step of these slots: name -> [G], on the device (nothing waits for it)."""

    slots: tuple[int, ...]
    values: dict[str, Tensor] = field(default_factory=dict)


def update(
    pack: Pack,
    batch: Batch,
    settings: UpdateSettings,
    *,
    generator: torch.Generator,
    learning_rate_factor: float | Tensor,
    current_P: Tensor,
) -> Iterator[StepStats]:
    """Learn from a batch, policy by policy or all at once as the pack does, pausing after each optimiser step.

    current_P: [P] bool on the device; False for a policy that must not learn from (the rest of) this batch. The
    caller may clear entries during a pause. learning_rate_factor: the schedule's factor, one for all or [P] on the
    device.
    """
    for group in pack.groups():
        span = group.span
        samples = _samples(pack, batch, span, settings)
        columns = samples.valid.shape[2]
        pack.observe_obs(span, samples.obs, samples.valid & current_P[span, None, None])
        divergences = []
        for _ in range(settings.epochs):
            for index in _minibatches(columns, settings.minibatches, generator):
                if len(group.slots) == 1 and not bool(current_P[span]):
                    break
                part = samples if index is None else samples.columns(index.to(pack.device))
                valid = part.valid & current_P[span, None, None]
                stats = _minibatch(pack, group, part, batch.layouts, settings, valid)
                stats["grad_norm"] = pack.step(group, learning_rate_factor, valid.any(2).any(1))
                stats["learning_rate_in_use"] = pack.learning_rates(group, learning_rate_factor)
                if settings.kl_target is not None:
                    divergences.append(stats["kl"])
                yield StepStats(group.slots, stats)
        if divergences:
            _adapt_learning_rate(pack, group, torch.stack(divergences).mean(0), settings, current_P[span])


@torch.no_grad()
def _samples(pack: Pack, batch: Batch, span: slice, settings: UpdateSettings) -> Samples:
    """Cut out a group's part of the batch, with the advantages that hold for all passes over it, if any do."""
    samples = Samples.of(batch, span)
    advantage = settings.algorithm.fixed_advantage(samples, pack.hypers_of(span), settings)
    if advantage is None:
        return samples
    samples = replace(samples, advantage=advantage)
    return samples.single_steps() if settings.minibatches > 1 and not pack.state_size else samples


def _minibatches(columns: int, parts: int, generator: torch.Generator) -> list[Tensor | None]:
    if parts == 1:
        return [None]
    return list(torch.randperm(columns, generator=generator).tensor_split(parts))


def _minibatch(
    pack: Pack,
    group: Group,
    s: Samples,
    layouts: Mapping[str, ObsLayout],
    settings: UpdateSettings,
    valid: Tensor,
) -> Stats:
    """Forward, loss and backward of the valid steps of a minibatch; leaves the gradients in the pack."""
    span, dist = group.span, settings.distribution
    # Outdated rows may begin with the state of weights that had diverged; 0 * NaN would reach the gradient.
    state = torch.where(valid.any(1).unsqueeze(-1), s.state, 0.0)
    obs = {name: layout.as_seen(s.obs[name]) for name, layout in layouts.items()}
    params, value, _ = group.forward(obs, state, s.first)
    log_prob, entropy = dist.log_prob(params, s.action), dist.entropy(params)
    target, advantage = _targets(pack, span, s, settings, valid, value.detach(), log_prob.detach())
    pack.observe_returns(span, target, valid)

    inputs = LossInputs(
        log_prob=log_prob,
        entropy=entropy,
        value=value,
        advantage=advantage,
        target=pack.normalize_value(target, span),
        old_log_prob=s.log_prob,
        old_value=pack.normalize_value(s.value, span),
        valid=valid,
    )
    algorithm, hypers = settings.algorithm, pack.hypers_of(span)
    read = {name: hypers[name] for name in algorithm.loss_hypers}

    def loss_of_one(inputs: LossInputs, hypers: dict[str, Tensor]) -> tuple[Tensor, Stats]:
        return algorithm.loss(LossInputs(*(x.flatten() for x in inputs)), hypers, settings)

    if len(group.slots) == 1:
        loss, stats = loss_of_one(LossInputs(*(x[0] for x in inputs)), {k: v[0] for k, v in read.items()})
        stats = {k: v.unsqueeze(0) for k, v in stats.items()}
    else:
        loss, stats = torch.func.vmap(loss_of_one)(inputs, read)
    loss.sum().backward()
    return stats


@torch.no_grad()
def _targets(
    pack: Pack,
    span: slice,
    s: Samples,
    settings: UpdateSettings,
    valid: Tensor,
    value: Tensor,
    log_prob: Tensor,
) -> tuple[Tensor, Tensor]:
    """Value targets (reward units) and advantages, [G, T, B]."""
    if s.advantage is not None:
        return s.value + s.advantage, s.advantage
    present = Present(log_prob, pack.denormalize_value(value, span), valid, pack.return_scale(span))
    return settings.algorithm.targets(s, pack.hypers_of(span), present, settings)


@torch.no_grad()
def _adapt_learning_rate(
    pack: Pack, group: Group, kl_G: Tensor, settings: UpdateSettings, current_G: Tensor
) -> None:
    """Divide the factor if the policy moved too far, multiply it if it hardly moved."""
    assert settings.kl_target is not None
    factor = pack.state["lr_factor"][group.span]
    change = torch.where(
        kl_G > 2 * settings.kl_target, 1 / KL_STEP, torch.where(kl_G < settings.kl_target / 2, KL_STEP, 1.0)
    )
    factor.copy_(torch.where(current_G, (factor * change).clamp(*LR_FACTOR_RANGE), factor))
