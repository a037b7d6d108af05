"""PettingZoo's environments as units: the parallel API, and the turn-based one (AEC) played as if it were parallel.

A turn-based game takes one move a step. Every agent sees the board in every step; who is not to move has an action
mask without any 1, so its action is ignored and nothing is learned from it, and an observation "turn" says so to its
network. Rewards are delivered in the step in
which they fall, whoever moves: one that falls while an agent waits follows its own last move in its row, and the
returns carry it back there.

Agents share one policy, so their spaces must be alike.

Axes: S seats (the agents, in the order of `possible_agents`), A action components.
"""

from __future__ import annotations

import difflib
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from .base import ACTION_MASK as MASK
from .base import ArraySpec, EnvSetupError, EnvSpec, RewardShapingInterface, ShapingSource
from .multi_agent import MakeTable, MultiAgentUnit, Scene, number, probe_with
from .shaping import default_shaping, find_interface, frames_per_step
from .spaces import Leaf, action_decoder, action_spec, obs_leaves, read_leaf

TURN = "turn"
"""Observation [1] of games of turns: 1 for who is to move. Networks do not see the mask, and the same position is worth
one thing to who is to move and another to who waits."""
NEEDS = {
    "atari": ("multi_agent_ale_py", "pygame"),
    "butterfly": ("pymunk", "pygame"),
    "classic": ("pygame",),
    "sisl": ("pymunk", "Box2D", "pygame"),
    "chess": ("chess",),
    "hanabi": ("shimmy", "pyspiel"),
    "holdem": ("rlcard",),
}
"""Part of a registered id -> packages (import names) that such an environment needs."""


class MultiAgentEnv(Protocol):
    """What environments of both APIs have; PettingZoo itself need not be installed for one's own."""

    possible_agents: list[Any]

    def observation_space(self, agent: Any) -> spaces.Space[Any]:
        """Space of what an agent sees."""

    def action_space(self, agent: Any) -> spaces.Space[Any]:
        """Space of what an agent may do."""

    def close(self) -> None:
        """Release the environment."""


def is_multi_agent(env: object) -> bool:
    """Whether an object is a PettingZoo environment of either kind."""
    return hasattr(env, "possible_agents") and (hasattr(env, "step") and hasattr(env, "observation_space"))


def table_of(env_id: str, env: Any) -> ParallelTable | TurnTable:
    """Wrap an environment of either API. Raises EnvSetupError where its agents are not alike."""
    if hasattr(env, "agent_iter") or hasattr(env, "agent_selection"):
        return TurnTable(env_id, env)
    return ParallelTable(env_id, env)


