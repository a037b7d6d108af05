"""Update: every policy of a pack learns from one batch.

`Updater.steps` is a generator that yields after every optimiser step. The caller may change members between two steps.
A change of a slot's member or weights removes the slot from `CurrentSlots`, the set of slots that may learn from the
batch. A change of values leaves the slot in this set.

A step can be captured as a CUDA graph and replayed (`Stepping`), because all inputs that change between steps are
tensors at fixed addresses: hyperparameters, learning rates, active slots, and the row of the log for statistics. The
computation of a step never waits for the device.

Axes: P policies, G policies of one group, T steps, B rows of a policy, N = T * B samples, S optimiser steps of a batch,
V statistics.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .algorithm import Hypers, LossInputs, OwnStep, Present, UpdateSettings
from .batch import Batch, Samples
from .kernels import for_upload
from .losses import Stats
from .observations import ObsLayout
from .pack import Pack
from .weights import Group

Program = Callable[[Samples], Stats]
"""Function that makes one optimiser step on samples and returns statistics, [G] each."""
Orders = Sequence[Tensor | None]
"""Row indices of each optimiser step, on the CPU. None: all rows."""


class StepLog:
    """Statistics of all optimiser steps of a batch, on the device. Several threads may write.

    Shape: [S steps, P policies, V statistics]. names: names of the statistics, in the order of axis V.
    """

    def __init__(self, steps: int, policies: int, device: torch.device) -> None:
        self._lock = threading.Lock()
        self._shape, self._device = (steps, policies), device
        self.names: tuple[str, ...] = ()
        self._values_SPV = torch.empty(0)

    @torch.no_grad()
    def write(self, step: int | Tensor, span: slice, stats: Mapping[str, Tensor]) -> None:
        """Write the statistics of a step for the slots in `span`.

        step: number of the step, as an int or a [1] tensor on the device.
        stats: name -> [G], with the same names in every call.
        """
        with self._lock:
            if not self.names:
                self._values_SPV = torch.zeros((*self._shape, len(stats)), device=self._device)
                self.names = tuple(stats)
        row_GV = torch.stack([stats[name].float() for name in self.names], 1)
        if isinstance(step, Tensor):
            self._values_SPV[:, span].index_copy_(0, step, row_GV.unsqueeze(0))
        else:
            self._values_SPV[step, span] = row_GV

    def read(self, steps: int, span: slice, name: str) -> Tensor:
        """Return a statistic of the first `steps` optimiser steps, [steps, G], on the device. G: slots in `span`."""
        return self._values_SPV[:steps, span, self.names.index(name)].contiguous()

    def fetch(self) -> NDArray[np.float32]:
        """Copy all statistics to the host, [S, P, V]. Waits for the device."""
        return self._values_SPV.cpu().numpy()


class Steps:
    """Optimiser steps of one group, run eagerly."""

    def __init__(self, span: slice, program: Program, log: StepLog) -> None:
        self._span, self._program, self._log = span, program, log
        self._samples: Samples | None = None
        self._orders: Orders = ()

    def load_batch(self, samples: Samples, orders: Orders) -> None:
        """Set the samples of the next batch, and the rows of each optimiser step (`orders`)."""
        self._samples, self._orders = samples, orders

    def run(self, step: int) -> None:
        """Run one optimiser step. step: index into the `orders` of the batch, from 0."""
        samples, order = self._samples, self._orders[step]
        assert samples is not None, "load a batch first"
        part = samples if order is None else samples.columns(order.to(samples.valid.device))
        self._log.write(step, self._span, self._program(part))

    def end(self) -> None:
        """Release the samples, because they may take much memory."""
        self._samples, self._orders = None, ()


class Stepping:
    """Factory of `Steps`. With CUDA graphs, `RecordedStepping` (pbt_rl/learner/cuda/steps.py) is used instead."""

    obs: dict[str, Tensor] | None = None
    """Fixed buffers for a group's observations, name -> [G, T, B, ...], allocated by the first batch. None: no fixed
    buffers."""

    def steps(self, span: slice, program: Program, log: StepLog, number: int) -> Steps:  # noqa: ARG002 - for subclasses
        """Create the optimiser steps of a group.

        span: slots of the group. program: makes one step. log: receives the statistics. number: steps per batch.
        """
        return Steps(span, program, log)


LR_FACTOR_RANGE = (0.01, 100.0)
STOP_AT = 1.5
"""Early stopping at this multiple of `target_kl`, as in Stable-Baselines3's PPO.train."""
KL_STEP = 1.5
ACTIVE = "active"
"""Name of a statistic: 0 if the policy had no valid samples, has stopped early, or was dropped from `CurrentSlots`;
otherwise 1. A step that is skipped because of a non-finite gradient has 1."""


