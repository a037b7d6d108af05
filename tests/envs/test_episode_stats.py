"""Extra statistics of an episode, from the info dict of single environments and vectors to the mailbox."""

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from pbt_rl.envs.base import MOST_STATS, EnvSetupError, private_step_arrays, read_stats
from pbt_rl.envs.gym import GymUnit
from pbt_rl.envs.toy import Identity
from pbt_rl.envs.vector import VectorUnit
from pbt_rl.wire.mailbox import Mailbox


class Counted(Identity):
    """Episodes of 3 steps numbered in a statistic; the second has another statistic too."""

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


def unit_of(make, mode=None, rows=2):
    source = lambda _row: (0, {})  # noqa: E731
    if mode is None:
        return GymUnit("own:env", make, rows, 0, source)
    return VectorUnit("own:env", SyncVectorEnv([make] * rows, autoreset_mode=mode), 0, source)


def said(unit, out, steps):
    """Statistics of row 1 at each of its episodes' ends."""
    unit.reset(out)
    found = []
    for _ in range(steps):
        unit.step(np.zeros((unit.rows, 1), np.int32), out)
        if out.episode_done[1]:
            found.append(read_stats(out, 1))
    return found


@pytest.mark.parametrize("mode", [None, *AutoresetMode], ids=str)
def test_statistics_come_with_the_episode_that_they_are_of(mode):
    unit = unit_of(Counted, mode)
    box = Mailbox.create(unit.spec, unit.rows, "test")
    found = said(unit, box.step, 11)
    assert found[:3] == [{"episode": 0}, {"episode": 1, "köder.gold": 0.5}, {"episode": 2}]
    box.close()


def test_without_statistics_there_are_none_in_poisoned_and_fresh_memory():
    unit = unit_of(lambda: Identity(length=3))
    box = Mailbox.create(unit.spec, unit.rows, "test")
    assert read_stats(box.step, 0) == {}, "a unit that never writes them"
    assert said(unit, box.step, 8) == [{}, {}]
    assert said(unit, private_step_arrays(unit.spec, 2), 8) == [{}, {}]
    box.close()


@pytest.mark.parametrize("mode", [None, AutoresetMode.NEXT_STEP], ids=str)
@pytest.mark.parametrize(
    ("stats", "rule"),
    [
        ({f"n{i}": 0.0 for i in range(MOST_STATS + 1)}, "have 16 names at most, got 17"),
        ({"x" * 33: 1.0}, "have names of 1 to 32 bytes, got 'xxx"),
        ({"won": "yes"}, "hold finite numbers, got 'won': .*yes"),
        ({"won": float("nan")}, "hold finite numbers, got 'won'"),
    ],
)
def test_other_statistics_are_one_clear_error(stats, rule, mode):
    unit = unit_of(lambda: Counted(stats), mode)
    with pytest.raises(EnvSetupError, match=rf'own:env: info\["episode_extra_stats"\] must {rule}'):
        said(unit, private_step_arrays(unit.spec, 2), 3)


def test_statistics_must_be_a_dict():
    unit = unit_of(lambda: Counted([1.0]))
    with pytest.raises(EnvSetupError, match=r"must be a dict of numbers, got \[1.0\]"):
        said(unit, private_step_arrays(unit.spec, 2), 3)