class Agents:
    """What both APIs share: the agents, their spaces, and the arrays of what they see."""

    def __init__(self, env_id: str, env: Any, *, turns: bool) -> None:
        self.env_id = env_id
        self.names: list[Any] = list(env.possible_agents)
        if not self.names:
            raise EnvSetupError(f"{env_id} has no agents: give it possible_agents")
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
        self.masked = in_obs or turns
        if self.masked and not self.action.nvec:
            raise EnvSetupError(
                f"{env_id} is played in turns (or has an action mask) with continuous actions: whose turn it is is "
                "said by a mask, which only discrete actions have; use its parallel API, or discrete actions"
            )
        self._choices = sum(self.action.nvec)
        self.shaper: RewardShapingInterface | None = find_interface(env)

    def _alike(self, env: Any) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
        pairs = [(env.observation_space(name), env.action_space(name)) for name in self.names]
        for name, pair in zip(self.names, pairs, strict=True):
            for what, one, other in zip(("observations", "actions"), pairs[0], pair, strict=True):
                if one != other:
                    raise EnvSetupError(
                        f"{self.env_id}: the {what} of its agents differ, {self.names[0]} has {one}, {name} has "
                        f"{other}: all seats are played by one policy each; map them to one space in a wrapper of "
                        "your own (such as SuperSuit's pad_observations_v0 and pad_action_space_v0)"
                    )
        return pairs[0]

    def spec(self, env: Any) -> EnvSpec:
        """Spec of a row."""
        obs = {leaf.name: leaf.spec for leaf in self._leaves}
        if self.masked:
            obs[MASK] = ArraySpec((self._choices,), "uint8")
        if self._turns:
            obs[TURN] = ArraySpec((1,), "float32")
        return EnvSpec(
            env_id=self.env_id,
            obs=obs,
            action=self.action,
            frame_skip=frames_per_step(self.env_id, env),
            shaping=default_shaping(env),
            seats=len(self.names),
        )

    def read(self, obs: Any, info: Any, *, moves: bool) -> dict[str, NDArray[Any]]:
        """Arrays of what one agent sees. moves: it is its turn; else its mask is empty."""
        arrays = {leaf.name: read_leaf(leaf, obs, self.env_id) for leaf in self._leaves}
        if self.masked:
            arrays[MASK] = self._mask(obs, info) if moves else np.zeros(self._choices, np.uint8)
        if self._turns:
            arrays[TURN] = np.array([moves], np.float32)
        return arrays

    def _mask(self, obs: Any, info: Any) -> NDArray[np.uint8]:
        if self._mask_in_obs and MASK in obs:
            given = obs[MASK]
        elif isinstance(info, Mapping) and MASK in info:
            given = info[MASK]
        else:
            return np.ones(self._choices, np.uint8)
        mask = np.asarray(given).astype(np.uint8, copy=False).reshape(-1)
        if mask.shape != (self._choices,):
            raise EnvSetupError(
                f"{self.env_id} breaks its contract: its action mask has shape {np.shape(given)}; give one number for "
                f"each of the {self._choices} choices"
            )
        return mask

    def objective(self, info: Any) -> float | None:
        """`true_objective` of an agent's info, if it is there."""
        if isinstance(info, Mapping) and "true_objective" in info:
            return number(self.env_id, 'info["true_objective"]', info["true_objective"])
        return None

    def reward(self, value: Any) -> float:
        """A reward as a number."""
        return number(self.env_id, "reward", value)

    def objectives(self, infos: Any, seats: Iterable[int]) -> dict[int, float]:
        """Seat -> objective, where there is one."""
        if not isinstance(infos, Mapping):
            raise self.breach("infos must be a dict of dicts by agent", infos)
        found = {seat: self.objective(infos.get(self.names[seat])) for seat in seats}
        return {seat: value for seat, value in found.items() if value is not None}

    def stats(self, infos: Any, seats: Iterable[int]) -> dict[int, Any]:
        """Seat -> `episode_extra_stats`, where there are any."""
        found = {seat: infos.get(self.names[seat]) for seat in seats}
        key = "episode_extra_stats"
        return {seat: info[key] for seat, info in found.items() if isinstance(info, Mapping) and key in info}

    def breach(self, rule: str, got: object) -> EnvSetupError:
        """The error of an environment that breaks the API."""
        return EnvSetupError(
            f"{self.env_id} breaks its contract: {rule}, got {got!r:.200}. Correct the environment"
        )


class ParallelTable:
    """An environment of the parallel API: all agents act in every step."""

    def __init__(self, env_id: str, env: Any) -> None:
        self._env = env
        self._agents = Agents(env_id, env, turns=False)

    def describe(self) -> EnvSpec:
        """See Table."""
        return self._agents.spec(self._env)

    def begin(self, seed: int | None) -> Scene:
        """See Table."""
        answer = self._env.reset(seed=seed)
        if not isinstance(answer, tuple) or len(answer) != 2 or not isinstance(answer[0], Mapping):
            raise self._agents.breach("reset() must return (observations, infos), dicts by agent", answer)
        return self._scene(answer[0], {}, {}, {}, answer[1], np.zeros(len(self._agents.names), np.bool_))

    def advance(self, action: NDArray[Any]) -> Scene:
        """See Table."""
        agents = self._agents
        was = self._active
        acts = {agents.names[seat]: agents.decode(action[seat]) for seat in np.flatnonzero(was).tolist()}
        answer = self._env.step(acts)
        if not isinstance(answer, tuple) or len(answer) != 5 or not isinstance(answer[0], Mapping):
            raise agents.breach(
                "step() must return (observations, rewards, terminations, truncations, infos), dicts by agent",
                answer,
            )
        return self._scene(*answer, was)

    def _scene(
        self, obs: Any, rewards: Any, terminations: Any, truncations: Any, infos: Any, was: NDArray[np.bool_]
    ) -> Scene:
        """Put dicts by agent into arrays by seat."""
        agents = self._agents
        here = set(self._env.agents)
        unknown = here - set(agents.names)
        if unknown:
            raise agents.breach("agents must be among possible_agents", sorted(map(str, unknown)))
        left = [bool(terminations.get(n, False)) or bool(truncations.get(n, False)) for n in agents.names]
        active = np.array([n in here and not gone for n, gone in zip(agents.names, left, strict=True)])
        seen = {}
        for seat in np.flatnonzero(was | active).tolist():
            name = agents.names[seat]
            if name not in obs:
                if active[seat] or not left[seat]:
                    raise agents.breach(f"an observation of {name} is missing", sorted(map(str, obs)))
                continue  # its last observation stays: nothing is asked of it after a termination
            seen[seat] = agents.read(obs[name], infos.get(name), moves=True)
        reward = np.array([agents.reward(rewards.get(n, 0.0)) for n in agents.names])
        terminated = np.array([bool(terminations.get(n, False)) for n in agents.names]) & was
        # Who is gone without a word was cut off: its value is still asked for.
        truncated = was & ~active & ~terminated
        self._active = active
        return Scene(
            seen,
            active,
            reward * was,
            terminated,
            truncated,
            agents.objectives(infos, np.flatnonzero(was).tolist()),
            agents.stats(infos, np.flatnonzero(was).tolist()),
        )

    def shape(self, seat: int, values: Mapping[str, Any]) -> None:
        """See Table."""
        if self._agents.shaper is not None:
            self._agents.shaper.set_reward_shaping(dict(values), seat)

    def close(self) -> None:
        """See Table."""
        self._env.close()


