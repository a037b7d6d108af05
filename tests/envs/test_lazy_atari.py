"""Lazy construction of Atari vector envs, with counting fakes instead of emulators."""

import numpy as np
import pytest

from pbt_rl.envs.ale import AtariVectorEnv
from pbt_rl.envs.atari import AtariOptions
from pbt_rl.envs.base import private_step_arrays
from pbt_rl.envs.episode_book import AT_ONCE
from pbt_rl.envs.lazy_atari import ENGINE_ROWS, WHOLE_ROWS, dealt, lazy_vector_env
from pbt_rl.envs.lazy_construction import LazilyConstructed

ROWS = 70


class Source:
    """Shaping source that allows lazy construction, like an actor's source."""

    may_be_lazy = True

    def __init__(self):
        self.heartbeat = memoryview(bytearray(16)).cast("q")
        self.begun = []

    def __call__(self, row):
        self.begun.append(row)
        return 7, {"score_scale": 1.0}


class Counting:
    """Engine whose rows observe their seed, score their action, and end after `ends` steps."""

    ends = 5

    def __init__(self, heartbeat, rows):
        self.rows, self.heartbeat, self.step_number = rows, heartbeat, 0
        assert heartbeat[AT_ONCE] >= rows, "making it is announced"

    def reset(self, *, seed=None):
        self.seed = np.zeros(self.rows, np.int64) if seed is None else seed
        assert self.heartbeat[AT_ONCE] >= self.rows, "resetting it is announced"
        return self._frames(), {"lives": np.full(self.rows, 3)}

    def step(self, action):
        self.step_number += 1
        over = np.full(self.rows, self.step_number % self.ends == 0)
        return (
            self._frames(),
            action.astype(float),
            over,
            np.zeros(self.rows, bool),
            {"lives": np.full(self.rows, 3)},
        )

    def _frames(self):
        frames = np.ones((self.rows, 1, 84, 84), np.uint8)
        frames[:, 0, 0, 0] = self.seed % 251
        return frames


@pytest.fixture
def made(monkeypatch):
    """Make a vector env of counting engines, and record the numbers of their emulators."""
    pytest.importorskip("ale_py")

    def make(source, *, rows=ROWS, sticky=0.25):
        sizes = []

        def engine(vector_env, _game, part, _options):
            sizes.append(part)
            return Counting(vector_env._heartbeat, part)

        monkeypatch.setattr(AtariVectorEnv, "_make", engine)
        arguments = (
            "pong",
            rows,
            3,
            AtariOptions(fire_reset=False, repeat_action_probability=sticky),
            source,
        )
        vector_env = lazy_vector_env(*arguments) or AtariVectorEnv(*arguments)
        out = private_step_arrays(vector_env.spec, rows)
        vector_env.reset(out)
        return vector_env, out, sizes

    return make


def step(vector_env, out, actions=None):
    vector_env.step(np.ones((vector_env.rows, 1), np.int32) if actions is None else actions, out)
    return out


def test_a_large_vector_env_begins_with_few_emulators_and_gets_all(made):
    vector_env, out, sizes = made(Source())
    assert isinstance(vector_env, LazilyConstructed)
    assert sum(sizes) <= ENGINE_ROWS
    assert vector_env.incomplete
    present = [int(out.obs["obs"].any((1, 2)).sum())]
    while vector_env.incomplete:
        vector_env.construct_more()
        present.append(int(step(vector_env, out).obs["obs"].any((1, 2)).sum()))
    assert present == np.cumsum(sizes).tolist()
    assert present[-1] == ROWS
    assert max(sizes) <= ENGINE_ROWS


