"""An estimate of a run's memory before anything starts, against what devices and host have.

Exact are the large parts, whose shapes are known: rollouts, the copies of the weights, mailboxes. What torch, an
emulator or an interpreter takes besides is measured, and says so here. Of a user's environment nothing is known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from pbt_rl.algos.fields import FIELDS
from pbt_rl.algos.models import PolicyNet
from pbt_rl.config import Config
from pbt_rl.envs.base import EnvSpec, step_array_specs
from pbt_rl.errors import ConfigError
from pbt_rl.learner.build import build_net, compute_dtype, obs_layouts, packing_of
from pbt_rl.plan import HostMemory, PackPlan, host_memory
from pbt_rl.run.resolved import ResolvedRun

MIB, GIB = 2**20, 2**30
LEARNER_BYTES = 330 * MIB
"""A learner with an empty pack: interpreter, torch, compiled kernels (shared pages counted by their share)."""
SUPERVISOR_BYTES = 240 * MIB
ACTOR_BYTES = 45 * MIB
"""An actor without environments."""
CUDA_BYTES = 600 * MIB
"""Of a device's memory: the context and the libraries' work space."""
ENVIRONMENT_BYTES: Mapping[str, int] = {"atari": 840 * 1024}
"""Of one environment of a family, where it was measured to be large."""
SMALL_ENVIRONMENT_BYTES = 4096
"""Of one environment of any other: CartPole's. A large one of a user's own is not foreseen."""
MANY_ENVS = 32
"""Of a policy in one unit; a plan never has more."""
NEARLY_ALL = 0.9
"""A run that is estimated to need more than this share of what is available is warned about."""


@dataclass(frozen=True)
class PackBytes:
    """Memory of one learner and its actors."""

    rollouts: int
    weights: int
    """All copies, gradients and moments of the policies that hold slots."""
    update: int
    """What one optimiser step takes for a while: its samples and what is kept for the backward pass."""
    state: int
    """Of one member that waits in the host's memory."""
    parked: int
    """Of all that wait at the start."""
    mailboxes: int
    environments: int
    """As far as those are known."""
    actors: int
    """Without their environments."""

    @property
    def of_slots(self) -> int:
        """Return the bytes that are proportional to the number of slots."""
        return self.rollouts + self.weights + self.mailboxes + self.environments


@dataclass(frozen=True)
class Estimate:
    """Memory of a run: of the host, and of each GPU by name."""

    host: int
    devices: Mapping[str, int]
    packs: tuple[PackBytes, ...]
    certain: int
    """Part of the host's memory that is no estimate: it is allocated in any case."""


def memory_notes(resolved: ResolvedRun, host: HostMemory | None = None) -> list[str]:
    """Warn of a run that is estimated to need more memory than there is, with what would need less.

    host: for tests.
    """
    needed, host = estimate(resolved), host or host_memory()
    notes = []
    if needed.host > NEARLY_ALL * host.available:
        notes.append(
            f"warning: this run needs about {_gib(needed.host)} of memory, and {_gib(host.available)} are available "
            f"({_parts(needed)}): {_remedy(resolved, needed, 'cpu', host.available)}"
        )
    for device, size in needed.devices.items():
        there = _device_bytes(device)
        if size > NEARLY_ALL * there:
            notes.append(
                f"warning: this run needs about {_gib(size)} on {device}, which has {_gib(there)} "
                f"({_parts(needed)}): {_remedy(resolved, needed, device, there)}"
            )
    return notes


def check_memory(resolved: ResolvedRun, host: HostMemory | None = None) -> None:
    """Raise ConfigError if what a run allocates in any case is more than the machine has. host: for tests."""
    needed, host = estimate(resolved), host or host_memory()
    if needed.certain > host.total:
        raise ConfigError(
            f"this run cannot fit into memory: it needs {_gib(needed.certain)} of {_gib(host.total)} "
            f"({_parts(needed)}): {_remedy(resolved, needed, 'cpu', host.available)}"
        )


def _device_bytes(device: str) -> int:
    return int(torch.cuda.get_device_properties(torch.device(device)).total_memory)


def _gib(size: float) -> str:
    return f"{size / GIB:,.1f} GiB"


def _parts(needed: Estimate) -> str:
    """Name the parts, the largest first."""
    parts = {
        "rollouts": sum(p.rollouts for p in needed.packs),
        "weights and moments": sum(p.weights + p.parked for p in needed.packs),
        "updates": sum(p.update for p in needed.packs),
        "actors and their environments": sum(p.actors + p.environments + p.mailboxes for p in needed.packs),
    }
    return ", ".join(
        f"{name} {_gib(size)}" for name, size in sorted(parts.items(), key=lambda part: -part[1])
    )


def _remedy(resolved: ResolvedRun, needed: Estimate, device: str, available: int) -> str:
    """Return what to change. available: on this device."""
    plans = resolved.plan.packs
    envs = max(plan.envs_per_policy for plan in plans)
    remedies = []
    if envs > MANY_ENVS:
        remedies.append(f"fewer environments (--envs-per-unit, now {envs})")
    slots = _slots_that_fit(plans, needed, device, available)
    if slots >= len(plans) and slots < sum(plan.slots for plan in plans):
        remedies.append(f"members that take turns (--slots {slots})")
    return "use " + ", ".join([*remedies, "a smaller --learner.batch, or fewer --num-policies"])


