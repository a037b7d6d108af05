"""Places of a cluster, and plans over them."""

import pytest

from pbt_rl.config import Config
from pbt_rl.errors import ConfigError
from pbt_rl.run.nodes.backend import Node, Place
from pbt_rl.run.nodes.places import cluster_run, free_places, packs_per_node, places_of


def nodes(**kinds):
    return {name: Node(name, *kind) for name, kind in kinds.items()}


def config(**options):
    return Config(env="toy/shaped", nodes="ray", **options)


def test_every_gpu_is_a_place_or_every_node_if_there_are_none():
    cpu = nodes(b=(4.0, 0), a=(8.0, 0), head=(0.0, 0))
    assert places_of(cpu, "auto") == [Place("a", 0, 8.0), Place("b", 0, 4.0)]
    mixed = nodes(a=(8.0, 2), b=(4.0, 0))
    assert places_of(mixed, "auto") == [Place("a", 0, 4.0, gpu=True), Place("a", 1, 4.0, gpu=True)]
    assert [place.node for place in places_of(mixed, "cpu")] == ["a", "b"]
    assert places_of(cpu, "cuda") == []
    assert places_of({"a": Node("a", 4.0, 0, leaving=True)}, "auto") == []


def test_packs_share_nodes_if_more_are_asked_for():
    one, two = nodes(a=(5.0, 0)), nodes(a=(8.0, 0), b=(1.0, 0))
    for devices, packs in (("auto", 1), ("cpu", 1), ("cpu,cpu", 2), ("cpu,cpu,cpu", 3)):
        assert packs_per_node(one, devices) == packs
    assert places_of(one, "cpu,cpu", 2) == [Place("a", 0, 2.0), Place("a", 1, 2.0)]
    assert packs_per_node(two, "cpu,cpu") == 1, "each has its own"
    three = places_of(two, "cpu,cpu,cpu", packs_per_node(two, "cpu,cpu,cpu"))
    assert three == [Place("a", 0, 4.0), Place("a", 1, 4.0), Place("b", 0, 1.0)]
    plan = cluster_run(config(num_policies=4, devices="cpu,cpu"), nodes(a=(4.0, 0))).plan
    assert [(pack.members, pack.actors) for pack in plan.packs] == [((0, 2), 2), ((1, 3), 2)]


def test_a_plan_fits_the_smallest_node_and_has_no_more_packs_than_members():
    plan = cluster_run(config(num_policies=6), nodes(a=(8.0, 0), b=(4.0, 0))).plan
    assert [pack.members for pack in plan.packs] == [(0, 2, 4), (1, 3, 5)]
    assert plan.cpus == 8
    assert {(pack.device, pack.threads, pack.actors) for pack in plan.packs} == {("cpu", 2, 2)}
    plan = cluster_run(config(num_policies=4), nodes(a=(8.0, 2), b=(8.0, 1))).plan
    assert [pack.device for pack in plan.packs] == ["cuda:0"] * 3
    three = nodes(a=(2.0, 0), b=(2.0, 0), c=(2.0, 0))
    assert len(cluster_run(config(num_policies=2), three).plan.packs) == 2
    assert len(cluster_run(config(num_policies=4, devices="cpu,cpu"), three).plan.packs) == 2


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        ("cuda:0,cuda:1", "--nodes"),
        ("cpu,cuda", "--nodes"),
        ("cpu,cpu,cpu", "2 places .*--devices cpu,cpu,cpu"),
        ("cuda", "0 places"),
    ],
)
def test_what_the_cluster_cannot_give_is_an_error(devices, message):
    with pytest.raises(ConfigError, match=message):
        cluster_run(config(devices=devices), nodes(a=(2.0, 0)))


def test_packs_spread_and_shun_the_node_that_failed():
    a0, a1, b0 = Place("a", 0, 1.0, gpu=True), Place("a", 1, 1.0, gpu=True), Place("b", 0, 1.0, gpu=True)
    assert free_places([a0, a1, b0], [a0], "") == [b0, a1]
    assert free_places([a0, a1, b0], [a0], "b") == [a1, b0]