class TurnTable:
    """An environment of the turn-based API (AEC): in every step the agent whose turn it is makes its move."""

    def __init__(self, env_id: str, env: Any) -> None:
        self._env = env
        self._agents = Agents(env_id, env, turns=True)
        self._active = np.zeros(len(self._agents.names), np.bool_)

    def describe(self) -> EnvSpec:
        """See Table."""
        return self._agents.spec(self._env)

    def begin(self, seed: int | None) -> Scene:
        """See Table."""
        self._env.reset(seed=seed)
        nobody = np.zeros(len(self._agents.names), np.bool_)
        self._active = self._alive()
        return self._scene(self._active, nobody, np.zeros(len(nobody)), nobody, nobody, ({}, {}))

    def advance(self, action: NDArray[Any]) -> Scene:
        """See Table."""
        env, agents = self._env, self._agents
        was = self._active
        mover = env.agent_selection
        env.step(agents.decode(action[agents.names.index(mover)]))
        rewards, ended, infos = env.rewards, env.terminations, env.infos
        reward = np.array([agents.reward(rewards.get(name, 0.0)) for name in agents.names]) * was
        terminated = np.array([bool(ended.get(name, False)) for name in agents.names]) & was
        alive = self._alive()
        truncated = was & ~alive & ~terminated
        said = [of(infos, np.flatnonzero(was).tolist()) for of in (agents.objectives, agents.stats)]
        left = was & ~alive
        last = {seat: self._see(seat, infos, moves=False) for seat in np.flatnonzero(left).tolist()}
        while alive.any() and not alive[agents.names.index(env.agent_selection)]:
            env.step(None)  # who has left gives up its turns
            alive = self._alive()
        self._active = alive
        return self._scene(alive, was & ~left, reward, terminated, truncated, said, last)

    def _scene(
        self,
        active: NDArray[np.bool_],
        was: NDArray[np.bool_],
        reward: NDArray[np.float64],
        terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_],
        said: Sequence[Mapping[int, Any]],
        last: Mapping[int, Mapping[str, NDArray[Any]]] | None = None,
    ) -> Scene:
        """Said: objectives and extra statistics. last: what those see who have just left."""
        obs = dict(last or {})
        moves = self._agents.names.index(self._env.agent_selection) if active.any() else -1
        infos = self._env.infos
        for seat in np.flatnonzero(active | was).tolist():
            obs[seat] = self._see(seat, infos, moves=seat == moves)
        objective, stats = said
        return Scene(obs, active, reward, terminated, truncated, objective, stats)

    def _see(self, seat: int, infos: Mapping[Any, Any], *, moves: bool) -> dict[str, NDArray[Any]]:
        name = self._agents.names[seat]
        return self._agents.read(self._env.observe(name), infos.get(name), moves=moves)

    def _alive(self) -> NDArray[np.bool_]:
        env, here = self._env, set(self._env.agents)
        return np.array(
            [
                name in here
                and not env.terminations.get(name, False)
                and not env.truncations.get(name, False)
                for name in self._agents.names
            ]
        )

    def shape(self, seat: int, values: Mapping[str, Any]) -> None:
        """See Table."""
        if self._agents.shaper is not None:
            self._agents.shaper.set_reward_shaping(dict(values), seat)

    def close(self) -> None:
        """See Table."""
        self._env.close()


