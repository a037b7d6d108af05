"""Extra statistics of an episode, from the info dict of single environments and vectors to the mailbox."""

import re

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from pbt_rl.actors.mailbox import Mailbox
from pbt_rl.envs.base import MOST_STATS, private_step_arrays, read_stats
from pbt_rl.envs.gym import GymVectorEnv
from pbt_rl.envs.toy import Identity
from pbt_rl.envs.vectors import NativeVectorEnv
from tests.envs.test_third_party_envs import Source


class Counted(Identity):
    """Episodes of 3 steps. A statistic is the episode's number, and the second episode has a further statistic."""

    def __init__(self, stats=None):
        super().__init__(length=3)
        self.episode, self.stats = -1, stats

    def reset(self, **options):
        self.episode += 1
        return super().reset(**options)

    def step(self, action):
        *rest, truncated, info = super().step(action)
        if truncated:
            info["episode_extra_stats"] = self.stats or {"episode": self.episode}
            if self.episode == 1 and self.stats is None:
                info["episode_extra_stats"]["köder.gold"] = np.float32(0.5)
        return *rest, truncated, info


def vector_env_of(make, mode=None, source=None, rows=2):
    source = source or Source()
    if mode is None:
        return GymVectorEnv("own:env", make, rows, 0, source)
    return NativeVectorEnv("own:env", SyncVectorEnv([make] * rows, autoreset_mode=mode), 0, source)


def said(vector_env, out, steps):
    """Return the statistics of row 1 at the end of each of its episodes."""
    vector_env.reset(out)
    found = []
    for _ in range(steps):
        vector_env.step(np.zeros((vector_env.rows, 1), np.int32), out)
        if out.episode_done[1]:
            found.append(read_stats(out, 1))
    return found


@pytest.mark.parametrize("mode", [None, *AutoresetMode], ids=str)
def test_statistics_come_with_the_episode_that_they_are_of(mode):
    vector_env = vector_env_of(Counted, mode)
    box = Mailbox.create(vector_env.spec, vector_env.rows, "test")
    found = said(vector_env, box.step, 11)
    assert found[:3] == [{"episode": 0}, {"episode": 1, "köder.gold": 0.5}, {"episode": 2}]
    box.close()


def test_without_statistics_there_are_none_in_poisoned_and_fresh_memory():
    vector_env = vector_env_of(lambda: Identity(length=3))
    box = Mailbox.create(vector_env.spec, vector_env.rows, "test")
    assert read_stats(box.step, 0) == {}, "a vector env that never writes them"
    assert said(vector_env, box.step, 8) == [{}, {}]
    assert said(vector_env, private_step_arrays(vector_env.spec, 2), 8) == [{}, {}]
    box.close()


@pytest.mark.parametrize("mode", [None, AutoresetMode.NEXT_STEP], ids=str)
@pytest.mark.parametrize(
    ("stats", "kept", "wrong"),
    [
        ({f"n{i}": 0.0 for i in range(MOST_STATS + 1)}, {f"n{i}": 0.0 for i in range(MOST_STATS)}, "'n16': "),
        ({"x" * 33: 1.0, "y": 2.0}, {"x" * 32: 1.0, "y": 2.0}, "'xxx.*': "),
        ({"won": float("nan"), "y": 2.0}, {"y": 2.0}, r"'won': (np\.float64\()?nan"),
        ({"won": np.array([1.0, 2.0]), "y": 2.0}, {"y": 2.0}, "'won': .*array"),
        ({7: 1.0, "y": 2.0}, {"y": 2.0}, "7: "),
    ],
)
def test_other_statistics_are_left_out_and_told_once(stats, kept, wrong, mode):
    if mode is not None and not all(isinstance(name, str) for name in stats):
        pytest.skip("a vector environment of Gymnasium takes no such name")
    source = Source()
    vector_env = vector_env_of(lambda: Counted(stats), mode, source)
    given = said(vector_env, private_step_arrays(vector_env.spec, 2), 8)
    assert kept in given
    assert all(one in ({}, kept) for one in given)
    (told,) = source.told
    assert re.search(rf'info\["episode_extra_stats"\] .* has {wrong}', told)
