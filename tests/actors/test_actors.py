"""Actor processes and sampler: no step is lost or repeated, even if actors are killed."""

import os
import signal
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import Pipe

import numpy as np
import pytest

from pbt_rl.actors.mailbox import ACTIONS, OBSERVATIONS
from pbt_rl.actors.messages import Load
from pbt_rl.learner.learner import Learner
from pbt_rl.processes.child import Child
from pbt_rl.run.memory import Memory
from tests.helpers.plans import fresh, resolved


class Actors:
    """The actor processes of a run, without its learner."""

    def __init__(self, *arguments):
        run = resolved(*arguments, "--devices=cpu")
        self.memory = Memory(run, fresh(run))
        self.children = [self.start(i) for i in range(len(self.memory.actors))]

    def start(self, index):
        setup = self.memory.actors[index].setup
        return Child("pbt_rl.actors.actor", f"actor {index}", setup, setup.fds)

    def kill(self, index):
        """Kill an actor wherever it stands and start its successor, with seeds of its own."""
        os.kill(self.children[index].pid, signal.SIGKILL)
        self.children[index].end(5)
        record = self.memory.actors[index]
        record.setup = replace(record.setup, seeds=tuple(seed + 1 for seed in record.setup.seeds))
        self.children[index] = self.start(index)


@contextmanager
def actors(*arguments):
    group = Actors(*arguments)
    try:
        yield group
    finally:
        for child in group.children:
            child.end(0)
        group.memory.close()


def receive(learner, rollouts, received, seconds=60):
    """Serve until every vector env has given this many rollouts; append (observations, actions, firsts) to its list."""
    sampler, missing = learner.sampler, dict.fromkeys(range(len(received)), rollouts)
    deadline = time.monotonic() + seconds
    while max(missing.values()) > 0:
        assert time.monotonic() < deadline
        filling = {id(vector_env.rollout): i for i, vector_env in enumerate(sampler.vector_envs)}
        if not sampler.run_inference():
            time.sleep(0.001)
        while learner.shared.full:
            rollout = learner.shared.full.popleft()
            steps = len(rollout.action)
            parts = rollout.obs["obs"][:steps].numpy(), rollout.action[..., 0].numpy(), rollout.first[:steps]
            received[filling[id(rollout)]].append([part.copy() for part in parts])
            missing[filling[id(rollout)]] -= 1
            learner.shared.free.append(rollout)


@pytest.mark.parametrize(("kills", "turns"), [(0, 0), (6, 0), (0, 6)])
def test_every_step_arrives_once_in_order_with_its_actions(kills, turns):
    options = (
        "--num-policies=5 --slots=2 --actors=2 --envs-per-vector-env=2 --learner.rollout=8 --hypers.unroll=8"
    )
    from pbt_rl.envs.toy import counting_errors

    with actors("toy/counting", *options.split()) as group:
        ours, theirs = Pipe()
        learner = Learner(group.memory.learners[0], theirs)
        vector_envs = learner.sampler.vector_envs
        received = [[] for _ in vector_envs]
        for number in range(kills):
            receive(learner, 5, received)
            group.kill(number % 2)
        for number in range(turns):  # members take the two slots in the order 2, 3, 4, 0, ...
            receive(learner, 5, received)
            record, enters = number % 2, (number + 2) % 5
            values = learner._setup.unheld_values
            learner.trainer.load(Load(record, enters, 0, values, initialised=(enters, 0)))
        receive(learner, 20, received)
        for vector_env, rollouts in zip(vector_envs, received, strict=True):
            assert len(rollouts) > 10
            assert vector_env.taken == 8 * len(rollouts) + vector_env.t
            assert vector_env.taken in (
                vector_env.box.header[OBSERVATIONS],
                vector_env.box.header[OBSERVATIONS] - 1,
            )
            assert vector_env.box.header[ACTIONS] == vector_env.taken
        steps = learner.shared.sampling.steps
        assert (steps > 0).tolist() == [True] * (5 if turns else 2) + [False] * (1 if turns else 4)
        counted = sum(int((~first).sum()) for rollouts in received for _, _, first in rollouts)
        assert abs(int(steps.sum()) - counted) <= 8 * 4 * len(vector_envs), (
            "but for what is in the rollouts at work"
        )
        ours.close()
        theirs.close()

    lives = []
    for rollouts in received:
        obs_TRF, action_TR, first_TR = (np.concatenate(parts) for parts in zip(*rollouts, strict=True))
        for row in range(obs_TRF.shape[1]):
            births = np.flatnonzero(first_TR[:, row] & (obs_TRF[:, row, 1] == 0))
            assert births[0] == 0
            for begin, end in zip(births, [*births[1:], len(obs_TRF)], strict=True):
                life = slice(begin, end)
                assert counting_errors(obs_TRF[life, row], action_TR[life, row], first_TR[life, row]) == []
                lives.append(int(obs_TRF[begin, row, 0]))
    rows = 4
    assert len(lives) == rows * (len(vector_envs) + kills * 2)  # an actor has two vector envs
    assert len(set(lives)) == len(lives)  # no two have the same seed


SLOW = """
import time
from pbt_rl.envs.toy import Identity


class Slow(Identity):
    def __init__(self, hangs=0):
        super().__init__()
        self.hangs, self.calls = hangs, 0

    def step(self, action):
        self.calls += 1
        time.sleep(3600 if self.calls == self.hangs else 0.1)
        return super().step(action)
"""


@pytest.mark.long
@pytest.mark.parametrize("hangs", [0, 2])
def test_slow_rows_give_signs_of_life_and_a_hung_one_gives_none(tmp_path, monkeypatch, hangs):
    """Thirty rows that take 0.1 s each, one of which never returns from its second step: silent for 2 s or not."""
    (tmp_path / "slow_of_a_test.py").write_text(SLOW)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    sizes = ("--num-policies=2", "--actors=1", "--vector-envs-per-actor=1", "--envs-per-vector-env=15")
    with actors("slow_of_a_test:Slow", f"--env-option=hangs={hangs}", *sizes) as group:
        (record,) = group.memory.actors
        (box,) = record.boxes
        silence, deadline = 0.0, time.monotonic() + 60
        while box.header[OBSERVATIONS] < 3 and silence < 2.0:
            assert time.monotonic() < deadline
            time.sleep(0.05)
            silence = box.heartbeat_age_seconds() if box.header[OBSERVATIONS] > 0 else 0.0
            if box.learner_has_turn:
                box.action[:] = 0
                box.publish_action(record.setup.wake_fd)
        assert (silence >= 2.0) == (hangs > 0)
        assert box.header[OBSERVATIONS] == (2 if hangs else 3)
