"""Options of a run over several machines."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from pbt_rl.errors import require
from pbt_rl.options import option


def _names_cluster(nodes: str) -> bool:
    """Whether --nodes names a cluster by its address: what its processes answer is unpickled."""
    return ":" in nodes and nodes != "ray:auto"


@dataclass(frozen=True)
class NodesOptions:
    """Where learners and actors run, and what is kept of them."""

    nodes: str = option(
        "",
        test=lambda text: re.fullmatch(r"(ray(:\S+)?)?", text) is not None,
        remedy="`ray` for a cluster of this machine alone, or `ray:ADDRESS`",
        may_change=True,
        leads_out=_names_cluster,
    )
    """Train over the nodes of a Ray cluster, one pack per GPU or per node without one: `ray:auto`, `ray:HOST:PORT`, or
    `ray`, which starts a cluster of this machine alone. With --mode serial there is one process per pack. Needs pip
    install 'pbt-rl[ray]'. docs/nodes.md."""
    copy_seconds: float = option(30.0, above=0, may_change=True)
    """With --nodes: this process has copies of all members that are at most this old; if a node is lost, its members go
    on from there."""

    def check_whole(self, config: Any) -> None:
        """Raise ConfigError if members are evaluated on purpose: that is done on one machine."""
        episodes = config.pbt.evaluate_episodes
        require(
            not episodes or not self.nodes,
            "pbt.evaluate-episodes",
            episodes,
            "members are evaluated on one machine, by their return: leave out --nodes and --matchup.objective",
        )