class CurrentSlots:
    """Slots that may learn from the current batch.

    A change of a slot's member or weights, or the start of an evaluation of the member, removes the slot.
    """

    def __init__(self, policies: int, device: torch.device) -> None:
        self.host: NDArray[np.bool_] = np.ones(policies, np.bool_)
        """[P], host copy of `tensor`, read without waiting for the device."""
        self.tensor = torch.from_numpy(self.host)
        if device.type != "cpu":
            self.tensor = self.tensor.to(device)

    def begin_batch(self, usable_P: NDArray[np.bool_]) -> None:
        """Set the slots that may learn from a new batch."""
        self.host[:] = usable_P
        if self.tensor.device.type != "cpu":
            here = for_upload(torch.from_numpy(self.host), self.tensor.device)
            self.tensor.copy_(here, non_blocking=True)

    def drop(self, slot: int) -> None:
        """Exclude a slot from the rest of the batch, without waiting for the device (see `Pack.set_hypers`)."""
        self.host[slot] = False
        self.tensor[slot : slot + 1].fill_(False)


@dataclass(frozen=True)
class StepsTaken:
    """Statistics of the optimiser steps that a group of slots has made, on the host.

    values: [S steps, G slots, V statistics]. names: names of the statistics, in the order of axis V.
    """

    slots: tuple[int, ...]
    values_SGV: NDArray[np.float32]
    names: tuple[str, ...]


class GroupBatch(NamedTuple):
    """Batch that is prepared for the optimiser steps of a group."""

    group: Group
    steps: Steps
    number: int
    """Number of optimiser steps."""