# -- the family ---------------------------------------------------------------------------------------------


def names() -> tuple[str, ...]:
    """Modules (`classic/connect_four_v3`) whose packages are installed."""
    return tuple(name for name in sorted(_registered()) if not _missing(name))


def _registered() -> dict[str, str]:
    """Module `collection/name_vN` -> PettingZoo's id of it, which ends in `-vN`."""
    import pettingzoo  # noqa: PLC0415 - families are imported when used

    known = set(pettingzoo.aec_registry) | set(pettingzoo.parallel_registry)
    return {_module(name): name for name in known}


def _module(name: str) -> str:
    return re.sub(r"-(v\d+)$", r"_\1", name)


def maker(name: str, keywords: Mapping[str, Any]) -> MakeTable:
    """Make environments by id, with or without the collection that they are of, with their own keywords."""
    import pettingzoo  # noqa: PLC0415 - families are imported when used

    full = _find(name)
    registered = _registered()[full]
    kind: Any = "parallel" if registered in pettingzoo.parallel_registry else "aec"

    def make() -> ParallelTable | TurnTable:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                env: Any = pettingzoo.make(kind, registered, **keywords)
        except (ImportError, TypeError, AssertionError, ValueError) as error:
            raise EnvSetupError(f"pettingzoo/{full} cannot be made: {str(error).rstrip('.')}") from error
        return table_of(f"pettingzoo/{full}", env)

    return make


def probe(name: str, keywords: Mapping[str, Any]) -> EnvSpec:
    """Describe an environment by its id."""
    return probe_with(maker(name, keywords))


def make_unit(
    name: str, rows: int, seed: int, shaping: ShapingSource, keywords: Mapping[str, Any]
) -> MultiAgentUnit:
    """Make R rows of seats."""
    return MultiAgentUnit(maker(name, keywords), rows, seed, shaping)


def _find(name: str) -> str:
    known, name = _registered(), _module(name)
    short = {full.rpartition("/")[2]: full for full in known}
    full = name if name in known else short.get(name)
    if full is None:
        close = difflib.get_close_matches(name.rpartition("/")[2], short)
        hint = f" Did you mean {', '.join('pettingzoo/' + short[c] for c in close)}?" if close else ""
        raise EnvSetupError(f"pettingzoo/{name} is not there.{hint} `pbt-rl envs` lists what is installed")
    missing = _missing(full)
    if missing:
        raise EnvSetupError(
            f"pettingzoo/{full} needs the package {', '.join(missing)}: "
            f"pip install 'pettingzoo[{full.partition('/')[0]}]'"
        )
    return full


def _missing(name: str) -> tuple[str, ...]:
    needed = dict.fromkeys(
        package for part, packages in NEEDS.items() if part in name for package in packages
    )
    return tuple(package for package in needed if find_spec(package) is None)


def recipe(spec: EnvSpec) -> dict[str, object]:
    """Defaults of a run: a small network that sees the whole board, large batches, members ranked by Elo."""
    images = any(array.dtype == "uint8" and len(array.shape) == 3 for array in spec.obs.values())
    if images or spec.action.low:
        return {}
    return dict(_BOARDS)


_BOARDS: dict[str, object] = {
    "model.encoder": "mlp",
    "model.hidden": 128,
    "model.layers": 2,
    "learner.rollout": 32,
    "learner.batch": 2048,
    "learner.minibatches": 4,
    "learner.epochs": 2,
    "hypers.unroll": 32,
    "hypers.learning_rate": 1e-3,
    "hypers.entropy_coef": 0.01,
    "hypers.clip_ratio": 0.2,
    "hypers.gamma": 0.99,
    "hypers.gae_lambda": 0.95,
    "train_for_frames": 2_000_000,
    "pbt.period_frames": 100_000,
    "pbt.start_frames": 200_000,
}
