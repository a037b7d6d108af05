"""Spaces and observation arrays of the agents in a PettingZoo environment.

Axes: S agents (in the order of `possible_agents`), A action components.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
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
from ..episode_book import true_objective
from ..shaping import default_shaping, find_interface, frames_per_step
from ..spaces import Leaf, obs_leaves, read_leaf
from ..user_values import array_of, attribute, breach, flag_of, has_methods, metadata_of, number_of

TURN = "turn"
"""Name of an observation in turn-based games, float32 [1]: 1 if it is the agent's turn, else 0.

The network needs this number, because the value of a position depends on the turn, and the action mask is not a network
input.
"""


def one_of(infos: Any) -> Any:
    """Return the info dict of one agent, as an example, because all agents usually have equal keys.

    infos: agent's name -> info dict. Return None if all agents lack one.
    """
    given = infos.values() if isinstance(infos, Mapping) else ()
    return next((info for info in given if isinstance(info, Mapping)), None)


class Agents:
    """Agents of an environment: their common spaces, and the conversion of observations, actions, rewards and infos.

    Arrays [S] have one entry for each agent, in the order of `possible_agents`.

    turns: True for the turn-based API.
    Raises EnvSetupError if agents are missing or named twice, and if spaces are unsupported or differ between agents.
    Also raises EnvSetupError for continuous actions with turns or with an action mask.
    """

    def __init__(self, env_id: str, env: Any, *, turns: bool) -> None:
        self.env_id, self.breach = env_id, partial(breach, env_id)
        given = attribute(env, "possible_agents")
        self.names: list[Any] = [] if given is None else list(given)
        if not self.names:
            raise EnvSetupError(f"{env_id} has no agents. Define possible_agents")
        if len({*self.names}) < len(self.names):
            raise EnvSetupError(f"{env_id}: possible_agents has a name twice: {self.names}. Rename an agent")
        self.space, action = self._alike(env)
        seen = self.space
        self.spaces = self.spaces_of(env)
        in_obs = isinstance(seen, spaces.Dict) and MASK in seen.spaces
        if in_obs:
            assert isinstance(seen, spaces.Dict)
            seen = spaces.Dict({k: part for k, part in seen.spaces.items() if k != MASK})
        self.seen = seen
        """Observation space of an agent. A part for the action mask is left out."""
        self._leaves: tuple[Leaf, ...] = obs_leaves(seen, env_id)
        self.action = action_spec(action, env_id)
        self.decode = action_decoder(action)
        self._mask_in_obs, self._turns = in_obs, turns
        self._promised = in_obs or bool(metadata_of(env).get(MASK))
        self.masked = self._promised or turns
        if self.masked and self.action.low:
            raise EnvSetupError(
                f"{env_id} is turn-based, or has an action mask, but its actions are continuous. Action masks, which "
                "also encode turns, need discrete actions. Use the parallel API without a mask, or discrete actions"
            )
        self._choices = sum(self.action.nvec)
        self._turn = TURN
        while self._turn in {leaf.name for leaf in self._leaves}:  # until the name is unused
            self._turn += "_"
        self.shaper: RewardShapingInterface | None = find_interface(env)

    def _alike(self, env: Any) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
        for what in ("observation_space", "action_space"):
            if not has_methods(env, (what,)):
                raise EnvSetupError(
                    f"{self.env_id}: its {what} is not a method. Write `def {what}(self, agent)`"
                )
        pairs = self.spaces_of(env)
        for name, pair in zip(self.names, pairs, strict=True):
            for what, one, other in zip(("observations", "actions"), pairs[0], pair, strict=True):
                if one != other:
                    raise EnvSetupError(
                        f"{self.env_id}: the {what} of its agents differ: {self.names[0]} has {one}, {name} has "
                        f"{other}. All agents of a member share one policy. Map them to one space by a wrapper, for "
                        "example SuperSuit's pad_observations_v0 and pad_action_space_v0"
                    )
        return pairs[0]

    def spaces_of(self, env: Any) -> list[tuple[spaces.Space[Any], spaces.Space[Any]]]:
        """Return (observation space, action space) of each agent, in the order of `possible_agents`."""
        return [(env.observation_space(name), env.action_space(name)) for name in self.names]

    def named(self, agents: NDArray[np.bool_]) -> list[Any]:
        """Return the names of some agents. agents: [S] bool, True for these agents."""
        return [self.names[agent] for agent in np.flatnonzero(agents).tolist()]

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

    def read(
        self, name: Any, obs: Any, infos: Any, *, moves: bool, ended: bool = False
    ) -> dict[str, NDArray[Any]]:
        """Convert one agent's observation to arrays: name -> array of a row, as in the spec.

        name: the agent's name. obs: the agent's observation. infos: agent's name -> info dict.
        moves: False if the agent's action in the next step is ignored. The action mask is then all zeros, and the
        observation "turn" is 0.
        ended: True if the agent's episode has ended. The environment then need not return an action mask.
        Raises EnvSetupError for a missing or wrong mask, and for an observation that does not fit its space.
        """
        arrays = {leaf.name: read_leaf(leaf, obs, self.env_id) for leaf in self._leaves}
        if self.masked:
            info = infos.get(name)
            arrays[MASK] = (
                self._mask(name, obs, info, ended=ended) if moves else np.zeros(self._choices, np.uint8)
            )
        if self._turns:
            arrays[self._turn] = np.array([moves], np.float32)
        return arrays

    def _mask(self, name: Any, obs: Any, info: Any, *, ended: bool) -> NDArray[np.uint8]:
        source = obs if self._mask_in_obs and MASK in obs else info
        if not isinstance(source, Mapping) or MASK not in source:
            if self._promised and not ended:
                place = "observation" if self._mask_in_obs else "info dict"
                raise self.breach(f'the {place} of {name} must have the key "{MASK}"', source)
            return np.ones(self._choices, np.uint8)
        given = source[MASK]
        with suppress(ValueError):  # a ragged list
            mask = array_of(given).reshape(-1)
            if mask.shape == (self._choices,) and ((mask == 0) | (mask == 1)).all():
                return mask.astype(np.uint8)
        raise self.breach(f"its action mask must have {self._choices} numbers, each 0 or 1", given)

    def check(self, what: str, given: Any, agents: NDArray[np.bool_]) -> None:
        """Raise EnvSetupError if a result is not a dict with the names of agents as keys.

        If all keys are agents, agents may be missing. If there are other keys, too, each needed agent must be a key.

        what: name of the result for the error, such as "rewards". given: the result.
        agents: [S] bool, True for needed agents.
        """
        needed = {*self.named(agents)}
        if isinstance(given, Mapping) and (given.keys() <= {*self.names} or given.keys() >= needed):
            return
        raise self.breach(f"{what} must be a dict with the keys {', '.join(map(str, self.names))}", given)

    def rewards(self, given: Mapping[Any, Any]) -> NDArray[np.float64]:
        """Return the rewards [S], 0 for agents without a reward. Raises EnvSetupError if a value is not a number.

        given: agent's name -> reward.
        """
        try:
            return np.array([number_of(given.get(name, 0.0)) for name in self.names])
        except (TypeError, ValueError):
            raise self.breach("the reward must be a number", given) from None

    def flag(self, what: str, given: Mapping[Any, Any], name: Any) -> bool:
        """Return the flag of one agent, False if it is missing.

        what: name of the flags for the error, such as "terminations". given: agent's name -> flag. name: the agent's
        name. Raises EnvSetupError if the agent's value is not a bool, 0 or 1.
        """
        try:
            return flag_of(given.get(name, False))
        except ValueError:
            raise self.breach(f"{what} must be True or False", given[name]) from None

    def reported(
        self, infos: Mapping[Any, Any], was: NDArray[np.bool_]
    ) -> tuple[dict[int, float], dict[int, Any]]:
        """Return agent -> `true_objective`, and agent -> `episode_extra_stats`, from the agents' info dicts.

        The keys of the results are indices of agents. Agents without an entry are left out.

        infos: agent's name -> info dict. was: [S] bool, True for the agents whose info dicts are read.
        Raises EnvSetupError if a `true_objective` is not a finite number.
        """
        of_agent = {agent: infos.get(self.names[agent]) for agent in np.flatnonzero(was).tolist()}
        given = {agent: info for agent, info in of_agent.items() if isinstance(info, Mapping)}
        objectives, stats = (
            {agent: info[key] for agent, info in given.items() if key in info}
            for key in ("true_objective", "episode_extra_stats")
        )
        return {agent: true_objective(self.env_id, value) for agent, value in objectives.items()}, stats
