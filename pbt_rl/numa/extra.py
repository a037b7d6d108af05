"""Declares what finds the NUMA nodes of this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pbt_rl.plan import Node


def NUMA_NODES(gpus: int) -> tuple[Node, ...]:
    """Return the nodes, with the GPUs beside each; empty unless there are two or more. gpus: that CUDA shows."""
    from pbt_rl.numa.nodes import nodes_here  # noqa: PLC0415 - actors read this module

    return nodes_here(gpus)
