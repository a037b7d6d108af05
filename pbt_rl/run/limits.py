"""Limits of the machine: open files, and the estimated memory of a run on host and devices.

The estimate is computed from the shapes of arrays, and is nearly exact for the large parts: rollouts, copies of
weights, mailboxes of images. Constants for interpreters and emulators were measured. Of the environments, only
those of the family `atari` are counted.
"""

from __future__ import annotations

import math
import resource
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pbt_rl.algos.encoders import compute_by_products
from pbt_rl.algos.models import PolicyNet
from pbt_rl.algos.rollout import FIELDS
from pbt_rl.config import Config
from pbt_rl.envs.base import EnvSpec, step_array_specs
from pbt_rl.errors import ConfigError
from pbt_rl.learner.build import blank_inputs, build_net, compute_dtype, obs_layouts, one_thread, packings_of
from pbt_rl.plan import PackPlan, Plan
from pbt_rl.plan.machine import CGROUPS, OWN_CGROUPS, cgroups_around, number_in
from pbt_rl.run.resolved import ResolvedRun

MEMORY_INFO = Path("/proc/meminfo")
MIB, GIB = 2**20, 2**30
LEARNER_BYTES = 330 * MIB
"""Memory of a learner without policies: interpreter, torch, compiled kernels (proportional set size)."""
SUPERVISOR_BYTES = 240 * MIB
EVALUATION_BYTES = 360 * MIB
"""Memory of an evaluation process with a few small environments."""
CUDA_BYTES = 700 * MIB
"""Device memory of the CUDA context and the library workspaces of three threads."""
REMEDY = (
    "use fewer environments (--envs-per-vector-env), time slices (--slots), a smaller --learner.batch, or fewer "
    "--num-policies"
)
ACTOR_BYTES = 45 * 2**20
"""Memory of an actor without environments."""
ENVIRONMENT_BYTES: Mapping[str, int] = {"atari": 840 * 1024}
"""Measured bytes of one environment, for families with large environments."""
OPTIMIZER_VECTORS = 3
"""Temporary vectors of parameter length in an optimiser step that is not one fused kernel (algos/optim.py)."""
ROUND_BYTES = 32
"""Bytes per row of a device simulator: sums of the episode, and temporary arrays."""
GIVEN_BYTES = 10
"""Bytes per row of a device simulator for static inputs of a CUDA graph: reward, objective, two end flags."""
SMALL_ENVIRONMENT_BYTES = 4096
"""Bytes of one environment of a family that is not in ENVIRONMENT_BYTES, measured with CartPole."""
NEARLY_ALL = 0.9
"""A run gets a warning if it needs more than this fraction of the available host memory, or of a GPU's memory."""
MANY_ROWS = 4096
"""Rows of each member in the smaller of two estimates of `describe_rows`. The larger estimate has twice as many rows.
The difference gives the memory of a row."""
COMFORTABLE = 1 << 16
"""Target of the soft limit of open files, unless a run needs more. The target is not higher, because some programs
loop over all descriptors up to the soft limit."""
RESERVE = 64
"""Descriptors for short-lived files, libraries, and the devices of a GPU driver."""
MAPPED = 2
"""Descriptors per memory-mapped file: the descriptor of the file, and its duplicate in Python's mmap object."""
SEGMENTS = 16
"""Assumed maximum number of segments of the `StatePool`, enough for 65,535 states. Each segment has twice the size of
the previous one."""
PER_CHILD = 3
"""Descriptors per process: socket, connection to the keeper, pidfd."""
HOST = "host"
"""Name of the memory that is not on a GPU."""


def check_start(resolved: ResolvedRun) -> None:
    """Raise the limit of open files, and check the memory.

    Raises ConfigError if this machine allows too few open files or has too little memory for the run.
    """
    allow_open_files(descriptors_needed(resolved.plan, resolved.config.members, resolved.spec.agents))
    check_memory(resolved)


