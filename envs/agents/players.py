"""Agents of a PettingZoo environment: their spaces and observation arrays.

Axes: S agents (in the order of `possible_agents`), A action components.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from pbt_rl.errors import EnvSetupError

from ..actions import action_decoder, action_spec
from ..base import ACTION_MASK as MASK
from ..base import ArraySpec, EnvSpec, RewardShapingInterface
from ..conventions import mistakes_of, notes_of
from ..episodes import true_objective
from ..shaping import default_shaping, find_interface, frames_per_step
from ..spaces import Leaf, obs_leaves, read_leaf
from ..values import array_of, attribute, breach, metadata_of, number_of

TURN = "turn"
"""Observation [1] of turn-based games: 1 for the agent to move. It is needed because the mask is not a network
input, and a position's value depends on whether the agent is to move.
"""


def one_of(infos: Any) -> Any:
    """Return the info of any agent that has one, because all have the same names."""
    given = infos.values() if isinstance(infos, Mapping) else ()
    return next((info for info in given if isinstance(info, Mapping)), None)


class Agents:
    """Agents of an environment of either API: their spaces, and their observations as arrays."""

    def __init__(self, env_id: str, env: Any, *, turns: bool) -> None:
        self.env_id, self.breach = env_id, partial(breach, env_id)
        given = attribute(env, "possible_agents")
        self.names: list[Any] = [] if given is None else list(given)
        if not self.names:
            raise EnvSetupError(f"{env_id} has no agents. Define possible_agents")
        self.space, action = self._alike(env)
        seen = self.space
        in_obs = isinstance(seen, spaces.Dict) and MASK in seen.spaces
        if in_obs:
            assert isinstance(seen, spaces.Dict)
            seen = spaces.Dict({k: part for k, part in seen.spaces.items() if k != MASK})
        self._leaves: tuple[Leaf, ...] = obs_leaves(seen, env_id)
        self.action = action_spec(action, env_id)
        self.decode = action_decoder(action)
        self._mask_in_obs, self._turns = in_obs, turns
        declared = bool(metadata_of(env).get(MASK))
        self.masked = in_obs or turns or declared
        if self.masked and self.action.low:
            raise EnvSetupError(
                f"{env_id} is turn-based (or has an action mask) with continuous actions. Turns are "
                "encoded in the action mask, which needs discrete actions. Use its parallel API, or "
                "discrete actions"
            )
        self._choices = sum(self.action.nvec)
        self._turn = TURN
        while self._turn in {leaf.name for leaf in self._leaves}:  # the name is taken
            self._turn += "_"
        self.shaper: RewardShapingInterface | None = find_interface(env)

    def _alike(self, env: Any) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
        pairs = [(env.observation_space(name), env.action_space(name)) for name in self.names]
        for name, pair in zip(self.names, pairs, strict=True):
            for what, one, other in zip(("observations", "actions"), pairs[0], pair, strict=True):
                if one != other:
                    raise EnvSetupError(
                        f"{self.env_id}: the {what} of its agents differ: {self.names[0]} has {one}, "
                        f"{name} has {other}. One policy plays all agents of a member, so map them to "
                        "one space in a wrapper (such as SuperSuit's pad_observations_v0 and "
                        "pad_action_space_v0)"
                    )
        return pairs[0]

    def spec(self, env: Any) -> EnvSpec:
        """Return the spec of a row."""
        obs = {leaf.name: leaf.spec for leaf in self._leaves}
        if self.masked:
            obs[MASK] = ArraySpec((self._choices,), "uint8")
        if self._turns:
            obs[self._turn] = ArraySpec((1,), "float32")
        shaping = default_shaping(self.env_id, env)
        return EnvSpec(
            env_id=self.env_id,
            obs=obs,
            action=self.action,
            frame_skip=frames_per_step(self.env_id, env),
            shaping=shaping,
            agents=len(self.names),
            notes=notes_of(self.env_id, env),
            mistakes=mistakes_of(env, self.space, self.action, masked=self.masked),
        )

    def read(self, obs: Any, info: Any, *, moves: bool) -> dict[str, NDArray[Any]]:
        """Return the arrays of one agent's observation.

        moves: True if it is the agent's turn; otherwise its mask is empty.
        """
        arrays = {leaf.name: read_leaf(leaf, obs, self.env_id) for leaf in self._leaves}
        if self.masked:
            arrays[MASK] = self._mask(obs, info) if moves else np.zeros(self._choices, np.uint8)
        if self._turns:
            arrays[self._turn] = np.array([moves], np.float32)
        return arrays

    def _mask(self, obs: Any, info: Any) -> NDArray[np.uint8]:
        if self._mask_in_obs and MASK in obs:
            given = obs[MASK]
        elif isinstance(info, Mapping) and MASK in info:
            given = info[MASK]
        else:
            return np.ones(self._choices, np.uint8)
        mask = array_of(given).astype(np.uint8, copy=False).reshape(-1)
        if mask.shape != (self._choices,):
            raise EnvSetupError(
                f"{self.env_id} breaks its contract: its action mask has shape {np.shape(given)}; give one number for "
                f"each of the {self._choices} choices"
            )
        return mask

    def rewards(self, given: Mapping[Any, Any]) -> NDArray[np.float64]:
        """Return the rewards [S], 0 for agents without one.

        Raises EnvSetupError for values that are not numbers, and if no reward is of an agent.
        """
        if given and self.names and given.keys().isdisjoint(self.names):
            raise self.breach(f"rewards must be of the agents {', '.join(map(str, self.names))}", given)
        try:
            return np.array([number_of(given.get(name, 0.0)) for name in self.names])
        except (TypeError, ValueError):
            raise self.breach("the reward must be a number", given) from None

    def reported(self, infos: Any, was: NDArray[np.bool_]) -> tuple[dict[int, float], dict[int, Any]]:
        """Return (agent -> `true_objective`, agent -> `episode_extra_stats`) of the agents that acted and have them."""
        if not isinstance(infos, Mapping):
            raise self.breach("infos must be a dict of dicts by agent", infos)
        of_agent = {agent: infos.get(self.names[agent]) for agent in np.flatnonzero(was).tolist()}
        given = {agent: info for agent, info in of_agent.items() if isinstance(info, Mapping)}
        objectives, stats = (
            {agent: info[key] for agent, info in given.items() if key in info}
            for key in ("true_objective", "episode_extra_stats")
        )
        return {agent: true_objective(self.env_id, value) for agent, value in objectives.items()}, stats
