"""Places of a cluster, and plans over them."""

import pytest

from pbt_rl.config import Config
from pbt_rl.errors import ConfigError
from pbt_rl.nodes.engine import Node, Place
from pbt_rl.nodes.plan import cluster_run, free_places, packs_per_node, places_of


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


def test_packs_share_nodes_if_more_are_asked_for():
    one, two = nodes(a=(5.0, 0)), nodes(a=(8.0, 0), b=(1.0, 0))
    assert [packs_per_node(one, devices) for devices in ("auto", "cpu", "cpu,cpu", "cpu,cpu,cpu")] == [
        1,
        1,
        2,
        3,
    ]
    assert places_of(one, "cpu,cpu", 2) == [Place("a", 0, 2.0), Place("a", 1, 2.0)]
    assert packs_per_node(two, "cpu,cpu") == 1, "each has its own"
    assert places_of(two, "cpu,cpu,cpu", packs_per_node(two, "cpu,cpu,cpu")) == [
        Place("a", 0, 4.0),
        Place("a", 1, 4.0),
        Place("b", 0, 1.0),
    ]
    plan = cluster_run(config(num_policies=4, devices="cpu,cpu"), nodes(a=(4.0, 0))).plan
    assert [(pack.members, pack.actors) for pack in plan.packs] == [((0, 2), 2), ((1, 3), 2)]


def test_a_node_that_leaves_has_no_place():
    assert places_of({"a": Node("a", 4.0, 0, leaving=True)}, "auto") == []


def test_a_plan_fits_the_smallest_node():
    plan = cluster_run(config(num_policies=6), nodes(a=(8.0, 0), b=(4.0, 0))).plan
    assert [pack.members for pack in plan.packs] == [(0, 2, 4), (1, 3, 5)]
    assert plan.cpus == 8
    assert {(pack.device, pack.threads, pack.actors) for pack in plan.packs} == {("cpu", 2, 2)}


def test_a_pack_per_gpu_sees_its_own_alone():
    plan = cluster_run(config(num_policies=4), nodes(a=(8.0, 2), b=(8.0, 1))).plan
    assert [pack.device for pack in plan.packs] == ["cuda:0"] * 3


def test_no_more_packs_than_members_and_as_many_as_asked_for():
    three = nodes(a=(2.0, 0), b=(2.0, 0), c=(2.0, 0))
    assert len(cluster_run(config(num_policies=2), three).plan.packs) == 2
    assert len(cluster_run(config(num_policies=4, devices="cpu,cpu"), three).plan.packs) == 2


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        ("cuda:0,cuda:1", "cannot be used with --nodes"),
        ("cpu,cuda", "cannot be used with --nodes"),
        ("cpu,cpu,cpu", "has 2 places for packs .one per core., and --devices cpu,cpu,cpu asks for 3"),
        ("cuda", "has 0 places for packs .one per GPU."),
    ],
)
def test_what_the_cluster_cannot_give_is_an_error(devices, message):
    with pytest.raises(ConfigError, match=message):
        cluster_run(config(devices=devices), nodes(a=(2.0, 0)))


def test_an_empty_cluster_is_an_error():
    with pytest.raises(ConfigError, match="0 places"):
        cluster_run(config(), {})


def test_packs_spread_and_shun_the_node_that_failed():
    a0, a1, b0 = Place("a", 0, 1.0, gpu=True), Place("a", 1, 1.0, gpu=True), Place("b", 0, 1.0, gpu=True)
    assert free_places([a0, a1, b0], [a0], "") == [b0, a1]
    assert free_places([a0, a1, b0], [a0], "b") == [a1, b0]