def _slots_that_fit(plans: Sequence[PackPlan], needed: Estimate, device: str, available: int) -> int:
    """Return how many slots in all packs would fit on a device; a member without one waits in the host's memory."""
    there = [
        (plan, pack) for plan, pack in zip(plans, needed.packs, strict=True) if device in ("cpu", plan.device)
    ]
    slots = sum(plan.slots for plan, _ in there)
    of_slots = sum(pack.of_slots for _, pack in there)
    parked = there[0][1].state if device == "cpu" else 0
    total = needed.host if device == "cpu" else needed.devices[device]
    fixed = total - of_slots + slots * parked  # all members parked
    fitting = int((NEARLY_ALL * available - fixed) / max(1, of_slots / slots - parked))
    return fitting * len(plans) // len(there)


def estimate(resolved: ResolvedRun) -> Estimate:
    """Estimate the memory of a run."""
    plans = resolved.plan.packs
    packs = tuple(_pack_bytes(resolved.config, resolved.spec, plan) for plan in plans)
    host, certain = SUPERVISOR_BYTES, 0
    devices: dict[str, int] = {}
    for plan, pack in zip(plans, packs, strict=True):
        host += LEARNER_BYTES + pack.parked + pack.mailboxes + pack.actors + pack.environments
        certain += pack.parked + pack.mailboxes
        if plan.device == "cpu":
            host += pack.rollouts + pack.weights + pack.update
            certain += pack.rollouts + pack.weights
        else:
            on_device = pack.rollouts + pack.weights + pack.update + CUDA_BYTES
            devices[plan.device] = devices.get(plan.device, 0) + on_device
    return Estimate(host, devices, packs, certain)


def _pack_bytes(config: Config, spec: EnvSpec, plan: PackPlan) -> PackBytes:
    net = build_net(spec, config.model)
    dtype = compute_dtype(config.learner.precision, torch.device(plan.device), spec)
    numbers = sum(p.numel() for p in net.parameters())
    moments = len(config.algorithm.optimizer.moments)
    state = 4 * numbers * (1 + moments)
    # Beside the state: float32 gradients; in a smaller dtype working weights with gradients, and serving weights.
    copies = 4 * numbers + (4 * numbers if dtype == torch.float32 else 3 * dtype.itemsize * numbers)
    environments = plan.units * plan.rows // spec.seats
    family = config.env.partition("/")[0]
    return PackBytes(
        rollouts=rollouts_of(config, plan)
        * _rollout_bytes(spec, config.learner.rollout, plan.rows, net.state_size),
        weights=plan.slots * (state + copies),
        update=_update_bytes(config, spec, plan, net, dtype),
        state=state,
        parked=(len(plan.members) - plan.slots) * state,
        mailboxes=plan.units * plan.rows * _step_bytes(spec),
        environments=environments * ENVIRONMENT_BYTES.get(family, SMALL_ENVIRONMENT_BYTES),
        actors=plan.actors * ACTOR_BYTES,
    )


def rollouts_of(config: Config, plan: PackPlan) -> int:
    """Return how many rollout buffers a learner makes."""
    return plan.units + (2 * plan.units_per_batch if config.mode == "async" else 0)


def _rollout_bytes(spec: EnvSpec, steps: int, rows: int, state_size: int) -> int:
    sizes = {"action": spec.action.components, "state": state_size}
    total = rows * (steps + 1) * _stored_bytes(spec)
    for field in FIELDS.values():
        width = 1 if field.dtype == "bool" else 4
        total += width * math.prod(field.shape(steps, rows, sizes))
    return total


def _step_bytes(spec: EnvSpec) -> int:
    """Return the size of one row's step in a mailbox."""
    arrays = step_array_specs(spec).values()
    return (
        sum(np.dtype(array.dtype).itemsize * math.prod(array.shape) for array in arrays)
        + 4 * spec.action.components
    )


def _stored_bytes(spec: EnvSpec) -> int:
    """Return the size of one row's observation on the device."""
    stored = [layout.stored for layout in obs_layouts(spec).values()]
    return sum(dtype.itemsize * math.prod(shape) for dtype, shape in stored)


def _update_bytes(config: Config, spec: EnvSpec, plan: PackPlan, net: PolicyNet, dtype: torch.dtype) -> int:
    """Return what one optimiser step takes: the batch's observations, the minibatch's, and what backward needs."""
    together = plan.slots if packing_of(config, torch.device(plan.device), spec, plan.slots) == "vmap" else 1
    batch = plan.batch_rows * config.learner.rollout
    parts = 1 if config.algorithm.learns_per_unit else config.learner.minibatches
    stored = _stored_bytes(spec)
    kept = _kept_for_backward(spec, net, dtype)
    copies = 2 if parts > 1 else 1
    return together * batch * (stored * copies + (stored + kept) // parts)


def _kept_for_backward(spec: EnvSpec, net: PolicyNet, dtype: torch.dtype) -> int:
    """Return the bytes per sample that autograd keeps, found by a forward pass of two samples."""
    weights = {p.data_ptr() for p in net.parameters()}
    kept: dict[int, int] = {}

    def keep(x: torch.Tensor) -> torch.Tensor:
        if x.data_ptr() not in weights:
            kept[x.data_ptr()] = x.numel() * (dtype.itemsize if x.is_floating_point() else x.element_size())
        return x

    samples = 2
    obs = {
        name: torch.zeros((1, samples, *shape), dtype=getattr(torch, kind))
        for name, (shape, kind) in ((n, layout.seen) for n, layout in obs_layouts(spec).items())
    }
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        net(obs, torch.zeros(samples, net.state_size), torch.zeros((1, samples), dtype=torch.bool))
    return sum(kept.values()) // samples
