"""The machine: cores under quotas, and NUMA nodes."""

import ctypes
import os
from types import SimpleNamespace

import pytest
import torch

from pbt_rl.config import Config
from pbt_rl.errors import ConfigError
from pbt_rl.run.plan import Machine, available_cpus, make_plan
from pbt_rl.run.plan.machine import CORES, Node, numa_nodes, usable_gpus

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


@pytest.fixture
def two_nodes(tmp_path, monkeypatch):
    """Folders as the kernel has them: 8 cores on two nodes, a third node of memory alone, two GPUs and a stray one."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1, 2, 3, 4, 5, 6})
    for node, cpus in enumerate(("0-1,4-5", "2-3,6-7", "")):
        (tmp_path / f"node{node}").mkdir()
        (tmp_path / f"node{node}/cpulist").write_text(cpus + "\n")
    (tmp_path / "online").write_text("0-2\n")
    for address, node in (("0000:3b:00.0", 1), ("0000:5e:00.0", 0), ("0000:86:00.0", -1)):
        (tmp_path / address).mkdir()
        (tmp_path / address / "numa_node").write_text(f"{node}\n")
    return tmp_path


def test_nodes_have_the_usable_cores_and_the_gpus_beside_them(two_nodes, monkeypatch):
    addresses = ("0000:3b:00.0", "0000:5e:00.0", "0000:86:00.0", "0000:ff:00.0")
    nodes = numa_nodes(addresses, two_nodes, two_nodes)
    assert nodes == (Node((0, 1, 4, 5), (1,)), Node((2, 3, 6), (0,)))
    beside = [Machine(8, 2, nodes).beside(device) for device in ("cuda:0", "cuda:1", "cuda:2", "cpu")]
    assert beside == [nodes[1], nodes[0], None, None]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1})
    assert numa_nodes(("0000:5e:00.0",), two_nodes, two_nodes) == ()
    assert numa_nodes((), two_nodes / "missing", two_nodes) == ()


def test_addresses_of_gpus_are_those_of_the_kernel(two_nodes, monkeypatch):
    properties = [SimpleNamespace(pci_domain_id=0, pci_bus_id=b, pci_device_id=0) for b in (0x3B, 0x5E)]
    monkeypatch.setattr("pbt_rl.run.plan.machine.NODES", two_nodes)
    monkeypatch.setattr("pbt_rl.run.plan.machine.PCI_DEVICES", two_nodes)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties[index])
    here = Machine.here()
    assert here.cores_beside(["cuda:0"], [1]) == [(2, 3, 6)]
    assert here.cores_beside(["cuda:1"], [1]) == [(0, 1, 4, 5)]

    def too_old(_index):
        raise RuntimeError("The NVIDIA driver on your system is too old")

    monkeypatch.setattr(torch.cuda, "get_device_properties", too_old)
    here = Machine.here()
    assert (here.gpus, here.cores_beside(["cuda:0"], [1])) == (2, [()])


def planned(policies, machine, **options):
    return make_plan(Config("toy/x", num_policies=policies, **options), machine)


def test_actors_stay_beside_their_gpu_if_the_cores_there_are_enough():
    left, right = Node(tuple(range(8)), (0, 1)), Node(tuple(range(8, 16)), (2,))
    beside = (left, right)
    plan = planned(3, Machine(16, 3, beside), actors=12)
    assert [p.cores for p in plan.packs] == [left.cpus, left.cpus, right.cpus]
    one = planned(1, Machine(16, 1, beside))
    assert [p.cores for p in one.packs] == [()], "16 actors do not fit on half of the cores"
    assert planned(3, Machine(16, 3, beside), devices="cpu").packs[0].cores == ()
    assert [p.cores for p in planned(1, Machine(16, 1, beside), mode="serial").packs] == [()]
