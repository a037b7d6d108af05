"""The cluster that `--nodes` names, as `run.train` uses it. Only here is Ray imported."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pbt_rl.actors.store import StatePool
from pbt_rl.config import Config
from pbt_rl.errors import ConfigError
from pbt_rl.run.memory import Matchups, Start
from pbt_rl.run.nodes.fleet import NodeFleet
from pbt_rl.run.nodes.plan import cluster_run
from pbt_rl.run.resolved import ResolvedRun

if TYPE_CHECKING:
    from pbt_rl.run.nodes.engine import Engine


@dataclass(frozen=True)
class OverNodes:
    """A cluster as `run.train` uses it."""

    engine: Engine

    def resolve(self, config: Config) -> ResolvedRun:
        """Plan a run. Raises ConfigError or EnvSetupError."""
        return cluster_run(config, self.engine.nodes())

    def fleet(self, resolved: ResolvedRun, start: Start, matchups: Matchups, pool: StatePool) -> NodeFleet:
        """Start its processes."""
        return NodeFleet(self.engine, resolved, start, matchups, pool)


@contextlib.contextmanager
def connected(config: Config) -> Iterator[OverNodes]:
    """Connect to the cluster that --nodes names, or start one. Raises ConfigError."""
    nodes = config.nodes
    try:
        from pbt_rl.run.nodes.ray_engine import RayEngine  # noqa: PLC0415 - an extra, of 300 MB
    except ImportError as error:
        raise ConfigError(
            f"--nodes {nodes} needs Ray, which is not installed: pip install 'pbt-rl[ray]'"
        ) from error
    engine = RayEngine(nodes.removeprefix("ray").removeprefix(":") or None)
    try:
        yield OverNodes(engine)
    finally:
        engine.close()
