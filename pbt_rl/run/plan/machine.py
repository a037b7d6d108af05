"""The machine that a run is planned for: cores, GPUs, and which of them lie side by side."""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pbt_rl.errors import ConfigError

CORES = "PBT_RL_CORES"
"""Environment variable with the cores that a run may plan for, of those that its processes may use: a sweep sets it for
runs that share a CPU quota."""
OWN_CGROUPS = Path("/proc/self/cgroup")
CGROUPS = Path("/sys/fs/cgroup")

NODES = Path("/sys/devices/system/node")
PCI_DEVICES = Path("/sys/bus/pci/devices")


@dataclass(frozen=True)
class Node:
    """A NUMA node: cores and GPUs that reach the same memory at full speed."""

    cpus: tuple[int, ...]
    """Numbers of the cores that this process may use."""
    gpus: tuple[int, ...]


@dataclass(frozen=True)
class Machine:
    """Processors that this process may use."""

    cpus: int
    gpus: int
    nodes: tuple[Node, ...] = ()
    """Its NUMA nodes; none if they are unknown or if there is one only."""

    @classmethod
    def here(cls) -> Machine:
        """Count cores by affinity and cgroup quota, GPUs by torch."""
        import torch  # noqa: PLC0415 - only the parent and the learners may pay for it

        gpus = usable_gpus(torch.cuda.device_count())
        return cls(available_cpus(), gpus, nodes_here(gpus))

    def cores_beside(self, devices: Sequence[str], actors: Sequence[int]) -> list[tuple[int, ...]]:
        """Return the cores of the node of each device, if they are enough for the actors of all its devices."""
        beside = [self.beside(device) for device in devices]
        cores: list[tuple[int, ...]] = []
        for node in beside:
            there = sum(n for n, other in zip(actors, beside, strict=True) if other is node)
            cores.append(node.cpus if node is not None and there <= len(node.cpus) else ())
        return cores

    def beside(self, device: str) -> Node | None:
        """Return the node of a device such as `cuda:0`; None for the CPU and if it is unknown."""
        kind, _, index = device.partition(":")
        if kind != "cuda":
            return None
        return next((node for node in self.nodes if int(index or 0) in node.gpus), None)


def usable_gpus(counted: int, library: str = "libcuda.so.1") -> int:
    """Return how many of the counted GPUs CUDA shows. Of GPUs that are cut into slices (MIG) it shows one slice only.

    counted: by torch, which asks the driver's management library; that starts nothing, but counts whole cards.
    """
    if counted < 2:
        return counted
    try:
        cuda, shown = ctypes.CDLL(library), ctypes.c_int(-1)
        if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(shown)):
            return counted  # a learner says why they cannot be used (learner/gpu.py)
    except (OSError, AttributeError):
        return counted
    return min(counted, shown.value)


def available_cpus(own: Path = OWN_CGROUPS, cgroups: Path = CGROUPS) -> int:
    """Return the cores that this process may use: its affinity, limited by the CPU quotas of all cgroups around it, and
    by `CORES`. Raises ConfigError if that is no number of cores.
    """
    given = os.environ.get(CORES, "")
    if given and not (given.isdecimal() and int(given)):
        raise ConfigError(f"{CORES}={given} cannot be used: give a whole number of cores, or unset it")
    limits = [_cpu_quota(folder) for folder in cgroups_around("cpu", own, cgroups)]
    limits.append(float(given) if given else math.inf)
    return max(1, math.floor(min(len(os.sched_getaffinity(0)), *limits) + 0.01))


def _cpu_quota(folder: Path) -> float:
    """Return the cores that a cgroup (v2 or v1) may use on average; infinity without a quota."""
    try:
        quota, period = (folder / "cpu.max").read_text().split()
    except (OSError, ValueError):
        quota, period = (str(number_in(folder / f"cpu.cfs_{name}_us")) for name in ("quota", "period"))
    return math.inf if quota in ("max", "-1") else float(quota) / float(period)


def number_in(path: Path) -> int:
    """Return the number in a file of the kernel; -1, which the kernel writes for unknown, if there is none."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return -1


def cgroups_around(controller: str, own: Path, cgroups: Path) -> set[Path]:
    """Return the folders of this process's cgroup that has a controller, and of those around it.

    In a container only the top exists.
    """
    found = {cgroups, cgroups / controller}
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return found
    for _, controllers, path in (line.split(":", 2) for line in lines):
        if controllers and controller not in controllers.split(","):
            continue
        top = cgroups / controller if controllers else cgroups
        here = Path(path.lstrip("/"))
        found |= {top / part for part in (here, *here.parents)}
    return found


def numa_nodes(gpu_addresses: tuple[str, ...], nodes: Path, pci: Path) -> tuple[Node, ...]:
    """Return the nodes that have cores for this process; empty unless there are two or more.

    gpu_addresses: PCI address of each GPU, such as `0000:3b:00.0`; a GPU whose node is unknown belongs to none.
    nodes, pci: folders of the kernel.
    """
    usable = os.sched_getaffinity(0)
    places = [number_in(pci / address / "numa_node") for address in gpu_addresses]
    found = []
    for folder in sorted(nodes.glob("node[0-9]*"), key=lambda path: int(path.name[4:])):
        cpus = tuple(sorted(_cpu_list(folder / "cpulist") & usable))
        gpus = tuple(i for i, place in enumerate(places) if place == int(folder.name[4:]))
        if cpus:
            found.append(Node(cpus, gpus))
    return tuple(found) if len(found) > 1 else ()


def nodes_here(gpus: int) -> tuple[Node, ...]:
    """Return the nodes, with the GPUs beside each; none if it does not matter."""
    import torch  # noqa: PLC0415 - as above

    if not gpus or not numa_nodes((), NODES, PCI_DEVICES):
        return ()  # GPUs are asked for their addresses only if it matters: that starts their driver
    addresses = []
    for i in range(gpus):
        try:
            of: Any = torch.cuda.get_device_properties(i)
        except RuntimeError:  # counted by the driver, but not to be used: a learner says why (learner/gpu.py)
            return ()
        known = hasattr(of, "pci_bus_id")  # newer versions of torch have it
        addresses.append(
            f"{of.pci_domain_id:04x}:{of.pci_bus_id:02x}:{of.pci_device_id:02x}.0" if known else ""
        )
    return numa_nodes(tuple(addresses), NODES, PCI_DEVICES)


def _cpu_list(path: Path) -> set[int]:
    """Read a list of cores such as `0-15,32-47`."""
    cpus: set[int] = set()
    try:
        for part in path.read_text().strip().split(","):
            first, _, last = part.partition("-")
            cpus |= set(range(int(first), int(last or first) + 1))
    except (OSError, ValueError):
        return set()
    return cpus
