"""The machine that a run is planned for: cores and GPUs."""

from __future__ import annotations

import ctypes
import math
import os
from dataclasses import dataclass
from pathlib import Path

from pbt_rl.errors import ConfigError

CORES = "PBT_RL_CORES"
"""Environment variable with the cores that a run may plan for, of those that its processes may use: a sweep sets it for
runs that share a CPU quota."""
OWN_CGROUPS = Path("/proc/self/cgroup")
CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Machine:
    """Processors that this process may use."""

    cpus: int
    gpus: int

    @classmethod
    def here(cls) -> Machine:
        """Count cores by affinity and cgroup quota, GPUs by torch."""
        import torch  # noqa: PLC0415 - only the parent and the learners may pay for it

        return cls(available_cpus(), usable_gpus(torch.cuda.device_count()))


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
