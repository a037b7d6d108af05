"""Timing and profiles of calls on a GPU, for gpu_stages.py."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

LONGEST = 12
"""Number of kernels of a profile that are listed."""


def timed(work: Callable[[], object], finish: Callable[[], None], tries: int) -> tuple[float, float]:
    """Return the medians of `timed_once` over `tries` calls. finish: function that waits for the device."""
    for _ in range(3):
        work()
    finish()
    taken = [timed_once(work, finish) for _ in range(tries)]
    return statistics.median(whole for whole, _ in taken), statistics.median(cpu for _, cpu in taken)


def timed_once(work: Callable[[], object], finish: Callable[[], None]) -> tuple[float, float]:
    """Call `work`. Return milliseconds until the device has finished, and CPU-milliseconds of this thread."""
    began, used = time.perf_counter(), time.thread_time()
    work()
    cpu = time.thread_time() - used
    finish()
    return (time.perf_counter() - began) * 1e3, cpu * 1e3


def device_calls(device: torch.device, work: Callable[[], object]) -> dict[str, Any]:
    """Profile a call. Return counts of kernels, copies and syncs, device milliseconds, and the longest kernels.

    Empty without a GPU. The counts of an empty profile are subtracted, because the profiler itself waits for the device
    at the end.
    """
    if device.type != "cuda":
        return {}
    nothing, events = counted(_profiled(lambda: None)), _profiled(work)
    numbers = {name: max(0.0, value - nothing[name]) for name, value in counted(events).items()}
    return numbers | {"longest": longest(events)}


def _profiled(work: Callable[[], object]) -> Sequence[Any]:
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        work()
    return list(profiled.events())


def _on_device(events: Sequence[Any]) -> list[Any]:
    """Return the events of a profile on the device, without waits such as `Context Sync`."""
    return [e for e in events if e.device_type.name == "CUDA" and not e.name.endswith(" Sync")]


def counted(events: Sequence[Any]) -> dict[str, float]:
    """Count the kernels, copies and syncs of a profile."""
    on_device = _on_device(events)
    copies = [e for e in on_device if "Memcpy" in e.name or "Memset" in e.name]
    waits = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
    return {
        "kernels": float(len(on_device) - len(copies)),
        "copies": float(len(copies)),
        "syncs": float(sum(e.name in waits for e in events)),
        "device ms": sum(e.device_time for e in on_device) / 1e3,
    }


def longest(events: Sequence[Any]) -> list[str]:
    """List the kernels with the longest total time: milliseconds, number of calls, name."""
    spent: dict[str, list[float]] = {}
    for event in _on_device(events):
        spent.setdefault(event.name, []).append(event.device_time / 1e3)
    order = sorted(spent, key=lambda name: -sum(spent[name]))[:LONGEST]
    return [f"{sum(spent[name]):.3f} ms in {len(spent[name])}: {name[:100]}" for name in order]
