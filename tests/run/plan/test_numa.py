"""NUMA nodes."""

import os
from types import SimpleNamespace

import pytest
import torch

from pbt_rl.config import Config
from pbt_rl.run.plan import Machine, make_plan
from pbt_rl.run.plan.numa import Node, Nodes, numa_nodes


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


def test_nodes_have_the_usable_cores_and_the_gpus_beside_them(two_nodes):
    addresses = ("0000:3b:00.0", "0000:5e:00.0", "0000:86:00.0", "0000:ff:00.0")
    nodes = numa_nodes(addresses, two_nodes, two_nodes)
    assert nodes == (Node((0, 1, 4, 5), (1,)), Node((2, 3, 6), (0,)))
    assert [Nodes(nodes).beside(d) for d in ("cuda:0", "cuda:1", "cuda:2", "cpu")] == [
        nodes[1],
        nodes[0],
        None,
        None,
    ]


def test_one_node_is_none(two_nodes, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1})
    assert numa_nodes(("0000:5e:00.0",), two_nodes, two_nodes) == ()
    assert numa_nodes((), two_nodes / "missing", two_nodes) == ()


def test_addresses_of_gpus_are_those_of_the_kernel(two_nodes, monkeypatch):
    properties = [SimpleNamespace(pci_domain_id=0, pci_bus_id=b, pci_device_id=0) for b in (0x3B, 0x5E)]
    monkeypatch.setattr("pbt_rl.run.plan.numa.NODES", two_nodes)
    monkeypatch.setattr("pbt_rl.run.plan.numa.PCI_DEVICES", two_nodes)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties[index])
    here = Machine.here()
    assert [here.cores_beside([device], [1]) for device in ("cuda:0", "cuda:1")] == [
        [(2, 3, 6)],
        [(0, 1, 4, 5)],
    ]

    def too_old(_index):
        raise RuntimeError("The NVIDIA driver on your system is too old")

    monkeypatch.setattr(torch.cuda, "get_device_properties", too_old)
    here = Machine.here()
    assert (here.gpus, here.cores_beside(["cuda:0"], [1])) == (2, [()]), (
        "a learner says what is wrong with its GPU, in one line"
    )


def planned(policies, machine, **options):
    return make_plan(Config("toy/x", num_policies=policies, **options), machine)


def test_actors_stay_beside_their_gpu_if_the_cores_there_are_enough():
    left, right = Node(tuple(range(8)), (0, 1)), Node(tuple(range(8, 16)), (2,))
    beside = Nodes((left, right)).cores_beside
    plan = planned(3, Machine(16, 3, beside), actors=12)
    assert [p.cores for p in plan.packs] == [left.cpus, left.cpus, right.cpus]
    one = planned(1, Machine(16, 1, beside))
    assert [p.cores for p in one.packs] == [()], "16 actors do not fit on half of the cores"
    assert planned(3, Machine(16, 3, beside), devices="cpu").packs[0].cores == ()
    assert [p.cores for p in planned(1, Machine(16, 1, beside), mode="serial").packs] == [()]
