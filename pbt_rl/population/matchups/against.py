"""`pbt-rl eval RUN --against ...`: games of a trained member against an opponent.

Opponents: a member of another run, an earlier state of the member, a random policy, or a custom policy. The member
plays each agent position equally often. In a game of more than two agents, the opponent plays all other agents.

Axes: G simultaneous games, R = G * S rows, S agents, A action components.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbt_rl.controllers.objectives import mean
from pbt_rl.envs.base import (
    EnvSpec,
    StepArrays,
    VectorEnv,
    default_shaping_source,
    private_step_arrays,
)
from pbt_rl.envs.custom import find_factory
from pbt_rl.envs.lookup import make_vector_env, probe
from pbt_rl.envs.time_limits import closing
from pbt_rl.errors import ConfigError, environment_code
from pbt_rl.learner.build import one_thread
from pbt_rl.play.member import Acts, Player, Policy, RandomPlayer, load_pack, say, shares
from pbt_rl.record.saved import Source, saved_to_play

MAX_GAMES = 16
"""Maximum number of simultaneous games, before rounding up to a multiple of the number of agents."""
CONFIDENCE = 0.95
Act = Callable[[Mapping[str, NDArray[Any]], NDArray[np.bool_]], NDArray[Any]]
"""Custom policy: function (observations, first) -> actions [N, A] of N rows.

