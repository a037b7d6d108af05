"""Doom: the scenarios of the package `vizdoom`, on its own engine.

A row is a game in a separate process (see `game.py`), or one of the two players of a game (see `duel.py`). A step is 4
tics of the engine. There are 35 tics per second. Frames are tics.

    observation   "obs": screen, 128x72 RGB. "measurements": health, armour, ammunition, and weapons if the scenario has
                  a choice of weapons
    action        discrete components. Turning has a few angles. There are no continuous actions.
    reward        factor * scenario's reward + coefficients * events (kills, hits, damage, health, ammunition ...).
                  Factor and coefficients are shaping values.
    objective     sum of the scenario's rewards, or number of kills, frags or tics, depending on the scenario. The
                  objective is independent of the shaping.

The time limit of the engine is switched off. If the engine ended an episode by a time limit, the engine would provide
no final picture and would not report the reason. The vector env truncates episodes at the limit. An episode that
ends by an event of the game (death, goal) is terminated.

Axes: R rows, V game variables, E events, A action components.
"""

from __future__ import annotations

import difflib
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbt_rl.errors import EnvSetupError

from ..base import ActionSpec, ArraySpec, EnvSpec, ShapingSource, StepArrays, VectorEnv
from ..episode_book import ROW, EpisodeBook, heartbeat_of, with_heartbeat, write_reset
from ..family import Backend
from .duel import DuelVectorEnv
from .game import PICTURE, Buttons, Games, Senses, measurements, shrink
from .scenarios import OWN_REWARD, SCENARIOS, Scenario

FRAME_SKIP = 4
TICS_PER_SECOND = 35


def names() -> tuple[str, ...]:
    """Return all scenarios, sorted."""
    return tuple(sorted(SCENARIOS))


def probe(name: str) -> EnvSpec:
    """Return the spec of a scenario without starting a game. Raises EnvSetupError for an unknown scenario."""
    scenario = find(name)
    measured = ArraySpec((measurements(scenario),), "float32")
    return EnvSpec(
        env_id=f"vizdoom/{name}",
        obs={"obs": ArraySpec(PICTURE, "uint8"), "measurements": measured},
        action=ActionSpec(nvec=tuple(len(choices) for choices in scenario.actions)),
        frame_skip=FRAME_SKIP,
        shaping=scenario.shaping,
        agents=scenario.agents,
    )


def recipe(name: str) -> dict[str, object]:
    """Return the default options of a run: dotted name of a config field -> value."""
    scenario = find(name)
    # The two engines of a duel take a second to start.
    duel = {"envs_per_vector_env": 4, "actor_timeout_seconds": 300.0}
    return {
        **(duel if scenario.agents > 1 else {}),
        "model.encoder": "nature",
        "model.hidden": (256,),
        "model.layers": 1,
        "model.core": scenario.core,
        "learner.rollout": 32,
        "learner.batch": 1024,
        "learner.minibatches": 4,
        "learner.epochs": 2,
        "learner.returns": "gae",
        "hypers.unroll": 32,
        "hypers.learning_rate": 3e-4,
        # With 0.005, defend_the_center converged to turning and shooting, with 4.3 kills.
        "hypers.entropy_coef": 0.02,
        "hypers.clip_ratio": 0.2,
        "hypers.gamma": 0.99,
        "hypers.gae_lambda": 0.95,
        "hypers.max_grad_norm": 0.5,
        "train_for_frames": scenario.frames,
    }


def make_vector_env(name: str, rows: int, seed: int, shaping: ShapingSource) -> VectorEnv:
    """Make a vector env of R rows. Each row is a player.

    Raises EnvSetupError for an unknown scenario, and if R is not a multiple of the scenario's number of agents.
    """
    scenario = find(name)
    if scenario.agents == 1:
        return DoomVectorEnv(name, rows, seed, shaping)
    return DuelVectorEnv(probe(name), scenario, rows, seed, shaping)


