"""One update: every policy of a pack learns from one batch, by APPO or A3C.

APPO is PPO on rollouts of slightly older weights: clipped ratio and value (Schulman et al. 2017), advantages by
GAE or corrected by V-trace (Espeholt et al. 2018), as Sample Factory combines them (Petrenko et al. 2020).
A3C is the n-step actor-critic of Mnih et al. 2016 in the batched form of GA3C (Babaeizadeh et al. 2017).

`update` is a generator that pauses after every optimiser step, so that its caller may edit the population
between any two; it holds nothing that such an edit makes invalid but the `current_P` it was given.

Axes: P policies, G policies of one group, T steps, B rows of a policy, N = T * B samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from .distributions import Distribution
from .losses import Stats, a3c_loss, normalize_advantage, ppo_loss
from .pack import Group, Pack
from .returns import gae, vtrace
from .rollout import Batch, ObsLayout

LR_FACTOR_RANGE = (0.01, 100.0)
KL_STEP = 1.5


@dataclass(frozen=True)
class UpdateSettings:
    """What is the same for all policies of a run."""

    algo: Literal["appo", "a3c"]
    epochs: int
    minibatches: int
    use_vtrace: bool
    normalize_advantage: bool
    kl_target: float | None
    """Adapt `state["lr_factor"]` to this divergence after each batch; None: leave it."""
    distribution: Distribution


@dataclass(frozen=True)
class StepStats:
    """Statistics of one optimiser step: name -> [G], on the device (nothing waits for it)."""

    members: tuple[int, ...]
    values: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class _Samples:
    """One group's part of a batch, or a minibatch of it: [G, T, B, ...]; observations as they are stored."""

    obs: dict[str, Tensor]
    action: Tensor
    log_prob: Tensor
    value: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    first: Tensor
    valid: Tensor
    state: Tensor
    """[G, B, S] before the first step."""
    last_value: Tensor
    """[G, B] of the observation after the last step."""
    gae: Tensor | None = None
    """[G, T, B] advantages, where they do not wait for the present policy."""

    @classmethod
    def of(cls, batch: Batch, rows: slice) -> _Samples:
        return cls(
            obs=batch.obs(rows),
            action=batch.action_PTBA[rows],
            log_prob=batch.log_prob_PTB[rows],
            value=batch.value_PT1B[rows, :-1],
            reward=batch.reward_PTB[rows],
            terminated=batch.terminated_PTB[rows],
            truncated=batch.truncated_PTB[rows],
            first=batch.first_PT1B[rows, :-1],
            valid=batch.valid_PTB[rows],
            state=batch.state_PBS[rows],
            last_value=batch.value_PT1B[rows, -1],
        )

    def columns(self, index: Tensor) -> _Samples:
        """Only these rows of every policy."""
        return self._each(lambda x: x.index_select(2, index), lambda x: x.index_select(1, index))

    def single_steps(self) -> _Samples:
        """Every step a rollout of its own: [G, 1, T * B]. For policies without memory, once returns are known."""
        steps = self.valid.shape[1]
        return self._each(
            lambda x: x.flatten(1, 2).unsqueeze(1), lambda x: x.repeat(1, steps, *(1,) * (x.dim() - 2))
        )

    def _each(self, of_steps: Callable[[Tensor], Tensor], of_rows: Callable[[Tensor], Tensor]) -> _Samples:
        by_row = {"state": of_rows(self.state), "last_value": of_rows(self.last_value)}
        by_step = {k: of_steps(v) for k, v in vars(self).items() if isinstance(v, Tensor) and k not in by_row}
        return _Samples(obs={k: of_steps(v) for k, v in self.obs.items()}, **by_step, **by_row)


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
    caller may clear entries while this is paused. learning_rate_factor: the schedule's factor, one for all
    or [P] on the device.
    """
    for group in pack.groups():
        rows = group.rows
        samples = _Samples.of(batch, rows)
        if settings.algo == "appo" and not settings.use_vtrace:
            samples = replace(samples, gae=_gae(pack, rows, samples))
            if settings.minibatches > 1 and not pack.state_size:
                samples = samples.single_steps()
        columns = samples.valid.shape[2]
        pack.observe_obs(rows, samples.obs, samples.valid & current_P[rows, None, None])
        divergences = []
        for _ in range(settings.epochs):
            for index in _minibatches(columns, settings.minibatches, generator):
                if len(group.members) == 1 and not bool(current_P[rows]):
                    break
                part = samples if index is None else samples.columns(index.to(pack.device))
                valid = part.valid & current_P[rows, None, None]
                stats = _minibatch(pack, group, part, batch.layouts, settings, valid)
                stats["grad_norm"] = pack.step(group, learning_rate_factor, valid.any(2).any(1))
                stats["learning_rate_in_use"] = pack.learning_rates(group, learning_rate_factor)
                if settings.kl_target is not None:
                    divergences.append(stats["kl"])
                yield StepStats(group.members, stats)
        if divergences:
            _adapt_learning_rate(pack, group, torch.stack(divergences).mean(0), settings, current_P[rows])


def _minibatches(columns: int, parts: int, generator: torch.Generator) -> list[Tensor | None]:
    if parts == 1:
        return [None]
    return list(torch.randperm(columns, generator=generator).tensor_split(parts))


def _minibatch(
    pack: Pack,
    group: Group,
    s: _Samples,
    layouts: Mapping[str, ObsLayout],
    settings: UpdateSettings,
    valid: Tensor,
) -> dict[str, Tensor]:
    """Forward, loss and backward of the valid steps of a minibatch; leaves the gradients in the pack."""
    rows, dist = group.rows, settings.distribution
    # Outdated rows may begin with the state of weights that had diverged; 0 * NaN would reach the gradient.
    state = torch.where(valid.any(1).unsqueeze(-1), s.state, 0.0)
    obs = {name: layout.as_seen(s.obs[name]) for name, layout in layouts.items()}
    params, value, _ = group.forward(obs, state, s.first)
    log_prob, entropy = dist.log_prob(params, s.action), dist.entropy(params)
    target, advantage = _targets(pack, rows, s, settings, valid, value.detach(), log_prob.detach())
    pack.observe_returns(rows, target, valid)

    samples = {
        "log_prob_N": log_prob,
        "value_N": value,
        "entropy_N": entropy,
        "advantage_N": advantage,
        "target_N": pack.normalize_value(target, rows),
        "valid_N": valid,
    }
    coefficients = ["value_coef", "entropy_coef"]
    if settings.algo == "appo":
        samples["old_log_prob_N"] = s.log_prob
        samples["old_value_N"] = pack.normalize_value(s.value, rows)
        coefficients += ["clip_ratio", "clip_value"]
    hypers = {name: pack.hypers[name][rows] for name in coefficients}

    def loss_of_one(samples: dict[str, Tensor], hypers: dict[str, Tensor]) -> tuple[Tensor, Stats]:
        flat: dict[str, Any] = {k: v.flatten() for k, v in samples.items()}
        if settings.algo == "a3c":
            return a3c_loss(**flat, **hypers)
        if settings.normalize_advantage:
            flat["advantage_N"] = normalize_advantage(flat["advantage_N"], flat["valid_N"])
        return ppo_loss(**flat, **hypers)

    if len(group.members) == 1:
        loss, stats = loss_of_one({k: v[0] for k, v in samples.items()}, {k: v[0] for k, v in hypers.items()})
        stats = {k: v.unsqueeze(0) for k, v in stats.items()}
    else:
        loss, stats = torch.func.vmap(loss_of_one)(samples, hypers)
    loss.sum().backward()
    return stats


@torch.no_grad()
def _gae(pack: Pack, rows: slice, s: _Samples) -> Tensor:
    """Advantages by the values of acting time, [G, T, B]: for all epochs the same."""
    h = {name: pack.hypers[name][rows] for name in ("gamma", "gae_lambda", "unroll")}
    value_T1 = torch.cat([s.value, s.last_value.unsqueeze(1)], dim=1)
    ends = (s.terminated, s.truncated, s.valid)
    return gae(s.reward, value_T1, *ends, h["gamma"], h["gae_lambda"], h["unroll"])


@torch.no_grad()
def _targets(
    pack: Pack,
    rows: slice,
    s: _Samples,
    settings: UpdateSettings,
    valid: Tensor,
    value: Tensor,
    log_prob: Tensor,
) -> tuple[Tensor, Tensor]:
    """Value targets (reward units) and advantages, [G, T, B].

    V-trace and A3C use the present values, but for the last bootstrap, whose observation belongs to the next
    rollout: there they take the value of acting time, at most the policy lag old.
    """
    if s.gae is not None:
        return s.value + s.gae, s.gae
    names = ("gamma", "gae_lambda", "unroll", "vtrace_rho", "vtrace_c")
    gamma, lam, unroll, rho_limit, c_limit = (pack.hypers[name][rows] for name in names)
    value_T1 = torch.cat([pack.denormalize_value(value, rows), s.last_value.unsqueeze(1)], dim=1)
    ends = (s.terminated, s.truncated, valid)
    if settings.algo == "a3c":
        advantage = gae(s.reward, value_T1, *ends, gamma, torch.ones_like(gamma), unroll)
        return advantage + value_T1[:, :-1], advantage / pack.return_scale(rows)[:, None, None]

    log_ratio = torch.where(valid, log_prob - s.log_prob, 0.0)
    target, advantage = vtrace(s.reward, value_T1, *ends, log_ratio, gamma, lam, rho_limit, c_limit, unroll)
    # The surrogate multiplies by the ratio itself; V-trace's advantage already holds it, clipped: take it out.
    rho = torch.minimum(log_ratio.exp(), rho_limit[:, None, None])
    return target, advantage / rho.clamp(min=1e-6)


@torch.no_grad()
def _adapt_learning_rate(
    pack: Pack, group: Group, kl_G: Tensor, settings: UpdateSettings, current_G: Tensor
) -> None:
    """Divide the factor where the policy moved too far, multiply it where it hardly moved."""
    assert settings.kl_target is not None
    factor = pack.state["lr_factor"][group.rows]
    change = torch.where(
        kl_G > 2 * settings.kl_target, 1 / KL_STEP, torch.where(kl_G < settings.kl_target / 2, KL_STEP, 1.0)
    )
    factor.copy_(torch.where(current_G, (factor * change).clamp(*LR_FACTOR_RANGE), factor))