@pytest.mark.parametrize(("policies", "together"), [(40, 8), (16, 8), (33, 8), (2, 40), (1, 70)])
def test_policies_have_equal_shares_of_the_time_in_which_a_vector_env_grows(policies, together):
    parts = dealt(policies * together, together)
    assert sorted(np.concatenate(parts)) == list(range(policies * together))
    assert max(len(part) for part in parts) <= ENGINE_ROWS
    time_P = np.zeros(policies)
    for number, part in enumerate(parts):
        np.add.at(time_P, part // together, len(parts) - number)
    assert time_P.min() >= 0.95 * time_P.max()


def test_rows_that_are_not_there_deliver_first_and_nothing_else_until_their_game_begins(made):
    source = Source()
    vector_env, out, sizes = made(source)
    there = out.obs["obs"].any((1, 2))
    assert out.first.all()
    for _ in range(3):
        step(vector_env, out)
        assert (out.first == ~there).all()
        silent = (out.reward, out.raw_return, out.length, out.terminated, out.episode_done)
        assert not any(array[~there].any() for array in silent)
        assert (out.length[there] > 0).all()
    vector_env.construct_more()
    step(vector_env, out)
    arrived = out.obs["obs"].any((1, 2)) & ~there
    assert arrived.sum() == sizes[1]
    assert out.first[arrived].all(), "the first frame of a game"
    assert not out.reward[arrived].any()
    step(vector_env, out)
    assert not out.first[arrived].any()
    assert (out.length[arrived] == 1).all()
    assert (out.shaping_version[arrived] == 7).all()
    assert set(source.begun) == set(np.flatnonzero(there | arrived).tolist())


def test_actions_and_seeds_reach_the_rows_that_they_are_for(made):
    vector_env, out, _ = made(Source())
    whole, whole_out, _ = made(_Whole())
    while vector_env.incomplete:
        vector_env.construct_more()
        step(vector_env, out)
    step(whole, whole_out)
    assert (out.obs["obs"][:, 0, 0] == whole_out.obs["obs"][:, 0, 0]).all()
    before = out.raw_return.copy()
    actions = np.arange(ROWS, dtype=np.int32)[:, None] % 6
    step(vector_env, out, actions)
    played = ~out.first
    assert played.sum() > ROWS // 2
    assert (out.raw_return[played] - before[played] == actions[played, 0]).all()


def test_without_sticky_actions_the_engines_are_not_seeded_unless_the_vector_env_is_whole(made):
    vector_env, out, _ = made(Source(), sticky=0.0)
    _, whole_out, _ = made(_Whole(), sticky=0.0)
    while vector_env.incomplete:
        vector_env.construct_more()
        step(vector_env, out)
    assert not out.obs["obs"][:, 0, 0].any(), "engines of the stand-in show their seeds"
    assert len(np.unique(whole_out.obs["obs"][:, 0, 0])) > ROWS // 2


class _Whole(Source):
    """Shaping source of a run without lazy construction."""

    may_be_lazy = False


def test_a_vector_env_of_usual_size_begins_with_few_emulators_of_each_policy_and_has_few_engines(made):
    source = Source()
    source.envs_per_policy = 8
    vector_env, out, sizes = made(source, rows=32)
    there = np.flatnonzero(out.obs["obs"].any((1, 2)))
    assert np.bincount(there // 8).tolist() == [2, 2, 2, 2]
    vector_env.construct_more()
    assert not vector_env.incomplete
    assert sizes == [8, 24]
    assert step(vector_env, out).obs["obs"].any((1, 2)).all()


def test_a_vector_env_that_is_not_stepped_before_it_is_whole_begins_with_no_emulator(made):
    source = Source()
    source.begins_empty = True
    vector_env, out, sizes = made(source, rows=32)
    assert sizes == []
    assert not out.obs["obs"].any()
    while vector_env.incomplete:
        vector_env.construct_more()
    assert step(vector_env, out).obs["obs"].any((1, 2)).all()
    assert out.first.all()


def test_small_vector_envs_and_those_of_other_runs_are_whole(made):
    for source, rows in ((Source(), WHOLE_ROWS), (_Whole(), ROWS)):
        vector_env, _, sizes = made(source, rows=rows)
        assert not isinstance(vector_env, LazilyConstructed)
        assert sizes == [rows]
