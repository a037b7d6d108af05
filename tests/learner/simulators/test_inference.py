"""The policies' part of a step, recorded on a pretend device: two replays, and the numbers of calls on the CPU."""

from collections import deque
from dataclasses import replace

import pytest
import torch

from pbt_rl.config.command import parse_train
from pbt_rl.learner.cuda import recording
from pbt_rl.learner.learner import Learner
from pbt_rl.learner.simulators import simulator_sampler as sampling
from pbt_rl.plan import Machine
from pbt_rl.run.memory import Memory, Start
from pbt_rl.run.resolved import ResolvedRun
from pbt_rl.run.serial import Line

POLICIES, ROWS, STEPS = 2, 8, 6
OPTIONS = [
    "--env=tensors/pendulum",
    "--mode=sync",
    f"--num-policies={POLICIES}",
    f"--rows={ROWS}",
    f"--learner.rollout={STEPS}",
    "--learner.minibatches=1",
    "--learner.epochs=1",
    "--hypers.unroll=6",
    "--model.hidden=16",
    "--env-option=limit=4",
    "--pbt.objective-episodes=2",
]


def begin(device, *more):
    """Return a learner on a device, its memory and what it says."""
    config = parse_train([*OPTIONS, *more])
    resolved = ResolvedRun.resolve(config, Machine(2, 0))
    packs = (replace(resolved.plan.packs[0], device=device, threads=1),)
    resolved = replace(resolved, plan=replace(resolved.plan, packs=packs))
    values = {name: one.default for name, one in resolved.table.items()}
    memory = Memory(resolved, Start.fresh(resolved.plan, [values] * POLICIES))
    there, back = deque(), deque()
    return Learner(memory.learners[0], Line(back, there)), memory


def played(device, *more, rollouts=3):
    """Act for some rollouts; return all that the last one holds, the episodes, and the count of replays."""
    learner, memory = begin(device, *more)
    sampler, shared = learner.sampler, learner.shared
    for _ in range(rollouts):
        assert sampler.run_inference()
        shared.full.clear()
    rollout = sampler.rollout
    held = {**rollout.fields, **rollout.obs, "final_value": rollout.final_value}
    held = {name: getattr(x, "host", x).clone() for name, x in held.items()}
    episodes = [(e.member, e.environment, e.objective, e.count) for e in shared.sampling.take()[0]]
    replays = sampler.replays
    learner.close()
    memory.close()
    return held, episodes, replays


@pytest.mark.parametrize("more", [["--learner.packing=vmap"], ["--learner.packing=loop", "--model.core=gru"]])
def test_recorded_turns_do_what_calls_one_by_one_do(more, device, recorder, monkeypatch):
    wanted, episodes, none = played("cpu", *more)
    assert none is None
    found, counted, replays = played("pretend:0", *more)
    assert replays.runs == 2 * 3 * STEPS
    assert replays.replayed == 2 * (3 * STEPS - recording.RUNS + 1)
    assert not replays.why_not
    assert len(recorder.recorded) >= 2
    for name, x in wanted.items():
        torch.testing.assert_close(found[name], x, rtol=1e-5, atol=1e-5, msg=name)
    assert len(episodes) >= 4
    assert [e[:2] + e[3:] for e in counted] == [e[:2] + e[3:] for e in episodes]
    assert [e[2] for e in counted] == pytest.approx([e[2] for e in episodes], rel=1e-4)


def test_a_step_is_two_replays_and_what_they_are_given(device, recorder):
    learner, memory = begin("pretend:0", "--learner.packing=vmap")
    assert learner.sampler.run_inference()
    sampler, launches = learner.sampler, []
    quick = sampler._inference.act

    def act(obs):
        before = device.counts.total("launch")
        action = quick(obs)
        launches.append(device.counts.total("launch") - before)
        return action

    sampler._inference.act = act
    learner.shared.full.clear()
    assert sampler.run_inference()
    assert set(launches) == {2}, "an observation is copied, and one replay"
    learner.close()
    memory.close()


def test_steps_that_give_other_things_are_not_recorded(device, recorder, monkeypatch):
    make = sampling.make_simulator

    def changing(*given):
        env = make(*given)
        quick, calls = env.step, []

        def step(action):
            calls.append(1)
            one = quick(action)
            return one if len(calls) != 10 else replace(one, final_obs=None)

        env.step = step
        return env

    monkeypatch.setattr(sampling, "make_simulator", changing)
    wanted, _, _ = played("cpu", "--learner.packing=vmap")
    with pytest.warns(UserWarning, match="other fields"):
        found, _, _ = played("pretend:0", "--learner.packing=vmap")
    for name, x in wanted.items():
        torch.testing.assert_close(found[name], x, rtol=1e-5, atol=1e-5, msg=name)
