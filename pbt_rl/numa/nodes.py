"""The NUMA nodes of this machine, as the kernel tells them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from pbt_rl.plan import Node
from pbt_rl.plan.machine import number_in

NODES = Path("/sys/devices/system/node")
PCI_DEVICES = Path("/sys/bus/pci/devices")


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
    """Return the nodes, with the GPUs beside each."""
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
