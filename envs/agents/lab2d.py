"""DeepMind Lab2D: the levels of the package `dmlab2d`. Each player is an agent.

    observation   picture `N.RGB` of player N, channels first, as "obs". The setting `spriteSize`, the side of a cell in
                  pixels, determines the size of the picture. With smaller pictures, learning is faster.
    action        discrete components: move, turn, fire ...
    reward        the engine's observation `N.REWARD`, because the engine's own reward stays 0 with several players

In single-player levels, the observation is `WORLD.RGB`, and the reward is the engine's own reward.

The engine does not report whether the time limit ended an episode. Therefore this module counts the steps. An episode
that reaches the limit (`episodeLengthFrames`) is truncated, and a shorter episode is terminated.

--env-option passes settings to the level: `numPlayers=3`, `spriteSize=4`, `episodeLengthFrames=500`, and all other
settings in the level's `init.lua`. Nested settings are JSON:
`avatars={"player":{"%default":{"rewardForBeingZapped":0}}}`.

Axes: S agents (players), A action components.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any

import dmlab2d
import numpy as np
from dmlab2d import runfiles_helper
from numpy.typing import NDArray

from pbt_rl.errors import EnvSetupError

from ..base import ActionSpec, ArraySpec, EnvSpec, ShapingSource
from ..family import keywords_backend
from ..user_values import level_settings
from .multi_agent import MultiAgentVectorEnv, Scene, probe_with

LENGTH = "episodeLengthFrames"
LEVELS: dict[str, dict[str, Any]] = {
    "chase_eat": {"spriteSize": 8, LENGTH: 3000},
    "clean_up": {"numPlayers": 2, "spriteSize": 8, LENGTH: 1000},
    "commons_harvest": {"numPlayers": 2, "spriteSize": 8, LENGTH: 1000},
    "pushbox": {"spriteSize": 8, LENGTH: 120},
    "running_with_scissors": {"numPlayers": 2, "spriteSize": 8, LENGTH: 1000},
}
"""Level -> default settings, which --env-option overrides."""
MOST_PLAYERS = 20
"""Maximum number of players, because the levels have only 20 colours for players."""
LEAST_HEIGHT = 36
"""Minimum picture height for the three convolutions of the Nature CNN."""


class Lab2dTable:
    """Table (see `Table` in multi_agent.py) of one Lab2D environment. Its S agents are the players.

    level: key of LEVELS.
    settings: settings of the level. Raises EnvSetupError if the engine rejects them.
    """

    def __init__(self, level: str, settings: Mapping[str, Any]) -> None:
        self._id = f"dmlab2d/{level}"
        self._limit = _whole(self._id, LENGTH, settings[LENGTH])
        players = settings.get("numPlayers", 0)
        engine_settings = {"levelName": level, **dict(level_settings(settings))}
        try:
            self._world = dmlab2d.Lab2d(runfiles_helper.find(), engine_settings)
            seen = [f"{n}.RGB" for n in range(1, players + 1)] or ["WORLD.RGB"]
            self._rewards = [f"{n}.REWARD" for n in range(1, players + 1)]
            self._engine = dmlab2d.Environment(self._world, [*seen, *self._rewards])
        except (ValueError, RuntimeError, KeyError) as error:
            given = ", ".join(f"{name}={value}" for name, value in settings.items())
            raise EnvSetupError(f"{self._id} cannot be made with {given}: {_first_line(error)}") from error
        self._seen, self._agents = seen, len(seen)
        self._steps = 0
        bounds = self._engine.action_spec()
        first = [name for name in bounds if not players or name.startswith("1.")]
        parts = [name.partition(".")[2] for name in first]
        self._acts = [f"{player}.{part}" for player in range(1, players + 1) for part in parts] or first
        self._low_A = np.array([int(bounds[name].minimum) for name in first], np.int32)
        self._nvec = tuple(int(bounds[name].maximum) - int(bounds[name].minimum) + 1 for name in first)
        self._none = np.zeros(self._agents, np.bool_)

    def describe(self) -> EnvSpec:
        height, width, channels = self._engine.observation_spec()[self._seen[0]].shape
        return EnvSpec(
            env_id=self._id,
            obs={"obs": ArraySpec((channels, height, width), "uint8")},
            action=ActionSpec(nvec=self._nvec),
            agents=self._agents,
        )

    def reset(self, seed: int | None) -> Scene:
        if seed is not None:  # only the constructor seeds the engine's generator
            self._engine = dmlab2d.Environment(self._world, [*self._seen, *self._rewards], seed)
        shown = self._engine.reset()
        self._steps = 0
        return self._scene(shown.observation, np.zeros(self._agents), self._none, self._none)

    def advance(self, action: NDArray[Any]) -> Scene:
        shown = self._engine.step(dict(zip(self._acts, (action + self._low_A).flat, strict=True)))
        self._steps += 1
        reward = np.array([float(shown.observation[name]) for name in self._rewards] or [float(shown.reward)])
        over = np.full(self._agents, shown.last())
        cut = over & (self._steps >= self._limit)
        return self._scene(shown.observation, reward, over & ~cut, cut)

    def _scene(
        self,
        shown: Mapping[str, NDArray[Any]],
        reward: NDArray[np.float64],
        terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_],
    ) -> Scene:
        obs = {agent: {"obs": np.moveaxis(shown[name], -1, 0)} for agent, name in enumerate(self._seen)}
        return Scene(obs, ~(terminated | truncated), reward, terminated, truncated)

    def shape(self, agent: int, values: Mapping[str, Any]) -> None:
        """Do nothing, because levels have no shaping."""

    def close(self) -> None:
        self._engine.close()


def names() -> tuple[str, ...]:
    """Return the names of all levels, sorted."""
    return tuple(sorted(LEVELS))


def probe(level: str, keywords: Mapping[str, Any]) -> EnvSpec:
    """Return the spec of a level. Raises EnvSetupError for an unknown level and for unsupported settings.

    keywords: the user's settings (--env-option).
    """
    settings = _settings(level, keywords)
    return probe_with(lambda: Lab2dTable(level, settings))


def make_vector_env(
    level: str, rows: int, seed: int, shaping: ShapingSource, keywords: Mapping[str, Any]
) -> MultiAgentVectorEnv:
    """Make a vector env of R rows. Each row is a player.

    Raises EnvSetupError as `probe` does, and if R is not a multiple of the number of players.
    """
    settings = _settings(level, keywords)
    return MultiAgentVectorEnv(lambda: Lab2dTable(level, settings), rows, seed, shaping)


def recipe(spec: EnvSpec) -> dict[str, object]:
    """Return the default options of a run: dotted name of a config field -> value.

    The encoder is an MLP for pictures lower than LEAST_HEIGHT (small `spriteSize`), and a CNN for all others.
    """
    small = spec.obs["obs"].shape[1] < LEAST_HEIGHT
    return {
        "model.encoder": "mlp" if small else "nature",
        "model.hidden": (256,),
        "model.layers": 2 if small else 1,
        "learner.rollout": 32,
        "learner.batch": 1024,
        "learner.minibatches": 4,
        "learner.epochs": 2,
        "hypers.unroll": 32,
        "hypers.learning_rate": 5e-4,
        "hypers.entropy_coef": 0.01,
        "hypers.clip_ratio": 0.2,
        "hypers.gamma": 0.99,
        "hypers.gae_lambda": 0.95,
        "hypers.max_grad_norm": 0.5,
        "train_for_frames": 5_000_000,
        "pbt.objective_episodes": 20,
    }


def _settings(level: str, keywords: Mapping[str, Any]) -> dict[str, Any]:
    if level not in LEVELS:
        close = difflib.get_close_matches(level.lower().replace("-", "_"), LEVELS)
        hint = f" Did you mean {', '.join('dmlab2d/' + name for name in close)}?" if close else ""
        raise EnvSetupError(f"dmlab2d/{level} is not a level.{hint} Available: {', '.join(sorted(LEVELS))}")
    if "numPlayers" in keywords and "numPlayers" not in LEVELS[level]:
        raise EnvSetupError(f"dmlab2d/{level} has one player. Remove --env-option numPlayers")
    settings = LEVELS[level] | dict(keywords)
    players = settings.get("numPlayers", 1)
    if _whole(f"dmlab2d/{level}", "numPlayers", players) > MOST_PLAYERS:
        given = f"--env-option numPlayers={players}"
        raise EnvSetupError(f"dmlab2d/{level}: {given} cannot be used. Use at most {MOST_PLAYERS}")
    return settings


def _whole(env_id: str, name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        given = f"--env-option {name}={value}"
        raise EnvSetupError(f"{env_id}: {given} cannot be used. Use a whole number of 1 or more")
    return value


def _first_line(error: Exception) -> str:
    """Return the first line of the engine's message, without colour codes."""
    text = re.sub(r"\x1b\[[0-9;]*m|^ERROR: *", "", str(error).strip().removeprefix("\x1b[0;31m"))
    return text.partition("\n")[0].partition(" (default:")[0].rstrip(".")


BACKEND = keywords_backend("dmlab2d", names, probe, make_vector_env, recipe)
