"""Whole runs of environments with several agents, and games against others afterwards."""

import json
import os
import signal

import numpy as np
import pytest

from pbt_rl.config import Config, MatchupConfig
from pbt_rl.envs.base import ActionSpec, ArraySpec, EnvSpec, private_step_arrays
from pbt_rl.errors import ConfigError, EnvSetupError
from pbt_rl.plan import Machine, make_plan
from pbt_rl.play.member import RandomPlayer
from pbt_rl.population.matchups.against import play_against, rows_of_agents, wilson
from pbt_rl.population.matchups.run_matchups import check_agents
from pbt_rl.run.resolved import ResolvedRun
from tests.helpers.runs import PROGRESS, start, train

CUES = """
import numpy as np
from gymnasium import spaces

class Cues:
    '''Each of two agents is shown a number of its own and has to answer it; the other one's answer costs.'''
    possible_agents = ["left", "right"]

    def observation_space(self, agent):
        return spaces.Discrete(4)

    def action_space(self, agent):
        return spaces.Discrete(4)

    def reset(self, seed=None, options=None):
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.agents, self.time, self.right = list(self.possible_agents), 0, {"left": 0, "right": 0}
        return self.show(), {}

    def show(self):
        self.cue = {agent: int(self.rng.integers(4)) for agent in self.agents}
        return self.cue

    def step(self, actions):
        assert set(actions) == set(self.agents)
        right = {agent: int(actions[agent] == self.cue[agent]) for agent in self.agents}
        self.time += 1
        for agent in self.agents:
            self.right[agent] += right[agent]
        over = self.time == 5
        infos = {agent: {"true_objective": self.right[agent] / 5} if over else {} for agent in self.agents}
        rewards = {"left": right["left"] - 0.1 * right["right"], "right": right["right"] - 0.1 * right["left"]}
        obs, ends = self.show(), dict.fromkeys(self.agents, over)
        if over:
            self.agents = []
        return obs, rewards, ends, dict.fromkeys(ends, False), infos

    def close(self):
        pass
"""


@pytest.mark.long
def test_an_asynchronous_run_with_a_killed_actor_and_replacements_learns_its_own_cues(tmp_path):
    """What belongs to another row cannot be answered better than by chance, 0.25."""
    (tmp_path / "cues.py").write_text(CUES)
    options = (
        "--num-policies=3 --actors=2 --matchup.scheme=random --train-for-frames=16000 --pbt.period-frames=2000"
        " --pbt.start-frames=0 --pbt.min-episodes=1 --pbt.objective-episodes=50 --learner.batch=256"
    )
    run = train(tmp_path, "cues:Cues", *options.split())
    run.wait_for(PROGRESS, 90)
    os.kill(run.children("actor")[0].pid, signal.SIGKILL)
    assert run.wait() == 0, run.err
    assert run.summary["actors_restarted"] == 1
    applied = [event["donor"] for event in run.events("applied")]
    assert any(donor is not None for donor in applied), "someone was replaced"
    judged = [m for m in run.summary["members"] if m["objective"] is not None]
    assert judged, "the others became copies just now"
    for member in judged:
        assert member["objective"] > 0.85, run.out
        assert 0 <= member["win_rate"] <= 1
    matchups = run.events("matchup")
    assert [event["matchup_version"] for event in matchups] == list(range(1, len(matchups) + 1))
    assert len(matchups) > 4
    agents = np.array([event["games"] for event in matchups]).sum(2)
    assert (agents == agents[0, 0]).all(), "every member plays equally many agents"
    assert start(tmp_path, "audit", "runs/x").wait() == 0


SERIAL = (
    "--mode=serial --num-policies=2 --train-for-frames=2400 --pbt.period-frames=600 --pbt.start-frames=0"
    " --pbt.min-episodes=1 --learner.batch=512 --matchup.objective=elo --save-every-frames=800"
)


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """Two serial runs of tic-tac-toe with one seed."""
    pytest.importorskip("pettingzoo")
    folder = tmp_path_factory.mktemp("played")
    for name in ("x", "y"):
        run = train(folder, "pettingzoo/tictactoe_v3", *SERIAL.split(), f"--name={name}")
        assert run.wait() == 0, run.err
    return folder


def journal(folder):
    return [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]


@pytest.mark.long
def test_a_serial_run_is_the_same_again_matchups_and_ratings_too(played):
    def told(name):
        events = [e for e in journal(played / "runs" / name) if e["event"] in ("matchup", "round")]
        return [{k: v for k, v in e.items() if k != "time"} for e in events]

    assert told("x") == told("y")
    rounds = [e for e in told("x") if e["event"] == "round"]
    assert len(rounds) >= 2
    elos = [m["objectives"] for m in rounds[-1]["report"]["members"]]
    assert all(len(elo) == 1 and 500 < elo[0] < 1500 for elo in elos), "ranked by one rating each"


@pytest.mark.long
@pytest.mark.parametrize("against", ["random", "runs/y", "runs/x@800:1", "lefty:first_allowed"])
def test_games_against_others(pbt_rl, played, monkeypatch, against):
    monkeypatch.chdir(played)
    monkeypatch.syspath_prepend(played)
    (played / "lefty.py").write_text(
        "def first_allowed(spec):\n    return lambda obs, first: obs['action_mask'].argmax(1)[:, None]\n"
    )
    code, out, err = pbt_rl("eval", "runs/x", "--episodes", "21", "--against", against)
    assert (code, err) == (0, "")
    assert "22 games of pettingzoo/tictactoe_v3" in out, "as both agents equally often"
    win, draw, loss = (int(word) for word in out.split("win ")[1].replace(",", "").split()[0:5:2])
    assert win + draw + loss == 22