def descriptors_needed(plan: Plan, members: int, agents: int) -> int:
    """Estimate the maximum number of files that the supervisor opens for a run.

    agents: number of agents of an environment.
    """
    shared = 1 + SEGMENTS  # the pool of states
    record = members + 6  # TensorBoard files; journal, locks, a checkpoint
    per_pack = 2 + MAPPED * (1 + (agents > 1))  # shaping, eventfd; heartbeat, table of matchups
    vector_envs = sum(
        pack.actors * (1 + MAPPED * pack.vector_envs_per_actor) for pack in plan.packs
    )  # eventfds, mailboxes
    children = PER_CHILD * (sum(pack.actors for pack in plan.packs) + len(plan.packs))
    return shared + record + per_pack * len(plan.packs) + vector_envs + children + RESERVE


def allow_open_files(needed: int) -> None:
    """Raise the soft limit of open files to COMFORTABLE, or higher if `needed` more files require it.

    The soft limit cannot exceed the hard limit. Raises ConfigError if the hard limit is too low for these files.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = len(list(Path("/proc/self/fd").iterdir())) + needed
    if hard != resource.RLIM_INFINITY and wanted > hard:
        raise ConfigError(
            f"this run needs about {wanted} open files, but the limit is {hard} (ulimit -Hn): raise it, or use "
            "fewer policies, actors or vector envs (--num-policies, --actors, --vector-envs-per-actor)"
        )
    target = max(wanted, COMFORTABLE if hard == resource.RLIM_INFINITY else min(COMFORTABLE, hard))
    if soft != resource.RLIM_INFINITY and soft < target:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))


@dataclass(frozen=True)
class Estimate:
    """Estimated memory of a run. needed, certain: place (HOST or the name of a GPU) -> bytes."""

    packs: tuple[PackBytes, ...]
    needed: Mapping[str, int]
    certain: Mapping[str, int]
    """Part of `needed` that is nearly exact: rollouts, replay, weights, parked states and mailboxes."""


def memory_notes(resolved: ResolvedRun) -> list[str]:
    """Return a warning with a remedy for each place (HOST or a GPU) whose memory is possibly too small for the run."""
    found, notes = estimate(resolved), []
    for place, size in found.needed.items():
        on_host = place == HOST
        there = host_memory().available if on_host else _device_bytes(place)
        if size > NEARLY_ALL * there:
            where = (
                f"memory, and {_gib(there)} are available"
                if on_host
                else f"memory on {place}, which has {_gib(there)}"
            )
            notes.append(f"warning: this run needs about {_gib(size)} of {where} ({_parts(found)}): {REMEDY}")
    return notes


def check_memory(resolved: ResolvedRun) -> None:
    """Raise ConfigError if `Estimate.certain` exceeds the memory of the machine or of a GPU."""
    found = estimate(resolved)
    for place, size in found.certain.items():
        there = host_memory().total if place == HOST else _device_bytes(place)
        if size > there:
            where = "into memory" if place == HOST else f"on {place}"
            needs = f"it needs at least {_gib(size)} of {_gib(there)}"
            raise ConfigError(f"this run cannot fit {where}: {needs} ({_parts(found)}): {REMEDY}")


def describe_rows(resolved: ResolvedRun) -> list[str]:
    """Describe the memory of a row of a device simulator, and the number of rows that fit.

    Empty if the environment is not a device simulator.
    """
    if not resolved.spec.simulator:
        return []
    plan = resolved.plan.packs[0]
    # Compare large numbers of rows. With few rows, a CPU may update several policies together, which takes more memory.
    few, many = (replace(plan, envs_per_policy=n * MANY_ROWS) for n in (1, 2))
    size, size_of_many = (pack_bytes(resolved.config, resolved.spec, one).total for one in (few, many))
    of_row = (size_of_many - size) / few.rows
    there = host_memory().available if plan.device == "cpu" else _device_bytes(plan.device)
    fits = (NEARLY_ALL * there - (size - of_row * few.rows)) / of_row / plan.slots
    number = (
        f"; at most about {fits:,.0f} rows of each member fit into {_gib(there)}"
        if 0 < fits < math.inf
        else ""
    )
    steps = resolved.config.learner.rollout
    taken = f"a row takes at least {of_row / 1024:,.1f} KiB for {steps} steps and their update"
    return [f"{taken}, besides the simulator's own state{number}"]


def _device_bytes(device: str) -> float:
    """Return the memory of a GPU, such as `cuda:0`, in bytes. Infinite if this machine has no GPU."""
    if not torch.cuda.is_available():
        return math.inf
    return float(torch.cuda.get_device_properties(torch.device(device)).total_memory)


def _gib(size: float) -> str:
    return f"{size / GIB:,.1f} GiB"


def _parts(needed: Estimate) -> str:
    """Format the parts of an estimate of memory, the largest part first."""
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


def estimate(resolved: ResolvedRun) -> Estimate:
    """Estimate the memory of a run."""
    plans = resolved.plan.packs
    packs = tuple(pack_bytes(resolved.config, resolved.spec, plan) for plan in plans)
    plays = bool(resolved.config.evaluate_every_frames)
    needed, certain = Counter({HOST: SUPERVISOR_BYTES + EVALUATION_BYTES * plays}), Counter({HOST: 0})
    for plan, pack in zip(plans, packs, strict=True):
        place = HOST if plan.device == "cpu" else plan.device
        shared, kept = pack.parked + pack.mailboxes, pack.rollouts + pack.replay + pack.weights
        certain[HOST] += shared
        certain[place] += kept
        needed[HOST] += LEARNER_BYTES + shared + pack.actors + pack.environments
        needed[place] += kept + pack.update + CUDA_BYTES * (place != HOST)
    return Estimate(packs, needed, certain)


@dataclass(frozen=True)
class HostMemory:
    """Memory of the host, or of the cgroup that limits this process, in bytes."""

    total: int
    available: int
    """Free memory, and caches that the kernel can drop."""


def host_memory(info: Path = MEMORY_INFO, own: Path = OWN_CGROUPS, cgroups: Path = CGROUPS) -> HostMemory:
    """Read the memory of the machine, limited by all enclosing cgroups (v1 and v2).

    info: the file /proc/meminfo. own: file with the cgroups of this process. cgroups: folder of all cgroups.
    """
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
        return int(dict(line.split() for line in stat.read_text().splitlines()).get(name, 0))
    except OSError:
        return 0


@dataclass(frozen=True)
class PackBytes:
    """Memory of one learner and its actors, in bytes."""

    rollouts: int
    replay: int
    """Replay buffer. 0 for an algorithm without replay."""
    weights: int
    """Weights (all copies), gradients and moments of the policies in slots."""
    update: int
    """Temporary memory of one optimiser step: samples, and activations for the backward pass."""
    parked: int
    """Maximum memory of the members without a slot. (Initialised weights take no memory.)"""
    mailboxes: int
    environments: int
    """Memory of the environments, each with ENVIRONMENT_BYTES of its family, or SMALL_ENVIRONMENT_BYTES."""
    actors: int
    """Actor processes without their environments."""

    @property
    def total(self) -> int:
        """Sum of all fields."""
        return sum(getattr(self, part.name) for part in fields(self))


@one_thread()
def pack_bytes(config: Config, spec: EnvSpec, plan: PackPlan) -> PackBytes:
    """Estimate the memory of the learner and the actors of a pack."""
    net = build_net(spec, config.model, config.algorithm)
    dtype = compute_dtype(config.learner.precision, torch.device(plan.device), spec)
    numbers = sum(p.numel() for p in net.parameters())
    state = 4 * numbers * (1 + len(config.algorithm.optimizer.moments))
    # Float32: weights for inference, and gradients. A smaller dtype adds working weights, and gradients in this dtype.
    smaller = dtype.itemsize * numbers if dtype != torch.float32 else 0
    copies = 4 * numbers if not smaller else 2 * smaller
    on_device = plan.device != "cpu"
    if on_device and config.mode == "async":  # weights on their way to inference (algos/weights.py)
        copies += 2 * dtype.itemsize * numbers
    ways = packings_of(config, spec, plan)
    together = min(plan.slots, plan.parts) if ways == ("loop",) else plan.slots
    gradients = 1 if together == 1 else plan.slots
    if "bmm" in ways:
        compute_by_products(net)
    layouts, components, auxiliary = obs_layouts(spec), spec.action.components, config.algorithm.auxiliary
    replay = (
        0
        if auxiliary is None
        else auxiliary.replay.device_bytes(
            layouts,
            plan.vector_envs,
            plan.slots,
            plan.envs_per_policy,
            components,
            config.learner.rollout,
        )
    )
    steps = [(np.dtype(array.dtype), array.shape) for array in step_array_specs(spec).values()]
    # Inference batches that are captured as CUDA graphs use one more rollout.
    rollouts = rollouts_of(config, plan) + (on_device and not spec.simulator)
    family = config.env.partition("/")[0]
    return PackBytes(
        rollouts=rollouts * _rollout_bytes(spec, config.learner.rollout, plan.rows, net.state_size)
        + spec.simulator * plan.rows * _episode_bytes(spec, config.learner.rollout, net.state_size, on_device)
        + plan.vector_envs
        * plan.rows
        * _size(layout.stored for layout in layouts.values() if layout.stack > 1),
        replay=replay,
        weights=plan.slots * (state + copies) + gradients * (4 * numbers + smaller),
        update=together * _update_bytes(config, spec, plan, net, dtype)
        + on_device * OPTIMIZER_VECTORS * together * 4 * numbers,
        parked=(len(plan.members) - plan.slots) * state,
        mailboxes=plan.vector_envs * plan.rows * (_size(steps) + 4 * components),
        environments=plan.environments
        // spec.agents
        * ENVIRONMENT_BYTES.get(family, SMALL_ENVIRONMENT_BYTES),
        actors=plan.actors * ACTOR_BYTES,
    )


def rollouts_of(config: Config, plan: PackPlan) -> int:
    """Return the number of rollout buffers of a learner, without the spare buffer of CUDA graphs."""
    return max(plan.vector_envs, 1) + (2 * plan.vector_envs_per_batch if config.mode == "async" else 0)


def _rollout_bytes(spec: EnvSpec, steps: int, rows: int, state_size: int) -> int:
    sizes = {"action": spec.action.components, "state": state_size}
    total = rows * sum(
        (layout.history + steps + 1) * layout.kept[0].itemsize * math.prod(layout.kept[1])
        for layout in obs_layouts(spec).values()
    )
    for field in FIELDS.values():
        width = 1 if field.dtype == "bool" else 4
        total += width * math.prod(field.shape(steps, rows, sizes))
    last_state = 0 if spec.simulator else 4 * rows * state_size
    return total + last_state


def _episode_bytes(spec: EnvSpec, steps: int, state_size: int, recorded: bool) -> int:
    """Return the bytes of a row of a device simulator without its rollout.

    Included: the critic's values after time limits, the last observation and recurrent state before a time limit, and
    the sums of the episode. recorded: True if inference batches are captured as CUDA graphs, which need static inputs.
    """
    last = _size(layout.kept for layout in obs_layouts(spec).values())
    given = recorded * (2 * last + GIVEN_BYTES)
    return 4 * steps + last + 4 * state_size + 8 + ROUND_BYTES + given


def _size(arrays: Iterable[tuple[torch.dtype | np.dtype[Any], tuple[int, ...]]]) -> int:
    """Return the total bytes of arrays of these dtypes and shapes."""
    return sum(dtype.itemsize * math.prod(shape) for dtype, shape in arrays)


def _update_bytes(config: Config, spec: EnvSpec, plan: PackPlan, net: PolicyNet, dtype: torch.dtype) -> int:
    """Return the temporary bytes of an optimiser step of one policy: observations and activations."""
    batch = plan.batch_rows * config.learner.rollout
    parts = 1 if config.algorithm.learns_per_vector_env else config.learner.minibatches
    stored = _size(layout.stored for layout in obs_layouts(spec).values())
    kept = _kept_for_backward(spec, net, dtype)
    copies = 2 if parts > 1 else 1
    auxiliary = config.algorithm.auxiliary
    replayed = 0 if auxiliary is None else auxiliary.replay.drawn_steps(batch)
    return batch * (stored * copies + (stored + kept) // parts) + replayed * (stored + kept)


def _kept_for_backward(spec: EnvSpec, net: PolicyNet, dtype: torch.dtype) -> int:
    """Measure the bytes per sample that autograd keeps for the backward pass."""
    weights = {p.data_ptr() for p in net.parameters()}
    kept: dict[int, int] = {}

    def keep(x: torch.Tensor) -> torch.Tensor:
        if x.data_ptr() not in weights:
            kept[x.data_ptr()] = x.numel() * (dtype.itemsize if x.is_floating_point() else x.element_size())
        return x

    samples = 2
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        net(*blank_inputs(spec, net.state_size, samples))
    return sum(kept.values()) // samples
