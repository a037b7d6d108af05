"""Declares what finds the NUMA nodes of this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pbt_rl.plan.machine import CoresBeside


def CORES_BESIDE(gpus: int) -> CoresBeside:
    """Return what says which cores lie beside a device. gpus: that CUDA shows."""
    from pbt_rl.numa.nodes import nodes_here  # noqa: PLC0415 - actors read this module

    return nodes_here(gpus).cores_beside
