"""Multi-agent environments as one vector env: every agent of every environment is a row.

A *matchup* is a permutation (environment, agent) -> row. Each row belongs to a fixed policy, so the matchup determines
which policies play each other. The number of rows of a policy does not depend on the matchup.

If an agent leaves before the others (dead, finished), its last transition is marked `terminated` or `truncated`. The
agent's row then waits until the environment is reset for all agents. A waiting row sets `first` in every step, so
learners mask these steps. The episodes of all agents are reported together, at the end of the shared episode.

A waiting row cannot learn from a reward that its agent gets after leaving. After the first such reward, the adapter of
PettingZoo (tables.py) changes its behaviour: in all later episodes, agents that leave stay active until the shared
episode ends.

When the version of the matchup changes, all running episodes are truncated in the current step. Their returns bootstrap
from the last observation. These episodes are not reported, because they have no result. The next step resets every
environment with the new matchup.

A *table* (`Table`) is one environment with its agents.

Axes: R = E * S rows; E environments of S agents; A action components.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from pbt_rl.errors import EnvSetupError

from ..base import LARGEST_REWARD, EnvSpec, MatchupSource, ShapingSource, StepArrays, seeds_of
from ..conventions import ConventionWarnings
from ..episode_book import ROW, EpisodeBook, heartbeat_of, with_heartbeat
from ..shaping import unflatten


@dataclass(frozen=True)
class Scene:
    """Result of a reset or step of one environment, for each of its S agents.

    Keys `agent` are indices of agents, from 0 to S - 1.

    obs: agent -> name -> array. The row of a missing agent keeps its last observation, or gets zeros after a reset.
    active: [S] True for agents that take the next step. Other agents wait for the end of the episode.
    reward, terminated, truncated: [S] of the last transition, 0 and False after a reset. For agents that were not
    active, both flags are False, and the reward counts for the return but not for learning.
    objective: agent -> `true_objective`, if the environment returned it.
    stats: agent -> `episode_extra_stats`, if the environment returned them.
    info: info dict of one agent, as an example. The info dicts of all agents usually have equal keys.
    """

    obs: Mapping[int, Mapping[str, NDArray[Any]]]
    active: NDArray[np.bool_]
    reward: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    objective: Mapping[int, float] = field(default_factory=dict)
    stats: Mapping[int, Any] = field(default_factory=dict)
    info: Any = None


class Table(Protocol):
    """Protocol of an environment with S agents."""

    def describe(self) -> EnvSpec:
        """Return the spec of a row. Raises EnvSetupError for spaces that are unsupported or differ between agents."""

    def reset(self, seed: int | None) -> Scene:
        """Reset the environment and return its first scene. seed: None continues the random generator."""

    def advance(self, action: NDArray[Any]) -> Scene:
        """Take one step. The actions of inactive agents are ignored.

        action: [S, A] of the dtype `ActionSpec.dtype`. S: agents. A: action components.
        """

    def shape(self, agent: int, values: Mapping[str, Any]) -> None:
        """Set an agent's shaping values, which take effect at the next `reset`.

        agent: index of the agent.
        values: name -> number, or name -> mapping of the same kind.
        """

    def close(self) -> None:
        """Release the environment."""


@runtime_checkable
class Watched(Protocol):
    """Optional protocol of tables that detect bugs of their environment."""

    def watch(self, warnings: ConventionWarnings) -> None:
        """Set the receiver of warnings about bugs that raise no error. Called once, before `reset`."""


MakeTable = Callable[[], Table]
"""() -> new environment with S agents."""


def probe_with(make: MakeTable) -> EnvSpec:
    """Make an environment, close it and return its spec."""
    table = make()
    try:
        return table.describe()
    finally:
        table.close()


class MultiAgentVectorEnv:
    """Vector env of R rows in E = R / S environments of S agents. Only the first reset is seeded.

    Before `follow` is called, row e * S + s plays agent s of environment e. Raises EnvSetupError if R is not a multiple
    of S, or if two environments differ in agents, spaces or shaping.
    """

    def __init__(self, make: MakeTable, rows: int, seed: int, shaping: ShapingSource) -> None:
        self._tables: list[Table] = []
        self._heartbeat = heartbeat_of(shaping)
        try:
            self.spec = self._make(make, rows)
        except BaseException:
            self.close()
            raise
        self.rows = rows
        self._book = EpisodeBook(rows, shaping)
        plain = np.arange(rows, dtype=np.int64).reshape(-1, self.spec.agents)  # until `follow` is called
        self._matchups: MatchupSource = lambda: (0, plain)
        shape = plain.shape
        self._row_ES, self._version = plain, 0
        self._seeds: list[int] | None = seeds_of(seed, shape[0])
        self._over_E = np.zeros(shape[0], np.bool_)
        self._active_ES = np.zeros(shape, np.bool_)
        self._objective_R = np.full(rows, np.nan)
        self._stats_R: dict[int, Any] = {}
        self._warnings = ConventionWarnings(shaping, self.spec)
        if isinstance(first := self._tables[0], Watched):
            first.watch(self._warnings)

    def _make(self, make: MakeTable, rows: int) -> EnvSpec:
        """Make the environments and return their common spec."""
        self._tables.append(make())
        spec = self._tables[0].describe()
        if rows % spec.agents:
            raise EnvSetupError(
                f"{spec.env_id} has {spec.agents} agents, but {rows} rows are not a multiple of {spec.agents}. "
                f"Set --envs-per-vector-env to a multiple of {spec.agents}"
            )
        for _ in with_heartbeat(self._heartbeat, range(rows // spec.agents - 1)):
            self._tables.append(make())
        if any(table.describe() != spec for table in self._tables[1:]):
            raise EnvSetupError(
                f"{spec.env_id}: two environments differ in agents, spaces or shaping. Make all environments equal"
            )
        return spec

    def follow(self, matchups: MatchupSource) -> None:
        self._matchups = matchups

    def reset(self, out: StepArrays) -> None:
        self._assign_agents(out)
        for e in with_heartbeat(self._heartbeat, range(len(self._tables))):
            self._begin_episode(e, None if self._seeds is None else self._seeds[e], out)
        self._seeds = None
        self._write_episodes(out)

    def step(self, action: NDArray[Any], out: StepArrays) -> None:
        """Advance every row by one step. action: [R, A] of `spec.action.dtype`."""
        changed = self._matchups()[0] != self._version
        if changed and self._over_E.all():
            self._assign_agents(out)
            changed = False
        for e in range(len(self._tables)):
            if self._over_E[e]:
                self._begin_episode(e, None, out)
            else:
                self._advance(e, action[self._row_ES[e]], out)
            self._heartbeat[ROW] = e
        self._write_episodes(out)
        if changed:
            self._cut(out)

    def close(self) -> None:
        """Close every environment once, even if one of the environments raises an error."""
        with contextlib.ExitStack() as closing:
            while self._tables:
                closing.callback(self._tables.pop().close)

    def _assign_agents(self, out: StepArrays) -> None:
        self._version, self._row_ES = self._matchups()
        if out.agent is not None:
            out.agent[self._row_ES.ravel()] = np.arange(self.rows)

    def _cut(self, out: StepArrays) -> None:
        """Truncate all running episodes. These episodes are not reported, because they have no result."""
        running_R = self._row_ES[self._active_ES & ~self._over_E[:, None]]
        out.truncated[running_R] = ~out.first[running_R]
        self._over_E[:] = True

    def _begin_episode(self, e: int, seed: int | None, out: StepArrays) -> None:
        for agent, row in enumerate(self._row_ES[e].tolist()):
            values = self._book.open_episode(row)
            self._stats_R.pop(row, None)  # left by an episode that `_cut` truncated
            if self.spec.shaping:
                self._tables[e].shape(agent, unflatten(values))
        scene = self._tables[e].reset(seed)
        self._warnings.of_info(scene.info)
        self._warnings.of_shaping(lambda: self._tables[e].describe().shaping)
        if not scene.active.any():
            raise EnvSetupError(
                f"{self.spec.env_id} breaks its contract: no agent is active after reset(). Set its attribute agents"
            )
        self._over_E[e] = False
        self._active_ES[e] = scene.active
        rows = self._row_ES[e]
        self._objective_R[rows] = np.nan
        out.first[rows] = True
        out.reward[rows] = 0
        out.terminated[rows] = out.truncated[rows] = out.episode_done[rows] = False
        for agent, row in enumerate(rows.tolist()):
            for name, array in out.obs.items():
                array[row] = scene.obs[agent][name] if agent in scene.obs else 0

    def _advance(self, e: int, action_SA: NDArray[Any], out: StepArrays) -> None:
        scene, rows, was = self._tables[e].advance(action_SA), self._row_ES[e], self._active_ES[e].copy()
        if not (np.abs(scene.reward) < LARGEST_REWARD).all():
            raise EnvSetupError(
                f"{self.spec.env_id} breaks its contract: rewards must be finite, got {scene.reward.tolist()!r:.200}. "
                "Correct the environment"
            )
        self._warnings.of_info(scene.info)
        self._warnings.of_end(scene.info or {}, terminated=bool(scene.terminated[was].all()))
        for agent, arrays in scene.obs.items():
            for name, array in arrays.items():
                out.obs[name][rows[agent]] = array
        out.first[rows] = ~was
        out.reward[rows] = scene.reward * was
        out.terminated[rows] = scene.terminated & was
        out.truncated[rows] = scene.truncated & was & ~scene.terminated
        self._book.add(scene.reward, scene.reward, was, rows)
        for agent, objective in scene.objective.items():
            self._objective_R[rows[agent]] = objective
        self._stats_R |= {int(rows[agent]): stats for agent, stats in scene.stats.items()}
        self._active_ES[e] = scene.active
        self._over_E[e] = not scene.active.any()
        out.episode_done[rows] = self._over_E[e] & (self._book.length_R[rows] > 0)
        if self._over_E[e]:
            for row in rows.tolist():
                self._warnings.of_stats(out, row, self._stats_R.pop(row, None))
                self._warnings.of_objective(given=not np.isnan(self._objective_R[row]))

    def _write_episodes(self, out: StepArrays) -> None:
        given_R = self._objective_R
        self._book.write(out, np.where(np.isnan(given_R), self._book.raw_R, given_R))