@pytest.mark.long
@pytest.mark.parametrize(
    ("against", "said"),
    [
        ("runs/x@7", "7 frames"),
        ("runs/x@800:9", "member 9"),
        ("lefty2:wrong_shape", "shape (8,)"),
        ("lefty2:no_function", "returned int"),
        ("lefty2:missing", "'missing'"),
    ],
)
def test_opponents_that_are_not_there(pbt_rl, played, monkeypatch, against, said):
    monkeypatch.chdir(played)
    monkeypatch.syspath_prepend(played)
    (played / "lefty2.py").write_text(
        "def wrong_shape(spec):\n    return lambda obs, first: obs['action_mask'].argmax(1)\n"
        "def no_function(spec):\n    return 3\n"
    )
    code, _, err = pbt_rl("eval", "runs/x", "--episodes", "8", "--against", against)
    assert code == 2
    assert said in err
    assert "Traceback" not in err


class Higher:
    """A vector env of games of three agents in which the highest action wins; each game is one step."""

    spec = EnvSpec("test/higher", {"obs": ArraySpec((1,), "float32")}, ActionSpec(nvec=(9,)), agents=3)

    def __init__(self, games):
        self.rows = games * 3
        self.over = False

    def reset(self, out):
        out.first[:] = True
        out.episode_done[:] = False

    def step(self, action, out):
        out.episode_done[:] = not self.over
        out.first[:] = self.over
        out.objective[:] = action[:, 0]
        self.over = not self.over


class Always:
    def __init__(self, *answers):
        self.answers = answers

    def act(self, step):
        return np.resize(np.array(self.answers, np.int32), (len(step.first), 1))


@pytest.mark.parametrize(
    ("own", "others", "result"), [(5, (3, 4), (9, 0, 0)), (4, (3, 4), (0, 9, 0)), (3, (3, 4), (0, 0, 9))]
)
def test_who_wins(own, others, result):
    games = play_against(Higher(3), Always(own), Always(*others), [3, 3, 3])
    assert (games.wins, games.draws, games.losses) == result
    assert games.objectives == (own,) * 9
    assert games.others == (3.5,) * 9


@pytest.mark.parametrize("method", ["reset", "step"])
def test_an_error_of_the_environment_in_a_game_is_reported_as_its_error(method, monkeypatch):
    def fail(*_):
        raise OSError("the game server is gone")

    monkeypatch.setattr(Higher, method, fail)
    with pytest.raises(EnvSetupError, match=rf"test/higher .*OSError in {method}(.|\n)*server is gone"):
        play_against(Higher(3), Always(5), Always(3, 4), [3, 3, 3])


def test_the_player_plays_every_agent():
    own, others = rows_of_agents(4, 2)
    assert own == [0, 3, 4, 7]
    assert sorted(own + others) == list(range(8))


def test_a_random_player_keeps_to_the_mask():
    spec = EnvSpec("test/x", {"action_mask": ArraySpec((5,), "uint8")}, ActionSpec(nvec=(2, 3)), agents=2)
    step = private_step_arrays(spec, 400)
    step.obs["action_mask"][:] = [0, 1, 1, 0, 1]
    step.obs["action_mask"][0] = 0
    action = RandomPlayer(spec, 0).act(step)
    assert action.dtype == np.int32
    assert action[0].tolist() == [0, 0]
    assert set(map(tuple, action[1:].tolist())) == {(1, 0), (1, 2)}


def test_wilson_against_its_published_values():
    """Newcombe 1998, "Two-sided confidence intervals for the single proportion", table I, method 3."""
    for r, n, low, high in ((81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611)):
        assert wilson(r, n) == pytest.approx((low, high), abs=5e-5)


HERE = Machine(2, 0)


@pytest.mark.parametrize(
    ("policies", "scheme", "said"),
    [(3, "round-robin", "multiple of 2"), (1, "round-robin", "itself"), (2, "self", "itself")],
)
def test_rows_that_do_not_fill_the_agents(policies, scheme, said):
    config = Config(
        env="x/y", envs_per_vector_env=3, num_policies=policies, matchup=MatchupConfig(scheme=scheme)
    )
    with pytest.raises(ConfigError, match=rf"--envs-per-vector-env 3 .*{said}"):
        check_agents(config, 2, make_plan(config, HERE, 2))
    fits = Config(env="x/y", envs_per_vector_env=3, num_policies=2)
    check_agents(fits, 2, make_plan(fits, HERE, 2))


@pytest.mark.parametrize(
    ("env", "options", "said"),
    [
        ("toy/identity", {}, "one agent"),
        ("pettingzoo/tictactoe_v3", {"num_policies": 1}, "one policy"),
        ("pettingzoo/tictactoe_v3", {"devices": "cpu,cpu"}, "2 devices"),
    ],
)
def test_elo_needs_members_that_meet(env, options, said):
    pytest.importorskip("pettingzoo")
    with pytest.raises(ConfigError, match=said):
        ResolvedRun.resolve(Config(env=env, matchup=MatchupConfig(objective="elo"), **options), HERE)
