"""A run whose environment becomes harder with its member's frames, and says so by statistics of its own."""

import json

import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from pbt_rl.actors.actor import EpisodeSource
from pbt_rl.actors.shared_tables import ShapingTable
from pbt_rl.actors.state_pool import anonymous_memory
from pbt_rl.config.command import parse_train
from pbt_rl.envs.base import TrainingInfoInterface, private_step_arrays
from pbt_rl.envs.toy import Identity
from pbt_rl.envs.vectors import NativeVectorEnv
from pbt_rl.run.train import train

BUDGET = 3000
LEVELS = 3


class Growing(Identity):
    """Identity whose episodes grow from 4 steps to 12 within the budget."""

    told: list[list[dict]] = []  # noqa: RUF012 - every environment's own list, in order of their making

    def __init__(self):
        super().__init__(length=4 * LEVELS)
        self.heard = []
        Growing.told.append(self.heard)

    def set_training_info(self, info):
        self.heard.append(dict(info))
        self._length = 4 * (1 + min(LEVELS - 1, LEVELS * info["frames"] // info["budget_frames"]))

    def step(self, action):
        *rest, truncated, info = super().step(action)
        if truncated:
            info["episode_extra_stats"] = {"level": self._length // 4, "right": 1.0}
        return *rest, truncated, info


def test_an_environment_becomes_harder_with_its_members_frames(tmp_path):
    Growing.told.clear()
    options = "--mode=serial --name=x --num-policies=2 --actors=1 --envs-per-vector-env=2 --learner.batch=128"
    own = (f"--env={__name__}:Growing", f"--out={tmp_path}", f"--train-for-frames={BUDGET}")
    assert train(parse_train([*options.split(), *own])) == 0
    heard = [list(told) for told in Growing.told if told]
    assert len(heard) == 8, "2 vector envs of 2 rows for each of 2 members"
    for told in heard:
        frames = [info["frames"] for info in told]
        assert frames[0] == 0
        assert frames == sorted(frames)
        assert frames[-1] > BUDGET * 0.8
        assert {info["budget_frames"] for info in told} == {BUDGET}
    for folder in ("policy_00", "policy_01"):
        events = EventAccumulator(str(tmp_path / "x" / folder))
        events.Reload()
        levels = [event.value for event in events.Scalars("stats/level")]
        assert 1 <= levels[0] <= levels[-1] <= LEVELS, "a quick run is shown only at its end"
        assert levels[-1] > 1
        assert {event.value for event in events.Scalars("stats/right")} == {1.0}
    members = json.loads((tmp_path / "x" / "summary.json").read_text())["members"]
    assert all(member["frames"] >= BUDGET for member in members)


def source_of(frames):
    fd = anonymous_memory(ShapingTable.size((), len(frames)), "shaping")
    table = ShapingTable.map((), len(frames), fd)
    table.frames[:], table.budget_frames[:] = frames, BUDGET
    return EpisodeSource(table, 1, memoryview(bytearray(16)).cast("q"), may_be_lazy=False)


class Native(SyncVectorEnv):
    def set_training_info(self, info):
        self.heard = [*getattr(self, "heard", []), info]


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("kind", [SyncVectorEnv, Native])
def test_rows_of_a_vector_are_told_of_their_own_member(kind, mode):
    env = kind([Growing] * 2, autoreset_mode=mode)
    vector_env = NativeVectorEnv("own:env", env, 0, source_of([100, 2900]))
    vector_env.reset(private_step_arrays(vector_env.spec, 2))
    heard = env.heard if kind is Native else [info for one in env.envs for info in one.heard]
    assert [info["frames"] for info in heard] == [100, 2900]
    assert [info.get("row") for info in heard] == ([0, 1] if kind is Native else [None, None])
    assert isinstance(env.envs[0], TrainingInfoInterface)


def test_outside_of_training_nobody_is_told():
    Growing.told.clear()
    vector_env = NativeVectorEnv(
        "own:env", SyncVectorEnv([Growing], autoreset_mode="NextStep"), 0, lambda _row: (0, {})
    )
    vector_env.reset(private_step_arrays(vector_env.spec, 1))
    assert Growing.told == [[]]