class DoomVectorEnv:
    """Vector env of R single-player games of one scenario. Equal seeds give equal episodes."""

    def __init__(self, name: str, rows: int, seed: int, shaping: ShapingSource) -> None:
        assert rows > 0
        self.spec = probe(name)
        self.rows = rows
        self._scenario = scenario = find(name)
        self._book = EpisodeBook(rows, shaping)
        self._buttons, self._senses = Buttons(scenario), Senses(scenario)

        self._over_R = np.zeros(rows, np.bool_)
        self._values_RV = np.zeros((rows, len(self._senses.names)))
        self._reward_factor_R = np.zeros(rows)
        self._coefficients_RE = np.zeros((rows, len(self._senses.events)))
        self._heartbeat = heartbeat_of(shaping)
        seeds = with_heartbeat(self._heartbeat, np.random.SeedSequence(seed).generate_state(rows).tolist())
        self._games = Games(scenario.config or name, scenario.bots, self._buttons.names, seeds)
        self._respawned: list[int] = []

    def reset(self, out: StepArrays) -> None:
        for row in with_heartbeat(self._heartbeat, range(self.rows)):
            self._begin_episode(row, out)
        self._over_R[:] = False
        write_reset(out)
        self._write(out)

    def step(self, action: NDArray[Any], out: StepArrays) -> None:
        """Advance every row by one step. action: [R, A] int32."""
        starts_R = self._over_R
        before_RV = self._values_RV.copy()
        scripted_R = np.zeros(self.rows)
        ended_R = np.zeros(self.rows, np.bool_)
        for row in range(self.rows):
            if starts_R[row]:
                self._begin_episode(row, out)
            else:
                scripted_R[row], ended_R[row] = self._advance(row, action[row], out)
            self._heartbeat[ROW] = row
        played_R = ~starts_R
        length_R = self._book.length_R + played_R
        cut_R = played_R & ~ended_R & (length_R * FRAME_SKIP >= self._scenario.limit)

        event_RE = self._senses.happened(before_RV, self._values_RV)
        while self._respawned:
            self._read(self._respawned.pop())
        reward_R = self._reward_factor_R * scripted_R + (self._coefficients_RE * event_RE).sum(1)
        out.reward[:] = reward_R * played_R
        out.terminated[:] = ended_R
        out.truncated[:] = cut_R
        out.first[:] = starts_R
        out.episode_done[:] = self._over_R = ended_R | cut_R
        self._book.add(scripted_R, out.reward, played_R)
        self._write(out)

    def close(self) -> None:
        """End the games. Safe to call twice."""
        self._games.close()

    def cpu_ns(self) -> int:
        """Return the total CPU time of this process and the games in nanoseconds."""
        return time.process_time_ns() + self._games.cpu_ns()

    def _begin_episode(self, row: int, out: StepArrays) -> None:
        values = self._book.open_episode(row)
        self._reward_factor_R[row] = values.get(OWN_REWARD, 0.0)
        self._coefficients_RE[row] = [values[name] for name in self._senses.events]
        game = self._games.begin_episode(row)
        self._read(row)
        shrink(game.get_state().screen_buffer, out.obs["obs"][row])

    def _advance(self, row: int, action_A: NDArray[Any], out: StepArrays) -> tuple[float, bool]:
        """Step one game. Return (scenario's reward, True if the game has ended).

        An ended game has no picture, so the last picture stays in `out`.
        """
        game = self._games.running[row]
        scripted = game.make_action(self._buttons.pressed(action_A), FRAME_SKIP)
        self._read(row)
        if self._scenario.bots and game.is_player_dead() and not game.is_episode_finished():
            game.respawn_player()
            self._respawned.append(row)
        state = game.get_state()
        if state is not None:
            shrink(state.screen_buffer, out.obs["obs"][row])
        return scripted, state is None

    def _read(self, row: int) -> None:
        self._values_RV[row] = self._senses.read(self._games.running[row])

    def _write(self, out: StepArrays) -> None:
        out.obs["measurements"][:] = self._senses.measurements(self._values_RV)
        self._book.write(out, self._objectives())

    def _objectives(self) -> NDArray[np.float64]:
        match self._scenario.objective:
            case "reward":
                return self._book.raw_R
            case "tics":
                return (self._book.length_R * FRAME_SKIP).astype(np.float64)
            case "kills":
                return self._senses.of("KILLCOUNT", self._values_RV)
            case "frags":
                return self._senses.of("FRAGCOUNT", self._values_RV)


def find(name: str) -> Scenario:
    """Return the scenario of a name. Raises EnvSetupError for an unknown name."""
    if name not in SCENARIOS:
        typed = name.lower().replace("-", "_")
        close = [known for known in SCENARIOS if known.startswith(typed)] if typed else []
        close = close[:3] or difflib.get_close_matches(typed, SCENARIOS)
        hint = f" Did you mean {', '.join('vizdoom/' + n for n in close)}?" if close else ""
        raise EnvSetupError(
            f"vizdoom/{name} is not a scenario.{hint} `pbt-rl envs` lists all {len(SCENARIOS)} scenarios"
        )
    return SCENARIOS[name]


BACKEND = Backend(
    names=names,
    probe=lambda name, _options: probe(name),
    make_vector_env=lambda name, rows, seed, _options, shaping: make_vector_env(name, rows, seed, shaping),
    recipe=lambda name, _options: recipe(name),
    film=lambda name, rows, seed, _options, shaping: (
        make_vector_env(name, rows, seed, shaping),
        TICS_PER_SECOND,
    ),
)
