"""Heartbeats of vector envs: after each row in a loop, or an extended timeout for a call for all rows."""

import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from pbt_rl.envs import custom
from pbt_rl.envs.atari import LIFE_LOSS_PENALTY, SCORE_SCALE, AtariOptions
from pbt_rl.envs.base import private_step_arrays
from pbt_rl.envs.episode_book import AT_ONCE, ROW
from pbt_rl.envs.gym import GymVectorEnv
from pbt_rl.envs.lookup import EnvOptions
from pbt_rl.envs.toy import Identity

ROWS = 3


class Watched:
    """Shaping source with a heartbeat. `seen`: values of its cells at each call of an environment."""

    def __init__(self, shaping=()):
        self.heartbeat = memoryview(bytearray(16)).cast("q")
        self.seen, self.shaping = [], dict.fromkeys(shaping, 0.0)
        self.beats(99)

    def __call__(self, _row):
        return 0, self.shaping

    def beats(self, row):
        self.heartbeat[ROW] = row

    def look(self):
        self.seen.append(tuple(self.heartbeat))

    def taken(self):
        seen, self.seen = self.seen, []
        return seen


class Row(Identity):
    """Environment that records the heartbeat when it is made, reset or stepped."""

    def __init__(self, source):
        super().__init__()
        self.source = source
        source.look()

    def reset(self, **how):
        self.source.look()
        return super().reset(**how)

    def step(self, action):
        self.source.look()
        return super().step(action)


def test_a_loop_over_rows_gives_a_sign_after_each():
    source = Watched()
    vector_env = GymVectorEnv("own:env", lambda: Row(source), ROWS, 0, source)
    one_by_one = [(99, 0), (0, 0), (1, 0)]
    assert (source.taken(), source.heartbeat[ROW]) == (one_by_one, 2)
    out = private_step_arrays(vector_env.spec, ROWS)
    for advance in (
        lambda: vector_env.reset(out),
        lambda: vector_env.step(np.zeros((ROWS, 1), np.int32), out),
    ):
        source.beats(99)
        advance()
        assert (source.taken(), source.heartbeat[ROW]) == (one_by_one, 2)


def test_environments_of_several_agents_give_a_sign_after_each():
    from pbt_rl.envs.agents.multi_agent import MultiAgentVectorEnv
    from tests.envs.agents.test_multi_agent import Ledger

    source = Watched(["mark"])

    class Table(Ledger):
        def __init__(self):
            super().__init__([])
            source.look()

        def reset(self, seed):
            source.look()
            return super().reset(seed)

        def advance(self, action):
            source.look()
            return super().advance(action)

    vector_env = MultiAgentVectorEnv(Table, 9, 0, source)
    assert source.taken() == [(99, 0), (99, 0), (0, 0)]  # first: to count the agents
    out = private_step_arrays(vector_env.spec, 9)
    for advance in (lambda: vector_env.reset(out), lambda: vector_env.step(np.zeros((9, 1), np.int32), out)):
        source.beats(99)
        advance()
        assert source.taken() == [(99, 0), (0, 0), (1, 0)]


def test_what_is_made_and_seeded_in_one_call_is_announced(monkeypatch):
    source = Watched()

    def make(num_envs):
        return SyncVectorEnv([lambda: Row(source)] * num_envs)

    monkeypatch.setattr(custom, "find_factory", lambda _: make)
    vector_env = custom.make_vector_env("own:env", ROWS, 0, EnvOptions(), source)
    assert type(vector_env).__name__ == "NativeVectorEnv"
    announced = source.taken()[-ROWS:]
    assert announced == [(99, ROWS)] * ROWS
    assert (source.heartbeat[ROW] != 99, source.heartbeat[AT_ONCE]) == (True, 0)
    out = private_step_arrays(vector_env.spec, ROWS)
    vector_env.reset(out)
    assert [rows for _, rows in source.taken()] == [ROWS] * ROWS
    vector_env.step(np.zeros((ROWS, 1), np.int32), out)
    assert [rows for _, rows in source.taken()] == [0] * ROWS, "a step of all is one"


def test_atari_announces_the_making_and_seeding_of_its_engine(monkeypatch):
    vector_env = pytest.importorskip("ale_py.vector_env")
    from pbt_rl.envs.ale import AtariVectorEnv

    source = Watched([SCORE_SCALE, LIFE_LOSS_PENALTY])

    class Engine(vector_env.AtariVectorEnv):
        def __init__(self, *arguments, **options):
            source.look()
            super().__init__(*arguments, **options)

        def reset(self, *arguments, **options):
            source.look()
            return super().reset(*arguments, **options)

    monkeypatch.setattr(vector_env, "AtariVectorEnv", Engine)
    vector_env = AtariVectorEnv("pong", ROWS, 0, AtariOptions(), source)
    vector_env.reset(private_step_arrays(vector_env.spec, ROWS))
    assert [rows for _, rows in source.taken()] == [ROWS, ROWS]
    assert source.heartbeat[AT_ONCE] == 0