observations: name -> [N, ...]. first: [N] bool, True at the first step of a game.
"""


@dataclass(frozen=True)
class Result:
    """Results of a player's games.

    A game is won if the player's objective is above those of all other agents, and drawn if it equals the highest.
    """

    wins: int
    draws: int
    losses: int
    objectives: tuple[float, ...]
    """Objective of the player in each game."""
    others: tuple[float, ...]
    """Mean objective of the other agents in each game."""

    @property
    def games(self) -> int:
        """Number of games."""
        return self.wins + self.draws + self.losses

    def lines(self) -> list[str]:
        """Return the result as text lines."""
        low, high = wilson(self.wins, self.games)
        interval = f"between {low:.1%} and {high:.1%} with {CONFIDENCE:.0%} confidence"
        score = (self.wins + self.draws / 2) / self.games
        return [
            f"win {self.wins}, draw {self.draws}, loss {self.losses} of {self.games} games",
            f"wins {self.wins / self.games:.1%} ({interval}), score {score:.3f}",
            f"objective: mean {mean(self.objectives):.4g}, the others {mean(self.others):.4g}",
        ]


def _ranked(objective: float) -> float:
    """Return an objective for comparisons of agents. NaN becomes -inf."""
    return -math.inf if math.isnan(objective) else objective


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Return the confidence interval of a proportion (Wilson 1927, "Probable inference, the law of succession").

    The interval is centre +- half, with the normal quantile z, n trials and the observed proportion p:
    centre = (p + z^2 / 2n) / (1 + z^2 / n), half = z / (1 + z^2 / n) sqrt(p (1 - p) / n + z^2 / 4n^2).
    """
    z = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)
    p, n = successes / trials, trials
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def evaluate_against(
    source: Source,
    against: str,
    games: int,
    seed: int,
    *,
    greedy: bool,
    trust: bool = False,
) -> None:
    """Play games, and print the result. games: number of games, rounded up to an equal number per agent position.

    against: `random`, RUN[@FRAMES][:MEMBER], or `module:factory`. The defaults are the newest checkpoint and
    its best member. The factory is called with the EnvSpec, and returns an `Act`.
    trust: True if user code of the runs may be imported.
    Raises ConfigError if the member or the opponent cannot be loaded, for an environment with one agent, and for
    actions of a wrong shape. Raises EnvSetupError if the environment or the custom policy raises an error.
    """
    config, saved = saved_to_play(source, say, trust=trust)
    with environment_code(config.env):
        spec = probe(config.env, config.env_options)
    if spec.agents == 1:
        raise ConfigError(
            f"--against {against} cannot be used: {config.env} has one agent: leave out --against"
        )
    total = -(-games // spec.agents) * spec.agents
    tables = min(total, -(-MAX_GAMES // spec.agents) * spec.agents)
    pack = load_pack(config, spec, saved, seed)
    player = Player(Policy(pack, spec, config.model, seed, greedy=greedy))
    opponent, name = find_opponent(against, spec, seed + 1, greedy=greedy, trust=trust)
    how = "greedy" if greedy else "sampled"
    print(f"{saved} against {name}: {total} games of {config.env}, {how} actions")
    with environment_code(spec.env_id):
        vector_env = make_vector_env(
            spec.env_id, tables * spec.agents, seed, config.env_options, default_shaping_source(spec)
        )
    with closing(vector_env), one_thread():
        print("\n".join(play_against(vector_env, player, opponent, shares(total, tables)).lines()))


def rows_of_agents(games: int, agents: int) -> tuple[list[int], list[int]]:
    """Return the rows of the player, which is agent g % S in game g, and the rows of all other agents. S: agents."""
    rows = [g * agents + g % agents for g in range(games)]
    return rows, [row for row in range(games * agents) if row not in set(rows)]


def play_against(vector_env: VectorEnv, player: Acts, opponent: Acts, share_G: list[int]) -> Result:
    """Play `share_G[g]` games in environment g. The player is agent g % S of S agents.

    Raises EnvSetupError if the environment raises an error, and the errors of `player` and `opponent`.
    """
    agents = vector_env.spec.agents
    sides = tuple(zip((player, opponent), rows_of_agents(len(share_G), agents), strict=True))
    step = private_step_arrays(vector_env.spec, vector_env.rows)
    action_RA = np.zeros((vector_env.rows, vector_env.spec.action.components), vector_env.spec.action.dtype)
    left = list(share_G)
    wins = draws = losses = 0
    objectives, others = [], []
    with environment_code(vector_env.spec.env_id, "in reset"):
        vector_env.reset(step)
    while any(left):
        for side, rows in sides:
            action_RA[rows] = side.act(_part(step, rows))
        with environment_code(vector_env.spec.env_id, "in step"):
            vector_env.step(action_RA, step)
        for g in range(len(left)):
            mine = g * agents + g % agents
            if not step.episode_done[mine] or not left[g]:
                continue
            left[g] -= 1
            score = float(step.objective[mine])
            rest = [float(step.objective[g * agents + s]) for s in range(agents) if s != g % agents]
            mine_ranked, best = _ranked(score), max(map(_ranked, rest))
            wins += mine_ranked > best
            draws += mine_ranked == best
            losses += mine_ranked < best
            objectives.append(score)
            others.append(mean(rest))
    return Result(wins, draws, losses, tuple(objectives), tuple(others))


def _part(step: StepArrays, rows: list[int]) -> StepArrays:
    """Copy some rows of a step."""
    rest: dict[str, Any] = {f.name: getattr(step, f.name) for f in dataclasses.fields(step)}
    obs = {name: array[rows] for name, array in rest.pop("obs").items()}
    fields: dict[str, Any] = {name: None if array is None else array[rows] for name, array in rest.items()}
    return StepArrays(obs=obs, **fields)


# -- opponents ----------------------------------------------------------------------------------------------


class CustomPlayer:
    """User-defined policy."""

    def __init__(self, name: str, act: Act, spec: EnvSpec) -> None:
        self._name, self._act, self._spec = name, act, spec

    def act(self, step: StepArrays) -> NDArray[Any]:
        """Return the actions, one row per row of `step`.

        Raises ConfigError for a wrong shape, and EnvSetupError if the policy raises an error.
        """
        with environment_code(f"--against {self._name}", "when it acted"):
            action = np.asarray(self._act(step.obs, step.first))
        wanted = (len(step.first), self._spec.action.components)
        if action.shape != wanted:
            raise ConfigError(
                f"--against {self._name} returned an array of shape {action.shape}: give [N, A] = {wanted} actions"
            )
        return action


def find_opponent(
    against: str, spec: EnvSpec, seed: int, *, greedy: bool, trust: bool = False
) -> tuple[Acts, str]:
    """Return (opponent, its display name). Raises ConfigError if the opponent cannot be loaded.

    Raises EnvSetupError if the environment of another run, or the factory of a custom policy, raises an error.
    """
    if against == "random":
        return RandomPlayer(spec, seed), "random actions"
    source = Source.of(against)
    if source is not None:
        config, saved = saved_to_play(source, say, trust=trust)
        with environment_code(config.env):
            theirs = probe(config.env, config.env_options)
        if (theirs.obs, theirs.action, theirs.agents) != (spec.obs, spec.action, spec.agents):
            raise ConfigError(
                f"--against {against} cannot be used: {config.env} has other observations, actions or agents"
            )
        pack = load_pack(config, theirs, saved, seed)
        return Player(Policy(pack, theirs, config.model, seed, greedy=greedy)), str(saved)
    if ":" in against:
        with environment_code(f"--against {against}"):
            act = find_factory(against)(spec)
        if not callable(act):
            raise ConfigError(
                f"--against {against} returned {type(act).__name__}: return a function of (observations, first) that "
                "returns actions [N, A]"
            )
        return CustomPlayer(against, act, spec), against
    raise ConfigError(
        f"--against {against!r} cannot be used: give random, a member of a run (RUN[@FRAMES][:MEMBER]), or "
        "module:factory"
    )
