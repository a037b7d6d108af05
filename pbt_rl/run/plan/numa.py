"""The NUMA nodes of this machine, as the kernel tells them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pbt_rl.run.plan.machine import number_in

NODES = Path("/sys/devices/system/node")
PCI_DEVICES = Path("/sys/bus/pci/devices")


@dataclass(frozen=True)
class Node:
    """A NUMA node: cores and GPUs that reach the same memory at full speed."""

    cpus: tuple[int, ...]
    """Numbers of the cores that this process may use."""
    gpus: tuple[int, ...]


@dataclass(frozen=True)
class Nodes:
    """Those of a machine; none if they are unknown or if there is one only."""

    nodes: tuple[Node, ...] = ()

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


def nodes_here(gpus: int) -> Nodes:
    """Return the nodes, with the GPUs beside each."""
    if not gpus or not numa_nodes((), NODES, PCI_DEVICES):
        return Nodes()  # GPUs are asked for their addresses only if it matters: that starts their driver
    addresses = []
    for i in range(gpus):
        try:
            of: Any = torch.cuda.get_device_properties(i)
        except RuntimeError:  # counted by the driver, but not to be used: a learner says why (learner/gpu.py)
            return Nodes()
        known = hasattr(of, "pci_bus_id")  # newer versions of torch have it
        addresses.append(
            f"{of.pci_domain_id:04x}:{of.pci_bus_id:02x}:{of.pci_device_id:02x}.0" if known else ""
        )
    return Nodes(numa_nodes(tuple(addresses), NODES, PCI_DEVICES))


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
