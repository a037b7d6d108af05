"""PettingZoo environments as vector envs: the parallel API and the turn-based API (AEC).

In a turn-based game, one agent moves in each step, and all agents observe the board. An agent that waits for its turn
has an action mask of zeros, so its action is ignored and excluded from the loss. The observation "turn" of a waiting
agent is 0. Rewards are delivered in the step in which they occur. A reward that an agent gets while it waits reaches
the agent's last move through the returns.

All agents of a member share one policy, so their spaces must be equal.

Axes: S agents (in the order of `possible_agents`), A action components.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ..base import EnvSpec, ShapingSource, VectorEnv
from ..conventions import ConventionWarnings
from ..family import Kind
from ..user_values import attribute, check_distinct
from .multi_agent import MultiAgentVectorEnv, Scene
from .players import Agents, one_of


def table_of(env_id: str, env: Any) -> ParallelTable | TurnTable:
    """Wrap an environment of the parallel or turn-based API as a table (see `Table` in multi_agent.py).

    Raises EnvSetupError if the spaces of its agents differ or are unsupported.
    """
    if hasattr(env, "agent_iter") or hasattr(env, "agent_selection"):
        return TurnTable(env_id, env)
    return ParallelTable(env_id, env)


class _AgentTable:
    """Base class of the wrappers for the parallel API and for the turn-based API.

    Normally an agent becomes inactive when it leaves. This changes once an agent has got a reward after leaving: in all
    later episodes, agents that leave stay active until the shared episode ends.

    Masks [S] have one entry for each agent.
    """

    def __init__(self, env_id: str, env: Any, *, turns: bool) -> None:
        self._env = env
        self._warnings: ConventionWarnings | None = None
        self._agents = Agents(env_id, env, turns=turns)
        self._none = np.zeros(len(self._agents.names), np.bool_)
        self._acting = self._active = self._known = self._none
        """Masks [S] of agents. _acting: agents in the game, including agents that wait for their turn. _active: the
        agents of _acting, and agents that have left but still get actions. _known: agents that have been in the game in
        this episode.
        """
        self._pays_late = self._stays = False
        """_pays_late: True after the first reward of an agent that had left. _stays: True if agents that leave
        still get actions in this episode.
        """

    def describe(self) -> EnvSpec:
        return self._agents.spec(self._env)

    def watch(self, warnings: ConventionWarnings) -> None:
        self._warnings = warnings
        warnings.follow(self._env)

    def shape(self, agent: int, values: Mapping[str, Any]) -> None:
        if self._agents.shaper is not None:
            self._agents.shaper.set_reward_shaping(dict(values), agent)

    def _begin(self) -> None:
        self._acting = self._active = self._known = self._none
        self._stays = self._pays_late

    def _look(self, observe: Callable[[Any], Any]) -> None:
        """Warn of bugs that the first observations and the spaces show. observe: agent's name -> observation."""
        if self._warnings is not None and self._warnings.reads:
            for name in self._agents.named(self._acting):
                self._warnings.of_first_obs(self._agents.seen, observe(name))
            self._warnings.of_spaces(self._agents.spaces_of(self._env), self._agents.spaces)

    def _paid(self, given: Mapping[Any, Any]) -> NDArray[np.float64]:
        """Return the rewards [S], and record whether an inactive agent got a reward. given: agent's name -> reward."""
        self._agents.check("rewards", given, self._acting)
        if self._warnings is not None and self._warnings.reads:
            self._warnings.of_rewards(given, self._agents.named(self._acting))
        reward = self._agents.rewards(given) * self._known
        self._pays_late |= bool(reward[~self._active].any())
        return reward

    def _go_on(
        self, acting: NDArray[np.bool_], terminated: NDArray[np.bool_], truncated: NDArray[np.bool_]
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Record the agents in the game, and return (terminated, truncated) of this step. All arrays are [S] bool.

        Agents that have left but still get actions end in the last step of the episode.

        acting: agents in the game after this step.
        terminated, truncated: agents that were in the game before this step and have left, by kind of end.
        """
        stayed = self._active & ~self._acting & ~acting
        stays = self._active & ~acting if self._stays and acting.any() else self._none
        cut, over = bool(truncated.any()), stayed & ~stays
        self._acting, self._active, self._known = acting, acting | stays, self._known | acting
        return terminated & ~stays | over & (not cut), truncated & ~stays | over & cut

    def close(self) -> None:
        if callable(closing := attribute(self._env, "close")):
            closing()


class ParallelTable(_AgentTable):
    """Environment of the parallel API: all agents in the game act in every step."""

    def __init__(self, env_id: str, env: Any) -> None:
        super().__init__(env_id, env, turns=False)

    def reset(self, seed: int | None) -> Scene:
        self._begin()
        answer = self._env.reset(seed=seed)
        if not isinstance(answer, tuple) or len(answer) != 2 or not isinstance(answer[0], Mapping):
            raise self._agents.breach("reset() must return (observations, infos), dicts by agent", answer)
        scene = self._scene(answer[0], {}, {}, {}, answer[1], self._none)
        self._look(answer[0].__getitem__)
        if self._warnings is not None:
            self._warnings.of_begin()
        return scene

    def advance(self, action: NDArray[Any]) -> Scene:
        agents, was = self._agents, self._acting
        acts = {agents.names[agent]: agents.decode(action[agent]) for agent in np.flatnonzero(was).tolist()}
        answer = self._env.step(acts)
        if not isinstance(answer, tuple) or len(answer) != 5 or not isinstance(answer[0], Mapping):
            parts = "(observations, rewards, terminations, truncations, infos), dicts by agent"
            raise agents.breach(f"step() must return {parts}", answer)
        scene = self._scene(*answer, was)
        if self._warnings is not None and scene.truncated.any() and not scene.active.any():
            self._warnings.of_cut(answer[0])
        return scene

    def _scene(
        self, obs: Any, rewards: Any, terminations: Any, truncations: Any, infos: Any, was: NDArray[np.bool_]
    ) -> Scene:
        """Convert dicts with the names of agents as keys to a scene, whose entries are in the order of the agents.

        was: [S] bool, agents that acted in this step. All False after a reset.
        Raises EnvSetupError for a missing observation, an unknown agent, and values of wrong types.
        """
        agents = self._agents
        for what, given in (("terminations", terminations), ("truncations", truncations), ("infos", infos)):
            agents.check(what, given, was)
        here = set(attribute(self._env, "agents") or ())
        unknown = here - set(agents.names)
        if unknown:
            raise agents.breach("agents must be among possible_agents", sorted(map(str, unknown)))
        ended = np.array([agents.flag("terminations", terminations, n) for n in agents.names])
        left = [
            over or agents.flag("truncations", truncations, n)
            for n, over in zip(agents.names, ended, strict=True)
        ]
        acting = np.array([n in here and not gone for n, gone in zip(agents.names, left, strict=True)])
        seen = {}
        for agent in np.flatnonzero(was | acting).tolist():
            name = agents.names[agent]
            if name not in obs:
                if acting[agent] or not left[agent]:
                    raise agents.breach(f"an observation of {name} is missing", sorted(map(str, obs)))
                continue  # the final observation of an agent that has left is optional
            leaves = not acting[agent]
            seen[agent] = agents.read(
                name, obs[name], infos, moves=not (leaves and self._stays), ended=leaves
            )
        terminated = ended & was
        # An agent that disappears without a flag is truncated, so the learner bootstraps from its last observation.
        truncated = was & ~acting & ~terminated
        reward = self._paid(rewards)
        terminated, truncated = self._go_on(acting, terminated, truncated)
        objectives, stats = agents.reported(infos, self._known if was.any() else was)
        return Scene(seen, self._active, reward, terminated, truncated, objectives, stats, one_of(infos))


class TurnTable(_AgentTable):
    """Environment of the turn-based API (AEC): one agent moves in every step."""

    def __init__(self, env_id: str, env: Any) -> None:
        super().__init__(env_id, env, turns=True)

    def reset(self, seed: int | None) -> Scene:
        self._begin()
        self._env.reset(seed=seed)
        none = self._none
        self._go_on(self._alive(), none, none)
        self._look(self._env.observe)
        return self._scene(none, np.zeros(len(none)), none, none, ({}, {}))

    def advance(self, action: NDArray[Any]) -> Scene:
        env, agents, was = self._env, self._agents, self._acting
        env.step(agents.decode(action[self._mover()]))
        ended, infos = self._given("terminations"), self._given("infos")
        reward = self._paid(self._given("rewards"))
        terminated = np.array([agents.flag("terminations", ended, name) for name in agents.names]) & was
        alive = self._alive()
        truncated = was & ~alive & ~terminated
        reported = agents.reported(infos, self._known)
        left = was & ~alive
        last = {agent: self._see(agent, infos, moves=False) for agent in np.flatnonzero(left).tolist()}
        dead_steps = 0
        while alive.any() and not alive[mover := self._mover()]:
            if dead_steps == len(agents.names):
                raise agents.breach(
                    "step(None) must remove an agent that has ended from agents, and select another agent",
                    agents.names[mover],
                )
            env.step(None)  # the API requires it for agents that have left
            alive, dead_steps = self._alive(), dead_steps + 1
        terminated, truncated = self._go_on(alive, terminated, truncated)
        return self._scene(was & ~left, reward, terminated, truncated, reported, last)

    def _scene(
        self,
        was: NDArray[np.bool_],
        reward: NDArray[np.float64],
        terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_],
        reported: tuple[Mapping[int, float], Mapping[int, Any]],
        last: Mapping[int, Mapping[str, NDArray[Any]]] | None = None,
    ) -> Scene:
        """Return the scene after a reset or step.

        was: [S] bool, agents that were in the game before this step and still are.
        reward, terminated, truncated: [S], see `Scene`.
        reported: results of `Agents.reported`.
        last: agent's index -> final observation, for agents that left in this step.
        """
        obs = dict(last or {})
        moves = self._mover() if self._acting.any() else -1
        infos = self._given("infos")
        for agent in np.flatnonzero(self._acting | was).tolist():
            obs[agent] = self._see(agent, infos, moves=agent == moves)
        return Scene(obs, self._active, reward, terminated, truncated, *reported, one_of(infos))

    def _see(self, agent: int, infos: Mapping[Any, Any], *, moves: bool) -> dict[str, NDArray[Any]]:
        name = self._agents.names[agent]
        return self._agents.read(name, self._env.observe(name), infos, moves=moves)

    def _mover(self) -> int:
        """Return the index of the agent that moves next. Raises EnvSetupError if it is not in `possible_agents`."""
        names, name = self._agents.names, getattr(self._env, "agent_selection", None)
        if name not in names:
            raise self._agents.breach("agent_selection must be among possible_agents", name)
        return names.index(name)

    def _given(self, what: str) -> Mapping[Any, Any]:
        """Return an attribute of the environment: agent's name -> value. Raises EnvSetupError if it is not a dict.

        what: name of the attribute, such as "rewards".
        """
        given: Any = getattr(self._env, what, None)
        if not isinstance(given, Mapping):
            self._agents.check(what, given, self._none)  # raises an error
        return cast("Mapping[Any, Any]", given)

    def _alive(self) -> NDArray[np.bool_]:
        agents, here = self._agents, set(getattr(self._env, "agents", None) or ())
        flags = {what: self._given(what) for what in ("terminations", "truncations")}

        def gone(name: Any) -> bool:
            return any(agents.flag(what, given, name) for what, given in flags.items())

        return np.array([not gone(name) and name in here for name in agents.names])


def _fits(env: object) -> bool:
    return all(attribute(env, name) is not None for name in ("possible_agents", "step", "observation_space"))


def _describe(env_id: str, env: Any) -> EnvSpec:
    return table_of(env_id, env).describe()


def _make_vector_env(
    env_id: str, make: Callable[[], Any], rows: int, seed: int, shaping: ShapingSource
) -> VectorEnv:
    made: list[Any] = []

    def table() -> ParallelTable | TurnTable:
        made.append(make())
        check_distinct(env_id, made)
        return table_of(env_id, made[-1])

    return MultiAgentVectorEnv(table, rows, seed, shaping)


KIND = Kind("a PettingZoo ParallelEnv or AECEnv (possible_agents)", _fits, _describe, _make_vector_env)
