"""Agents as rows: no step is lost or delivered to a wrong row, whatever the matchups and their changes."""

import numpy as np
import pytest

from pbt_rl.envs.agents.multi_agent import MultiAgentVectorEnv, Scene
from pbt_rl.envs.base import (
    ActionSpec,
    ArraySpec,
    EnvSpec,
    FollowsMatchups,
    default_shaping_source,
    private_step_arrays,
)
from pbt_rl.errors import EnvSetupError

AGENTS, ROWS = 3, 12
SPEC = EnvSpec(
    "test/ledger",
    {"obs": ArraySpec((4,), "float32")},
    ActionSpec(nvec=(1000,)),
    shaping={"mark": 0.0},
    agents=AGENTS,
)


class Ledger:
    """Each agent sees (environment, agent, episode, step); a step pays the action plus a thousandth of its number.

    SlotChange 2 leaves after 2 steps in every episode. Episodes end after 4 + environment steps.
    """

    made = 0

    def __init__(self, log):
        self.number, self.log = Ledger.made, log
        Ledger.made += 1
        self.episode, self.marks = -1, [0.0] * AGENTS

    def describe(self):
        return SPEC

    def shape(self, agent, values):
        self.marks[agent] = values["mark"]

    def reset(self, seed):
        self.episode, self.t = self.episode + 1, 0
        none = np.zeros(AGENTS, bool)
        return Scene(self.see(range(AGENTS)), ~none, np.zeros(AGENTS), none, none)

    def see(self, agents):
        return {s: {"obs": np.array([self.number, s, self.episode, self.t])} for s in agents}

    def advance(self, action):
        was = np.array([True, True, self.t < 2])
        self.t += 1
        over = self.t == 4 + self.number
        ends = np.array([over, over, self.t >= 2])
        self.log.append((self.number, self.episode, self.t, action[:, 0].tolist()))
        reward = action[:, 0] + self.t / 1000
        objective = {0: 10.0 * self.marks[0], 2: 5.0}
        terminated = ends & was & (np.arange(3) != 1)
        return Scene(self.see(np.flatnonzero(was)), ~ends, reward, terminated, ends & was, objective)

    def close(self):
        self.log.append("closed")


@pytest.fixture
def ledger():
    Ledger.made = 0
    log = []
    vector_env = MultiAgentVectorEnv(
        lambda: Ledger(log), ROWS, 0, lambda row: (100 + row, {"mark": float(row)})
    )
    yield vector_env, log
    vector_env.close()


def test_it_follows_matchups(ledger):
    assert isinstance(ledger[0], FollowsMatchups)


def test_every_action_and_reward_is_its_own_rows(ledger):
    """Matchups are random and change at random steps. Each action encodes its row and step."""
    vector_env, log = ledger
    rng = np.random.default_rng(0)
    matchup = [0, np.arange(ROWS).reshape(-1, AGENTS)]
    vector_env.follow(lambda: tuple(matchup))
    out = private_step_arrays(SPEC, ROWS)
    vector_env.reset(out)
    assert out.first.all()
    changes = games = cuts = 0
    over = np.zeros(ROWS, bool)
    cut_before = False
    for _ in range(400):
        agent_before, obs_before, first_before = out.agent.copy(), out.obs["obs"].copy(), out.first.copy()
        if rng.random() < 0.1:
            matchup[:] = [matchup[0] + 1, rng.permutation(ROWS).reshape(-1, AGENTS)]
            changes += 1
        action = rng.integers(0, 1000, (ROWS, 1)).astype(np.int32)
        del log[:]
        vector_env.step(action, out)
        told = {(number, s): acts[s] for number, _, _, acts in log for s in range(AGENTS)}
        for row in range(ROWS):
            e, s = divmod(int(out.agent[row]), AGENTS)
            if out.first[row]:
                assert (out.reward[row], out.terminated[row], out.truncated[row]) == (0, False, False)
                continue
            assert out.agent[row] == agent_before[row], "agents change with an episode only"
            assert told[e, s] == action[row, 0]
            number, agent, episode, t = out.obs["obs"][row].tolist()
            assert (number, agent) == (e, s)
            assert (episode, t) == (obs_before[row][2], obs_before[row][3] + 1), "no step is lost"
            assert out.reward[row] == pytest.approx(action[row, 0] + t / 1000)
        waiting = out.first & (out.agent % AGENTS == 2)
        if (out.agent == agent_before).all():
            assert (waiting | ~first_before | ~out.first).all(), "only who has left waits"
        done = out.episode_done
        for e in range(ROWS // AGENTS):
            rows = np.flatnonzero(out.agent // AGENTS == e)
            assert len(rows) == AGENTS
            assert len(set(done[rows].tolist())) == 1, "a game ends for all of its agents"
            games += bool(done[rows[0]])
        for row in np.flatnonzero(done):
            e, s = divmod(int(out.agent[row]), AGENTS)
            assert out.length[row] == (2 if s == 2 else 4 + e)
            assert out.shaping_version[row] == 100 + row
            assert out.objective[row] == (10 * row if s == 0 else 5 if s == 2 else out.raw_return[row])
            assert out.terminated[row] == (s == 0), "agent 1 was cut, agent 2 left long ago"
            assert out.truncated[row] == (s == 1)
        cut = out.truncated & ~done & (out.agent % AGENTS != 2)
        cuts += bool(cut.any())
        ended = done | cut
        if cut_before:
            assert out.first.all(), "after a cut all begin together"
        assert (out.first[over & (out.agent == agent_before)]).all()
        over, cut_before = ended, cut.any()
        if cut.any():
            np.testing.assert_array_equal(out.terminated[cut], False)
    assert min(changes - 20, cuts - 10, games - 50) > 0


def test_a_agent_that_left_waits_masked_and_is_reported_at_the_end(ledger):
    vector_env, _ = ledger
    out = private_step_arrays(SPEC, ROWS)
    vector_env.reset(out)
    action = np.ones((ROWS, 1), np.int32)
    rows = []
    for _ in range(5):
        vector_env.step(action, out)
        rows.append(tuple(of[2].item() for of in (out.first, out.terminated, out.episode_done, out.reward)))
    assert rows[0] == (False, False, False, pytest.approx(1.001))
    assert rows[1] == (False, True, False, pytest.approx(1.002))
    assert rows[2] == (True, False, False, 0)
    assert rows[3] == (True, False, True, 0)
    assert rows[4] == (True, False, False, 0)
    assert out.first[:3].all(), "all agents begin together"


def test_rows_must_fill_the_agents():
    with pytest.raises(EnvSetupError, match=r"\b3 agents.* 4 "):
        MultiAgentVectorEnv(lambda: Ledger([]), 4, 0, default_shaping_source(SPEC))


def test_environments_that_differ_are_refused_and_closed():
    log = []

    class Other(Ledger):
        def describe(self):
            return SPEC if self.number % 2 == 0 else EnvSpec("test/x", SPEC.obs, SPEC.action, agents=AGENTS)

    Ledger.made = 0
    with pytest.raises(EnvSetupError, match="differ"):
        MultiAgentVectorEnv(lambda: Other(log), 6, 0, default_shaping_source(SPEC))
    assert log == ["closed", "closed"]


def test_a_failed_construction_closes_what_was_made():
    log = []

    def make():
        if Ledger.made == 2:
            raise OSError("no third")
        return Ledger(log)

    Ledger.made = 0
    with pytest.raises(OSError, match="no third"):
        MultiAgentVectorEnv(make, 9, 0, default_shaping_source(SPEC))
    assert log == ["closed", "closed"]
