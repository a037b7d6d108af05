"""Cores and GPUs of the machine."""

from __future__ import annotations

import ctypes
import math
import os
from dataclasses import dataclass
from pathlib import Path

from pbt_rl.errors import ConfigError

CORES = "PBT_RL_CORES"
"""Name of the environment variable with the number of cores to plan for. A sweep sets this variable for each run,
because runs may share a CPU quota."""
OWN_CGROUPS = Path("/proc/self/cgroup")
CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Machine:
    """Cores and GPUs that this process may use."""

    cpus: int
    gpus: int

    @classmethod
    def here(cls) -> Machine:
        """Count the cores and GPUs that this process may use (`available_cpus`, `usable_gpus`).

        Raises ConfigError for an invalid environment variable `CORES`.
        """
        import torch  # noqa: PLC0415 - slow, and not needed by actors

        return cls(available_cpus(), usable_gpus(torch.cuda.device_count()))


def usable_gpus(counted: int, library: str = "libcuda.so.1") -> int:
    """Return the number of GPUs that CUDA can use. With MIG, CUDA can use only one slice.

    counted: number of GPUs according to torch, which counts cards without initialising CUDA. This number is returned if
    it is below 2, or if CUDA cannot be initialised. library: file of the CUDA driver.
    """
    if counted < 2:
        return counted
    try:
        cuda, shown = ctypes.CDLL(library), ctypes.c_int(-1)
        if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(shown)):
            return counted  # the learner will report the error (learner/gpu.py)
    except (OSError, AttributeError):
        return counted
    return min(counted, shown.value)


def available_cpus(own: Path = OWN_CGROUPS, cgroups: Path = CGROUPS) -> int:
    """Return the number of cores that this process may use.

    This number, at least 1, is the minimum (rounded down) of: cores in the CPU affinity; CPU quotas of the process's
    cgroup and its ancestors; environment variable `CORES`. Raises ConfigError for an invalid value of this variable.
    own: file that lists the cgroups of this process. cgroups: folder of all cgroups.
    """
    given = os.environ.get(CORES, "")
    if given and not (given.isdecimal() and int(given)):
        raise ConfigError(f"{CORES}={given} cannot be used: give a whole number of cores, or unset it")
    limits = [_cpu_quota(folder) for folder in cgroups_around("cpu", own, cgroups)]
    limits.append(float(given) if given else math.inf)
    return max(1, math.floor(min(len(os.sched_getaffinity(0)), *limits) + 0.01))


def _cpu_quota(folder: Path) -> float:
    """Return the CPU quota of a cgroup (v2 or v1) in cores, or infinity without a quota."""
    try:
        quota, period = (folder / "cpu.max").read_text().split()
    except (OSError, ValueError):
        quota, period = (str(number_in(folder / f"cpu.cfs_{name}_us")) for name in ("quota", "period"))
    return math.inf if quota in ("max", "-1") else float(quota) / float(period)


def number_in(path: Path) -> int:
    """Read a number from a kernel file. Return -1 if the file cannot be read or contains no number."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return -1


def cgroups_around(controller: str, own: Path, cgroups: Path) -> set[Path]:
    """Return the folders of this process's cgroups and their ancestors, for a cgroup controller such as "cpu".

    own: file that lists the cgroups of this process. cgroups: folder of all cgroups.
    Some of the returned folders may not exist: in a container, often only the top folder exists.
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
