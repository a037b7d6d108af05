"""The machine: cores under quotas, and GPUs."""

import ctypes
import os

import pytest

from pbt_rl.errors import ConfigError
from pbt_rl.plan import available_cpus
from pbt_rl.plan.machine import CORES, usable_gpus

QUOTAS = (("150000", 1), ("350000", 3), ("20000", 1), ("unlimited", 6), ("9900000", 6))
"""Microseconds of each 100,000, and cores of a machine of six."""


@pytest.fixture
def six_cores(monkeypatch):
    """Affinity of six cores."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(6)))


@pytest.mark.usefixtures("six_cores")
@pytest.mark.parametrize("group", ["", "outer", "outer/inner"])
def test_cores_are_affinity_cut_by_the_quotas_of_all_cgroups_around(tmp_path, group):
    """A service of systemd and a job of Slurm have theirs in a cgroup of their own, not at the top."""
    own = tmp_path / "own"
    own.write_text("0::/outer/inner\n")
    (tmp_path / "outer/inner").mkdir(parents=True)
    (tmp_path / "outer/cpu.max").write_text("max 100000\n")
    for quota, cpus in QUOTAS:
        text = quota.replace("unlimited", "max")
        (tmp_path / group / "cpu.max").write_text(f"{text} 100000\n")
        assert available_cpus(own, tmp_path) == cpus


@pytest.mark.usefixtures("six_cores")
@pytest.mark.parametrize("group", ["", "outer"])
def test_so_are_they_with_cgroups_of_version_1(tmp_path, group):
    own = tmp_path / "own"
    own.write_text("4:memory:/elsewhere\n2:cpu,cpuacct:/outer\n0::/\n")
    (tmp_path / "cpu" / group).mkdir(parents=True)
    for quota, cpus in QUOTAS:
        text = quota.replace("unlimited", "-1")
        (tmp_path / "cpu" / group / "cpu.cfs_quota_us").write_text(f"{text}\n")
        (tmp_path / "cpu" / group / "cpu.cfs_period_us").write_text("100000\n")
        assert available_cpus(own, tmp_path) == cpus


@pytest.mark.usefixtures("six_cores")
def test_a_sweep_leaves_each_of_its_runs_a_part(tmp_path, monkeypatch):
    for cores, planned in (("2", 2), ("60", 6), ("", 6)):
        monkeypatch.setenv(CORES, cores)
        assert available_cpus(tmp_path / "own", tmp_path) == planned
    for wrong in ("0", "some", "-1", "1.5"):
        monkeypatch.setenv(CORES, wrong)
        with pytest.raises(ConfigError, match=f"PBT_RL_CORES={wrong} "):
            available_cpus(tmp_path / "own", tmp_path)


@pytest.mark.parametrize(
    ("counted", "code", "shown", "usable"),
    [(8, 0, 1, 1), (8, 0, 8, 8), (2, 3, 0, 2), (1, 0, 0, 1), (0, 0, 0, 0)],
)
def test_gpus_that_cuda_does_not_show_are_not_counted(monkeypatch, counted, code, shown, usable):
    """As of cards that are cut into slices, of which CUDA shows one."""

    class Cuda:
        def cuInit(self, flags):
            assert flags == 0
            return code

        def cuDeviceGetCount(self, into):
            into._obj.value = shown
            return 0

    monkeypatch.setattr(ctypes, "CDLL", lambda _: Cuda())
    assert usable_gpus(counted) == usable


def test_without_cudas_library_torch_is_believed():
    assert usable_gpus(2, "no-such-library.so") == 2
