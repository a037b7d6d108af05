"""Populations over the nodes of a cluster: `--nodes`."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from pbt_rl.nodes.options import NodesOptions

if TYPE_CHECKING:
    from pbt_rl.config import Config
    from pbt_rl.run.train import Cluster

NEEDS = ("pbt_rl.turns",)
FIELDS = NodesOptions
"""Options of a run."""


def CONNECT(config: Config) -> AbstractContextManager[Cluster] | None:
    """Connect to the cluster that --nodes names; None without that. Raises ConfigError."""
    if not config.group(NodesOptions).nodes:
        return None
    from pbt_rl.nodes.train import connected  # noqa: PLC0415 - an extra is imported when it is used

    return connected(config)


ASKED = ("train --env toy/identity --nodes ray",)
"""Command lines that ask for it."""
