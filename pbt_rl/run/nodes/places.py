"""Places for packs on cluster nodes, and the plan of a run. All functions except `cluster_run` are pure.

Each pack is planned with the cores of the smallest place, because a pack may have to continue in any place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pbt_rl.config import Config
from pbt_rl.errors import ConfigError
from pbt_rl.plan import Machine
from pbt_rl.run.nodes.backend import Node, Place
from pbt_rl.run.resolved import ResolvedRun


def packs_per_node(nodes: Mapping[str, Node], devices: str) -> int:
    """Return the maximum number of packs per node, for packs on CPUs.

    1, or more if `devices` (see `places_of`) lists more devices than the cluster has nodes.
    """
    cores = [int(node.cpus) for node in nodes.values() if not node.leaving]
    wanted, most = devices.count(",") + 1, 1
    while sum(min(most, count) for count in cores) < wanted and most < max(cores, default=0):
        most += 1
    return most


def places_of(nodes: Mapping[str, Node], devices: str, share: int = 1) -> list[Place]:
    """List the places for packs: GPUs, or on CPUs at most `share` places per node, each with at least a core.

    devices: value of --devices: `auto`, or a list with `cpu` or `cuda` once per pack. `auto`: GPUs if there are any,
    otherwise CPUs.
    share: `packs_per_node` at the start of the run.
    Nodes that will leave are excluded. Raises ConfigError if `devices` contains something else or mixes kinds.
    """
    kinds = {kind.strip() for kind in devices.split(",")}
    if not kinds <= {"auto"} and not kinds <= {"cpu"} and not kinds <= {"cuda"}:
        raise ConfigError(
            f"--devices {devices} cannot be used with --nodes: give auto, or cpu or cuda once per pack, such as cpu,cpu"
        )
    staying = {key: node for key, node in sorted(nodes.items()) if not node.leaving}
    gpus = "cuda" in kinds or ("auto" in kinds and any(node.gpus for node in staying.values()))
    places = []
    for key, node in staying.items():
        count = node.gpus if gpus else min(share, int(node.cpus))
        places += [Place(key, i, max(1.0, node.cpus // max(1, count)), gpus) for i in range(count)]
    return places


def cluster_run(config: Config, nodes: Mapping[str, Node]) -> ResolvedRun:
    """Plan a run in a cluster. Raises the errors of `resolve`.

    Raises ConfigError if the cluster has fewer places than --devices requires.
    """
    places = places_of(nodes, config.devices, packs_per_node(nodes, config.devices))
    slots = min(config.slots or config.members, config.members)
    wanted = min(len(places), slots) if config.devices == "auto" else len(config.devices.split(","))
    if not places or wanted > len(places):
        address = config.nodes
        kind = (
            "GPU" if "cuda" in config.devices else "node with a core" if config.devices == "auto" else "core"
        )
        raise ConfigError(
            f"--nodes {address}: the cluster has {len(places)} places for packs (one per {kind}), and "
            f"--devices {config.devices} needs {max(1, wanted)}: add nodes, or list fewer devices"
        )
    gpu = places[0].gpu
    machine = Machine(int(min(place.cpus for place in places)) * wanted, wanted if gpu else 0)
    names = [f"cuda:{i}" if gpu else "cpu" for i in range(wanted)]
    resolved = ResolvedRun.resolve(replace(config, devices=",".join(names)), machine)
    device = "cuda:0" if gpu else "cpu"  # only one GPU is visible in a node worker
    packs = tuple(replace(pack, device=device) for pack in resolved.plan.packs)
    plan = replace(resolved.plan, packs=packs)
    return replace(resolved, config=config, plan=plan, spread=True)


def free_places(places: Sequence[Place], taken: Sequence[Place], shunned: str) -> list[Place]:
    """List the free places. Places on nodes with the fewest packs are first.

    shunned: id of the node to use last, or an empty text.
    """
    used = {(place.node, place.index) for place in taken}
    load = {place.node: 0 for place in places}
    for place in taken:
        load[place.node] = load.get(place.node, 0) + 1
    free = [place for place in places if (place.node, place.index) not in used]
    return sorted(free, key=lambda place: (place.node == shunned, load[place.node]))
