"""The memory of a run, against what host and devices have."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from pbt_rl.advice.estimate import PackBytes, pack_bytes
from pbt_rl.errors import ConfigError
from pbt_rl.extras import offered
from pbt_rl.plan import PackPlan
from pbt_rl.plan.machine import CGROUPS, OWN_CGROUPS, cgroups_around, number_in
from pbt_rl.run.resolved import ResolvedRun

MEMORY_INFO = Path("/proc/meminfo")
MIB, GIB = 2**20, 2**30
LEARNER_BYTES = 330 * MIB
"""A learner with an empty pack: interpreter, torch, compiled kernels (shared pages counted by their share)."""
SUPERVISOR_BYTES = 240 * MIB
CUDA_BYTES = 700 * MIB
"""Of a device's memory: the context, and the libraries' work space, of which each of three threads has its own."""
MANY_ENVS = 32
"""Of a policy in one unit: fewer are as fast."""
NEARLY_ALL = 0.9
"""A run that is estimated to need more than this share of what is available is warned about."""


@dataclass(frozen=True)
class Estimate:
    """Memory of a run: of the host, and of each GPU by name."""

    host: int
    devices: Mapping[str, int]
    packs: tuple[PackBytes, ...]
    certain: int
    """Part of the host's memory that is no estimate: it is allocated in any case."""
    certain_of_devices: Mapping[str, int]
    """Likewise of each GPU's."""


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
    """Raise ConfigError if what a run allocates in any case is more than the machine or a GPU has. host: for tests."""
    needed, host = estimate(resolved), host or host_memory()
    if needed.certain > host.total:
        raise ConfigError(
            f"this run cannot fit into memory: it needs {_gib(needed.certain)} of {_gib(host.total)} "
            f"({_parts(needed)}): {_remedy(resolved, needed, 'cpu', host.available)}"
        )
    for device, size in needed.certain_of_devices.items():
        there = _device_bytes(device)
        if size > there:
            raise ConfigError(
                f"this run cannot fit on {device}: it needs {_gib(size)} at least, and {_gib(there)} are there "
                f"({_parts(needed)}): {_remedy(resolved, needed, device, there)}"
            )


def _device_bytes(device: str) -> float:
    """Return the memory of a GPU; unlimited if the plan is for another machine."""
    if not torch.cuda.is_available():
        return math.inf
    return float(torch.cuda.get_device_properties(torch.device(device)).total_memory)


def _gib(size: float) -> str:
    return f"{size / GIB:,.1f} GiB"


def _parts(needed: Estimate) -> str:
    """Name the parts, the largest first."""
    parts = {
        "rollouts": sum(p.rollouts for p in needed.packs),
        "replay": sum(p.replay for p in needed.packs),
        "weights and moments": sum(p.weights + p.parked for p in needed.packs),
        "updates": sum(p.update for p in needed.packs),
        "actors and their environments": sum(p.actors + p.environments + p.mailboxes for p in needed.packs),
    }
    return ", ".join(
        f"{name} {_gib(size)}" for name, size in sorted(parts.items(), key=lambda part: -part[1]) if size
    )


def _remedy(resolved: ResolvedRun, needed: Estimate, device: str, available: float) -> str:
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


def _slots_that_fit(plans: Sequence[PackPlan], needed: Estimate, device: str, available: float) -> int:
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
    packs = tuple(pack_bytes(resolved.config, resolved.spec, plan) for plan in plans)
    host, certain = (
        SUPERVISOR_BYTES + sum(more(resolved.config) for more in offered("pbt_rl", "HOST_BYTES")),
        0,
    )
    devices: dict[str, int] = {}
    certain_of: dict[str, int] = {}
    for plan, pack in zip(plans, packs, strict=True):
        host += LEARNER_BYTES + pack.parked + pack.mailboxes + pack.actors + pack.environments
        certain += pack.parked + pack.mailboxes
        if plan.device == "cpu":
            host += pack.sampled + pack.weights + pack.update
            certain += pack.sampled + pack.weights
        else:
            on_device = pack.sampled + pack.weights + pack.update + CUDA_BYTES
            devices[plan.device] = devices.get(plan.device, 0) + on_device
            certain_of[plan.device] = certain_of.get(plan.device, 0) + pack.sampled + pack.weights
    return Estimate(host, devices, packs, certain, certain_of)


@dataclass(frozen=True)
class HostMemory:
    """Memory of the host, or of the cgroup that limits this process, in bytes."""

    total: int
    available: int
    """Free, or taken by caches that give way."""


def host_memory(info: Path = MEMORY_INFO, own: Path = OWN_CGROUPS, cgroups: Path = CGROUPS) -> HostMemory:
    """Return what the machine has, and no more than the limits of all cgroups around this process (v2 and v1)."""
    fields = dict(line.split(":", 1) for line in info.read_text().splitlines())
    total, available = (int(fields[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    for folder in cgroups_around("memory", own, cgroups):
        for limit_file, usage_file, cache in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit, usage = number_in(folder / limit_file), number_in(folder / usage_file)
            if limit >= 0 and usage >= 0:
                total = min(total, limit)
                available = min(available, limit - usage + _cached(folder / "memory.stat", cache))
    return HostMemory(total, max(0, available))


def _cached(stat: Path, name: str) -> int:
    try:
        return next(
            (int(line.split()[1]) for line in stat.read_text().splitlines() if line.split()[0] == name), 0
        )
    except OSError:
        return 0
