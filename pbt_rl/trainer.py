"""The trainer: learns from full rollouts and applies edits to the population, one thing at a time.

    consumes     full rollouts (from the sampler), edits (from the supervisor)
    produces     published weights, free buffers, statistics, proofs of application
    waits for    a batch's worth of rollouts or an edit
    runs in      its own thread (async), or inline between samplings (sync, serial)

An edit is handled between two optimiser steps, so it waits for one minibatch of one policy at most, and nothing
else ever writes a policy's state.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pbt_rl.algos.pack import Pack
from pbt_rl.algos.rollout import Rollout, make_batch
from pbt_rl.algos.update import StepStats, UpdateSettings, update
from pbt_rl.mailbox import ShapingTable
from pbt_rl.pbt.hypers import SHAPING, Values
from pbt_rl.reports import Applied
from pbt_rl.sampler import Sampler

OPTIMIZER_HYPERS = ("learning_rate", "adam_beta1", "adam_beta2", "rmsprop_alpha", "max_grad_norm")


@dataclass(frozen=True)
class Edit:
    """Change one member in place. `values` are final.

    weights: `keep`; `copy` those of `donor` (on this pack); `import` from the exchange memory; `fresh`.
    """

    member: int
    generation: int
    weights: Literal["keep", "copy", "import", "fresh"]
    donor: int | None
    values: Values


@dataclass
class Tallies:
    """Sums since the last report, a policy each, and totals."""

    sums: list[dict[str, Tensor]]
    counts: list[int]
    """Optimiser steps since the last report."""
    updates: list[int]
    """Batches in total."""
    steps: list[int]
    """Steps learned from in total."""
    lag_max: int = 0
    discarded: int = 0
    """Rollouts (of one policy) thrown away in total."""
    skipped: int = 0
    """Optimiser steps left out because a gradient was not finite, in total."""
    learning_seconds: float = 0.0
    applied: list[Applied] = field(default_factory=list)

    @classmethod
    def new(cls, policies: int) -> Tallies:
        """All empty."""
        return cls([{} for _ in range(policies)], [0] * policies, [0] * policies, [0] * policies)


class Trainer:
    """Learns and edits. `exchange`: memory for one member's state between packs, as bytes."""

    def __init__(
        self,
        pack: Pack,
        sampler: Sampler,
        settings: UpdateSettings,
        members: tuple[int, ...],
        units_per_batch: int,
        max_policy_lag: int,
        shaping: ShapingTable,
        exchange: Tensor,
        seed: int,
        schedule: Callable[[], float],
    ) -> None:
        self._pack, self._sampler, self._settings = pack, sampler, settings
        self._members, self._units_per_batch, self._max_lag = members, units_per_batch, max_policy_lag
        self._shaping, self._exchange, self._schedule = shaping, exchange, schedule
        self._generator = torch.Generator().manual_seed(seed)
        self._current_P = torch.ones(len(members), dtype=torch.bool, device=pack.device)
        self.commands: deque[Callable[[], None]] = deque()
        self.wake = threading.Condition()
        self.lock = threading.Lock()
        """Guards `tallies` against the reporter."""
        self.tallies = Tallies.new(len(members))
        self.stopping = False

    # -- the loop -------------------------------------------------------------------------------------------

    def run(self, buffers_freed: Callable[[], None]) -> None:
        """Run as a thread: learn and edit until `stopping`. `buffers_freed` is called when rollouts were given back."""
        while not self.stopping:
            with self.wake:
                self.wake.wait_for(lambda: self.stopping or self.commands or self.has_batch, timeout=1.0)
            self.run_commands()
            if self.has_batch and not self.stopping:
                self.learn()
                buffers_freed()

    @property
    def has_batch(self) -> bool:
        """Enough full rollouts for an update."""
        return len(self._sampler.full) >= self._units_per_batch

    def run_commands(self) -> None:
        """Do what the supervisor asked for."""
        while self.commands:
            self.commands.popleft()()

    def learn(self) -> None:
        """Learn from the oldest rollouts; give their buffers back."""
        rollouts = [self._sampler.full.popleft() for _ in range(self._units_per_batch)]
        began = time.thread_time()
        usable_PK = self._usable(rollouts)
        batch = make_batch(rollouts, len(self._members), usable_PK, self._pack.device)
        self._current_P.fill_(True)
        self._current_P[torch.from_numpy(~usable_PK.any(1))] = False
        steps = update(
            self._pack,
            batch,
            self._settings,
            generator=self._generator,
            learning_rate_factor=self._schedule(),
            current_P=self._current_P,
        )
        for stats in steps:
            self._pack.publish(stats.members)
            self._note(stats)
            if self.commands:
                self.run_commands()
        learned = self._current_P.cpu().numpy()
        self._sampler.clock.version += learned
        valid_P = batch.valid_PTB.sum((1, 2)).cpu().numpy()
        with self.lock:
            for p in np.flatnonzero(learned).tolist():
                self.tallies.updates[p] += 1
                self.tallies.steps[p] += int(valid_P[p])
            self.tallies.learning_seconds += time.thread_time() - began
        for rollout in rollouts:
            self._sampler.pool.give(rollout)

    def _usable(self, rollouts: list[Rollout]) -> NDArray[np.bool_]:
        """Which rollouts still count for which policy, [P, K]; notes lag and discards."""
        clock = self._sampler.clock
        origin_PK = np.stack([r.origin for r in rollouts], axis=1)
        version_PKT = np.stack([r.version.T for r in rollouts], axis=1)
        lag_PKT = clock.version[:, None, None] - version_PKT
        same_PK = origin_PK == clock.origin[:, None]
        usable_PK: NDArray[np.bool_] = same_PK & (lag_PKT[:, :, 0] <= self._max_lag)
        with self.lock:
            self.tallies.discarded += int((~usable_PK).sum())
            if usable_PK.any():
                self.tallies.lag_max = max(self.tallies.lag_max, int(lag_PKT[usable_PK].max()))
            for p in np.flatnonzero(usable_PK.any(1)).tolist():
                self._add(p, "lag", torch.tensor(float(lag_PKT[p][usable_PK[p]].mean())), 1)
        return usable_PK

    def _note(self, stats: StepStats) -> None:
        with self.lock:
            for i, p in enumerate(stats.members):
                if not bool(torch.isfinite(stats.values["grad_norm"][i])):
                    self.tallies.skipped += 1
                    continue
                for name, value_G in stats.values.items():
                    self._add(p, name, value_G[i].detach(), 1)
                self.tallies.counts[p] += 1

    def _add(self, policy: int, name: str, value: Tensor, count: int) -> None:
        sums = self.tallies.sums[policy]
        sums[name] = sums.get(name, torch.zeros_like(value)) + value
        sums[f"{name}#"] = sums.get(f"{name}#", torch.zeros(())) + count

    def take_means(self, policy: int) -> dict[str, float]:
        """Mean of every statistic since the last call. The caller holds `lock`."""
        sums, self.tallies.sums[policy] = self.tallies.sums[policy], {}
        return {k: float(v) / float(sums[f"{k}#"]) for k, v in sums.items() if not k.endswith("#")}

    # -- edits ----------------------------------------------------------------------------------------------

    def apply(self, edit: Edit) -> Applied:
        """Change a member in place, and read back what is in force where it acts."""
        began = time.perf_counter()
        p = self._members.index(edit.member)
        donor_before = self._fingerprint(edit.donor)
        self._pack.set_hypers(p, edit.values)
        if edit.weights == "copy":
            assert edit.donor is not None
            self._pack.copy_member(self._members.index(edit.donor), p)
        elif edit.weights == "import":
            self._pack.import_member(p, self._read_exchange())
        elif edit.weights == "fresh":
            self._pack.set_fresh(p)
        if edit.weights != "keep":
            self._sampler.reset_state(p)
            self._sampler.clock.origin[p] += 1
            self._current_P[p] = False
        shaping = {k.removeprefix(SHAPING): v for k, v in edit.values.items() if k.startswith(SHAPING)}
        self._shaping.write(p, edit.generation, shaping)
        milliseconds = (time.perf_counter() - began) * 1000
        in_use = {name: float(column[p]) for name, column in self._pack.hypers.items()}
        return Applied(
            member=edit.member,
            donor=edit.donor,
            generation=edit.generation,
            milliseconds=milliseconds,
            in_optimizer={k: v for k, v in in_use.items() if k in OPTIMIZER_HYPERS},
            in_loss={k: v for k, v in in_use.items() if k not in OPTIMIZER_HYPERS},
            in_environment=self._shaping.read(p)[1],
            donor_unchanged=donor_before == self._fingerprint(edit.donor),
        )

    def _fingerprint(self, member: int | None) -> list[int]:
        """Sum of the bits of every row of a member's state (empty for a donor elsewhere)."""
        if member is None or member not in self._members:
            return []
        p = self._members.index(member)
        return [_bit_sum(rows[p]) for rows in self._pack.state.values()]

    def write_exchange(self, member: int) -> None:
        """Put a member's whole state into the exchange memory."""
        offset = 0
        for tensor in self._pack.export_member(self._members.index(member)).values():
            data = tensor.reshape(-1).view(torch.uint8)
            self._exchange[offset : offset + data.numel()].copy_(data)
            offset += data.numel()

    def _read_exchange(self) -> Mapping[str, Tensor]:
        offset, state = 0, {}
        for name, rows in self._pack.state.items():
            size = rows[0].numel() * rows.element_size()
            data = self._exchange[offset : offset + size].clone()
            state[name] = data.view(rows.dtype).view(rows[0].shape)
            offset += size
        return state


def _bit_sum(tensor: Tensor) -> int:
    """A number that changes with any single bit of a tensor: its memory as 64-bit integers, summed."""
    data = tensor.reshape(-1).view(torch.uint8)
    if data.numel() % 8 or data.storage_offset() % 8:
        return int.from_bytes(data.cpu().numpy().tobytes(), "little")
    return int(data.view(torch.int64).sum())