class Updater:
    """Object that makes the optimiser steps of a pack's groups on a batch.

    current: slots that may learn.
    stepping: factory of the optimiser steps. None: eager steps.
    changing: lock held while a policy's state is written. A thread that holds the lock may change members, even during
    a step. A running step does not change a slot that was dropped from `current` under the lock.

    After `begin_batch`, several threads may run `targets` and `steps` at the same time, for different groups.
    """

    def __init__(
        self, pack: Pack, settings: UpdateSettings, current: CurrentSlots, stepping: Stepping | None = None
    ) -> None:
        self._pack, self._settings, self.current = pack, settings, current
        self._stepping = Stepping() if stepping is None else stepping
        self.changing = threading.RLock()
        steps = settings.epochs * settings.minibatches
        self._factor_P = torch.ones(pack.num_policies, device=pack.device)
        self._stopped_P = torch.zeros(pack.num_policies, dtype=torch.bool, device=pack.device)
        self._log = StepLog(steps, pack.num_policies, pack.device)
        self._layouts: Mapping[str, ObsLayout] = {}
        self._taken: list[tuple[int, tuple[int, ...]]] = []
        self._steps = {
            group: self._stepping.steps(group.span, partial(self._step, group), self._log, steps)
            for group in pack.groups()
        }

    def rehearse(self, batch: Batch, generator: torch.Generator, times: int) -> None:
        """Run `times` optimiser steps of each minibatch size, without changing the state of a policy.

        `current` must be empty. The minibatches are drawn from `generator`.

        batch: a batch of the usual shapes without valid samples.
        """
        assert not self.current.host.any(), "no slot may learn from a rehearsal batch"
        self._factor_P.fill_(1.0)
        self._layouts = batch.layouts
        for group, steps in self._steps.items():
            samples = self._samples(group, batch)
            parts = _minibatches(samples.valid.shape[2], self._settings.minibatches, generator)
            orders = [*{None if order is None else len(order): order for order in parts}.values()]
            for _ in range(times):
                steps.load_batch(samples, orders)
                for number in range(len(orders)):
                    steps.run(number)
            steps.end()

    def begin_batch(self, batch: Batch, learning_rate_factor: float | Tensor) -> None:
        """Prepare for a batch.

        learning_rate_factor: factor from the learning rate schedule, as one number or as a tensor [P] on the device.
        """
        if isinstance(learning_rate_factor, Tensor):
            self._factor_P.copy_(learning_rate_factor)
        else:
            self._factor_P.fill_(learning_rate_factor)
        self._layouts = batch.layouts

    def targets(self, group: Group, batch: Batch, generator: torch.Generator) -> GroupBatch:
        """Prepare a group's samples, with the advantages that are fixed for all epochs, and the minibatches.

        This also updates the observation statistics. Run the steps of a group before preparing the next group in the
        same thread, because groups may share memory.
        """
        settings, samples, steps = self._settings, self._samples(group, batch), self._steps[group]
        columns = samples.valid.shape[2]
        orders = [
            order
            for _ in range(settings.epochs)
            for order in _minibatches(columns, settings.minibatches, generator)
        ]
        steps.load_batch(samples, orders)
        self._stopped_P[group.span].fill_(False)
        return GroupBatch(group, steps, len(orders))

    def steps(self, prepared: GroupBatch) -> Iterator[tuple[int, ...]]:
        """Make the optimiser steps of a group: epochs of minibatches. Yield the group's slots after each step.

        End early if no slot of the group may learn any more: all were dropped from `current`, or (on a CPU) each was
        dropped or stopped early.
        """
        settings, group, span = self._settings, prepared.group, prepared.group.span
        done = 0
        while done < prepared.number and self.current.host[span].any() and not self._all_stopped(span):
            prepared.steps.run(done)
            with self.changing:
                # False if all slots were dropped during the step.
                if self.current.host[span].any():
                    self._taken.append((done, group.slots))
            done += 1
            yield group.slots
        prepared.steps.end()
        if settings.lr_schedule_kl is not None and done:
            self._adapt_learning_rates(span, done, settings.lr_schedule_kl)

    @torch.no_grad()
    def _adapt_learning_rates(self, span: slice, done: int, usual: float) -> None:
        """Adapt the learning rate factors to the measured KL divergence.

        done: number of optimiser steps made. usual: desired divergence.
        """
        kl_SG, active_SG = (self._log.read(done, span, name) for name in ("kl", ACTIVE))
        # A policy that stops early measures its last step but does not make it. The KL divergence of other inactive
        # steps is 0.
        steps_G = ((active_SG > 0) | (kl_SG > 0)).sum(0)
        kl_G = kl_SG.sum(0) / steps_G.clamp_min(1)
        change = torch.where(kl_G > 2 * usual, 1 / KL_STEP, torch.where(kl_G < usual / 2, KL_STEP, 1.0))
        with self.changing:
            factor = self._pack.state["lr_factor"][span]
            learned_G = self.current.tensor[span] & (steps_G > 0)
            factor.copy_(torch.where(learned_G, (factor * change).clamp(*LR_FACTOR_RANGE), factor))

    @torch.no_grad()
    def _samples(self, group: Group, batch: Batch) -> Samples:
        """Select a group's samples, update observation statistics, and compute all that is fixed for all epochs."""
        pack, settings, span = self._pack, self._settings, group.span
        samples = Samples.of(batch, span, self._stepping.obs)
        with self.changing:
            pack.observe_obs(
                span, self._seen(samples.obs), samples.valid & self.current.tensor[span, None, None]
            )
        if settings.proximal:
            found = [self._present(group, part) for part in samples.parts(settings.minibatches)]
            log_prob, value = (torch.cat(parts, 2) for parts in zip(*found, strict=True))
            samples = replace(samples, proximal=log_prob, value=value)
        if settings.off_policy:
            samples = replace(samples, last_value=self._last_value(group, batch))
        return self._with_advantages(samples, pack.hypers_of(span))

    def _with_advantages(self, samples: Samples, hypers: Hypers) -> Samples:
        """Add the algorithm's fixed advantages, if any.

        With fixed advantages, several minibatches and no recurrent state, divide the rollouts into single steps.
        """
        algorithm, settings = self._settings.algorithm, self._settings
        if samples.final_value is not None:
            assert algorithm.needs_final_steps is None, algorithm.needs_final_steps
        if algorithm.fixed_advantage is None:
            return samples
        advantage = algorithm.fixed_advantage(samples.with_final_values(hypers["gamma"]), hypers, settings)
        if advantage is None:
            return samples
        samples = replace(samples, advantage=advantage, final_value=None)
        return samples.single_steps() if settings.minibatches > 1 and not self._pack.state_size else samples

    def _present(self, group: Group, s: Samples) -> tuple[Tensor, Tensor]:
        """Compute log probabilities and values (reward units) under the current policy, [G, T, B]."""
        params, value, _ = self._forward(group, s, s.valid)
        log_prob = self._settings.distribution.log_prob(params, s.action)
        return log_prob.float(), self._pack.denormalize_value(value.float(), group.span)

    def _last_value(self, group: Group, batch: Batch) -> Tensor:
        """Compute current values of the observations after the last steps, [G, B] in reward units.

        The values that were computed in acting are outdated by the age of the rollout. While values rise during
        training, these old values would lower the advantages of the last steps.
        """
        span = group.span
        first = batch.first[span, -1:]
        obs, state = self._seen(batch.last_obs(span)), batch.last_state(span)
        _, value, _ = group.forward(
            obs, torch.where(batch.valid[span].any(1).unsqueeze(-1), state, 0.0), first
        )
        return self._pack.denormalize_value(value.float(), span).squeeze(1)

    def take_statistics(self) -> Sequence[StepsTaken]:
        """Return the statistics of all steps since the last call. If there are steps, wait for the device.

        Call this before the next batch, which overwrites the statistics.
        """
        with self.changing:
            taken, self._taken = self._taken, []
            if not taken:
                return []
            values_SPV = self._log.fetch()
            by_slots: dict[tuple[int, ...], list[int]] = {}
            for step, slots in taken:
                by_slots.setdefault(slots, []).append(step)
            return [
                StepsTaken(slots, values_SPV[numbers][:, slots[0] : slots[-1] + 1], self._log.names)
                for slots, numbers in by_slots.items()
            ]

    def _step(self, group: Group, part: Samples) -> Stats:
        """Run one optimiser step of a group."""
        pack, current_G = self._pack, self.current.tensor[group.span]
        stopped_G, settings = self._stopped_P[group.span], self._settings
        valid = part.valid & (current_G & ~stopped_G)[:, None, None]
        stats = self._backward(group, part, valid)
        if settings.target_kl is not None:
            stopped_G |= stats["kl"] > STOP_AT * settings.target_kl
        with self.changing:  # a slot may have been dropped during the step
            active_G = valid.any(2).any(1) & current_G & ~stopped_G
            stats["grad_norm"], stats["learning_rate_in_use"] = pack.step(group, self._factor_P, active_G)
            stats[ACTIVE] = active_G
        return stats

    def _all_stopped(self, span: slice) -> bool:
        """True if all policies have stopped early or were dropped.

        Always False without `target_kl`, and on a GPU, because a check needs a synchronisation.
        """
        off = self._settings.target_kl is None or self._stopped_P.device.type != "cpu"
        return not off and bool((self._stopped_P | ~self.current.tensor)[span].all())

    def _backward(self, group: Group, s: Samples, valid: Tensor) -> Stats:
        """Run forward, loss and backward on the valid steps of a minibatch. The gradients are stored in the pack."""
        pack, settings, span, dist = self._pack, self._settings, group.span, self._settings.distribution
        hypers = _read(pack, span, settings.algorithm.loss_hypers)
        observe_returns = partial(self._observe_returns, span, valid)
        if settings.algorithm.backward is not None:
            obs, state, cut = self._inputs(group, s, valid)
            assert cut is not None, "a custom backward pass needs a network with memory"
            seen, scale = replace(s, obs=obs, state=state, valid=valid), pack.return_scale(span)
            return settings.algorithm.backward(
                OwnStep(group, seen, cut, hypers, scale, observe_returns, settings)
            )
        params, value, _ = self._forward(group, s, valid)
        log_prob, entropy = dist.log_prob(params, s.action), dist.entropy(params)
        target, advantage = self._targets(span, s, valid, value.detach(), log_prob.detach())
        observe_returns(target)
        old_value, target = pack.normalize_value(torch.stack((s.value, target)), span)
        inputs = LossInputs(
            log_prob=log_prob,
            entropy=entropy,
            value=value,
            advantage=advantage,
            target=target,
            old_log_prob=s.old_log_prob,
            old_value=old_value,
            acting_log_prob=s.log_prob,
            valid=valid,
        )
        return _loss(group, inputs, hypers, settings) | self._auxiliary(group, s)

    @torch.no_grad()
    def _targets(
        self, span: slice, s: Samples, valid: Tensor, value: Tensor, log_prob: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return (value targets in reward units, advantages), [G, T, B] each. value: in normalised units."""
        if s.advantage is not None:
            return s.value + s.advantage, s.advantage
        pack, hypers = self._pack, self._pack.hypers_of(span)
        present = Present(log_prob, pack.denormalize_value(value, span), valid, pack.return_scale(span))
        steps = s.with_final_values(hypers["gamma"])
        return self._settings.algorithm.targets(steps, hypers, present, self._settings)

    def _observe_returns(self, span: slice, valid_GTB: Tensor, target_GTB: Tensor) -> None:
        """Update the statistics of returns. Axis G: the policies of `span`.

        valid_GTB: bool [G, T, B], valid steps. target_GTB: [G, T', B], value targets of the first T' <= T steps.
        """
        valid_GTB = valid_GTB[:, : target_GTB.shape[1]]
        with self.changing:  # a slot may have been dropped during the step
            valid_GTB = valid_GTB & self.current.tensor[span, None, None]
            self._pack.observe_returns(span, target_GTB, valid_GTB)

    def _forward(self, group: Group, s: Samples, valid: Tensor) -> tuple[Tensor, ...]:
        """Compute the network's outputs at every step; see `Group.forward`."""
        obs, state, cut = self._inputs(group, s, valid)
        return group.forward(obs, state, s.first, cut)

    def _inputs(
        self, group: Group, s: Samples, valid: Tensor
    ) -> tuple[dict[str, Tensor], Tensor, Tensor | None]:
        """Return observations, recurrent state, and the starts of unrolls (None without a recurrent core)."""
        if not self._pack.state_size:
            return self._seen(s.obs), s.state, None
        # The state of outdated rows may be NaN from diverged weights, and 0 * NaN would reach the gradient.
        state = torch.where(valid.any(1).unsqueeze(-1), s.state, 0.0)
        cut = unroll_begins(self._pack.hypers_of(group.span)["unroll"], s.first)
        return self._seen(s.obs), state, cut

    def _seen(self, obs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """View stored observations in the shapes of the network's inputs, without normalisation."""
        return {name: layout.as_seen(obs[name]) for name, layout in self._layouts.items()}

    def _auxiliary(self, group: Group, s: Samples) -> Stats:
        """Run forward and backward of the auxiliary loss on replayed segments."""
        auxiliary = self._settings.algorithm.auxiliary
        if auxiliary is None:
            return {}
        segments = tuple(x._replace(obs=group.normalized(self._seen(x.obs))) for x in s.replayed)
        hypers, scale_G = _read(self._pack, group.span, auxiliary.hypers), self._pack.return_scale(group.span)
        loss_G, stats = group.of_each(auxiliary.loss, segments, hypers, scale_G)
        loss_G.sum().backward()
        return dict(stats)


def _read(pack: Pack, span: slice, names: tuple[str, ...]) -> dict[str, Tensor]:
    """Copy hyperparameters, [G], because another thread may change them before the backward pass reads them."""
    hypers = pack.hypers_of(span)
    return {name: hypers[name].clone() for name in names}


def unroll_begins(unroll_G: Tensor, like_GTB: Tensor) -> Tensor:
    """Return a mask of the starts of unrolls, [G, T, B] bool: True at step t if t % unroll == 0.

    like: a tensor of this shape. Returns and backpropagation through time are truncated at these steps, as in Jaderberg
    et al. (2017), section 4.1: "the number of steps the agent is unrolled before performing N-step policy gradient and
    backpropagation through time".
    """
    step_T1 = torch.arange(like_GTB.shape[1], device=like_GTB.device)[:, None]
    return (step_T1 % unroll_G[:, None, None] == 0).expand(like_GTB.shape)


def _loss(group: Group, inputs: LossInputs, hypers: dict[str, Tensor], settings: UpdateSettings) -> Stats:
    """Run loss and backward for every policy. Return the statistics, [G]."""

    def loss_of_one(inputs: LossInputs, hypers: dict[str, Tensor]) -> tuple[Tensor, Stats]:
        return settings.algorithm.loss(LossInputs(*(x.flatten() for x in inputs)), hypers, settings)

    if len(group.slots) == 1:
        loss, stats = loss_of_one(inputs, {k: v[0] for k, v in hypers.items()})
        stats = {k: v.unsqueeze(0) for k, v in stats.items()}
    else:
        loss, stats = torch.func.vmap(loss_of_one)(inputs, hypers)
    loss.sum().backward()
    return stats


def _minibatches(columns: int, parts: int, generator: torch.Generator) -> list[Tensor | None]:
    if parts == 1:
        return [None]
    return list(torch.randperm(columns, generator=generator).tensor_split(parts))
