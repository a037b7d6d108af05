"""A population in one simulator of the learner: as by mailboxes, edits between rollouts, one wait a rollout."""

import dataclasses
import re
import time
from collections import deque
from dataclasses import replace
from math import inf

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pbt_rl.actors.messages import Load, SetValues
from pbt_rl.config.command import parse_train
from pbt_rl.envs import lookup
from pbt_rl.envs.base import ActionSpec, default_shaping_source, private_step_arrays
from pbt_rl.envs.simulators import SimulatorVectorEnv
from pbt_rl.envs.simulators.tensor_toys import Pendulum
from pbt_rl.errors import ConfigError, RunFailed
from pbt_rl.learner.learner import Learner
from pbt_rl.learner.simulators import final_observations, rounds
from pbt_rl.learner.simulators import simulator_sampler as sampling
from pbt_rl.plan import Machine, make_plan
from pbt_rl.run.memory import Memory, Start
from pbt_rl.run.resolved import ResolvedRun
from pbt_rl.run.serial import Line
from tests.helpers.packs import same_bits

POLICIES, ROWS, STEPS = 2, 8, 6
OPTIONS = [
    "--env=tensors/pendulum",
    "--mode=serial",
    f"--num-policies={POLICIES}",
    f"--learner.rollout={STEPS}",
    "--learner.minibatches=2",
    "--learner.epochs=2",
    "--hypers.unroll=6",
    "--model.hidden=16",
    "--learner.packing=loop",
    "--learner.threads=1",
    "--no-random-phases",
]
SIMULATOR = [*OPTIONS, f"--rows={ROWS}"]


class Stand:
    """A learner without processes, as serial mode has it."""

    def __init__(self, options=SIMULATOR, spec=None):
        config = parse_train(options)
        resolved = ResolvedRun.resolve(config, Machine(2, 0))
        self.resolved = resolved if spec is None else replace(resolved, spec=spec(resolved.spec))
        self.values = {name: one.default for name, one in resolved.table.items()}
        self.memory = Memory(self.resolved, Start.fresh(resolved.plan, [self.values] * POLICIES))
        there, back = deque(), deque()
        self.line = Line(there, back)
        self.learner = Learner(self.memory.learners[0], Line(back, there))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.learner.close()
        self.memory.close()

    def heard(self):
        messages = []
        while self.line.poll():
            messages.append(self.line.recv())
        return messages

    def batch(self):
        self.learner.iterate()
        return self.heard()

    def state(self, slot):
        return {name: x.clone() for name, x in self.learner.pack.export_member(slot).items()}


def simulate(monkeypatch, kind, *more):
    """Let the learner of the next stand step this pendulum."""
    spec = lookup.probe("tensors/pendulum", lookup.DEFAULTS)
    env = kind(spec, POLICIES * ROWS, "cpu", 0, *more)
    monkeypatch.setattr(sampling, "make_simulator", lambda *_: env)
    return env


def test_both_routes_take_the_same_actions_and_learn_the_same_weights():
    """Until the first episode ends: vector envs reset in the step after, a simulator in the step itself."""
    options = [
        f"--learner.batch={ROWS * STEPS}",
        f"--envs-per-vector-env={ROWS}",
        "--actors=1",
        "--vector-envs-per-actor=1",
    ]
    with Stand() as ours:
        spec, seed = ours.resolved.spec, ours.memory.learners[0].seed + 1

        # The mailbox route, of the same simulator as a vector env.
        config = parse_train([*OPTIONS, *options])
        by_mail = replace(spec, simulator=False)
        machine = Machine(2, 0)
        plan = make_plan(config, machine)
        (pack,) = plan.packs
        pack = dataclasses.replace(pack, threads=1)
        assert (pack.rows, pack.vector_envs, pack.vector_envs_per_batch) == (POLICIES * ROWS, 1, 1)
        resolved = replace(ours.resolved, config=config, spec=by_mail, plan=replace(plan, packs=(pack,)))
        memory = Memory(resolved, Start.fresh(resolved.plan, [ours.values] * POLICIES))
        there, back = deque(), deque()
        setup = replace(memory.learners[0], seed=ours.memory.learners[0].seed)
        theirs = Learner(setup, Line(back, there))
        env = lookup.make_simulator("tensors/pendulum", pack.rows, seed % 2**31, "cpu", lookup.DEFAULTS)
        vector_env, box = SimulatorVectorEnv(env, default_shaping_source(spec)), memory.actors[0].boxes[0]
        actions, rewards = [], []
        vector_env.reset(box.step)
        box.header[0] += 1
        for batch in range(3):
            before = theirs.shared.learning.updates[0]
            while theirs.shared.learning.updates[0] == before:
                theirs.iterate()
                if not box.learner_has_turn:
                    actions.append(box.action.copy())
                    vector_env.step(box.action, box.step)
                    rewards.append(box.step.reward.copy())
                    box.header[0] += 1
            ours.batch()
            fields = ours.learner.sampler.rollout.fields
            for t in range(STEPS):
                drawn = fields["action"][:, t].reshape(-1, 1)
                given = ours.learner.sampler.distribution.delivered_here(drawn)
                at = batch * STEPS + t
                assert np.allclose(given.numpy(), actions[at], atol=1e-5), at
                assert np.allclose(fields["reward"][:, t].flatten().numpy(), rewards[at], atol=1e-5), at
            for slot in range(POLICIES):
                mine, other = ours.state(slot), dict(theirs.pack.export_member(slot))
                for name, x in mine.items():
                    assert torch.allclose(x.float(), torch.as_tensor(other[name]).float(), atol=1e-5), name
        memory.close()


def test_a_replacement_between_two_rollouts_leaves_the_donor_alone_and_its_weights_are_read_back():
    with Stand() as stand:
        stand.batch()
        donor, before = stand.state(0), stand.learner.sampler._inference.rounds._stage.clone()
        values = stand.values | {"shaping.angle": 2.0, "shaping.speed": 0.0}
        stand.line.send(Load(1, 1, 1, values, donor=0, of_slot=0))
        (ack,) = [m for m in stand.batch() if hasattr(m, "in_environment")]
        assert ack.donor_unchanged
        assert ack.in_environment == pytest.approx({"angle": 2.0, "speed": 0.0, "effort": 0.001})
        assert same_bits(stand.state(0), donor)
        assert same_bits({"param": stand.state(1)["param"]}, {"param": donor["param"]})
        after = stand.learner.sampler._inference.rounds._stage
        assert torch.equal(after[0], before[0])
        assert (after[1] == 0).all(), "what ran there counts no more"
        stand.batch()
        fields, obs = stand.learner.sampler.rollout.fields, stand.learner.sampler.rollout.obs["obs"]
        angle = torch.atan2(obs[1, 0, :, 1], obs[1, 0, :, 0])
        torque = stand.learner.sampler.distribution.delivered_here(fields["action"][1, 0])[:, 0]
        expected = -(2 * angle.square() + 0.001 * torque.square())
        assert torch.allclose(fields["reward"][1, 0], expected, atol=1e-4), (
            "in force at once, in its rows alone"
        )


def test_values_alone_reach_the_rows_of_the_member():
    with Stand() as stand:
        stand.batch()
        stand.line.send(SetValues(0, 1, stand.values | {"shaping.angle": 0.5}, donor=None))
        stand.batch()
        assert stand.learner.sampler._shaping.weights_PK[:, 0].tolist() == [0.5, 1.0]


class Counting(TorchDispatchMode):
    """Counts what makes the host wait for a device."""

    def __init__(self):
        super().__init__()
        self.waits = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name()
        if name.startswith(("aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero")):
            self.waits += 1
        return func(*args, **(kwargs or {}))


def test_a_rollout_waits_for_nothing_but_one_fetch(monkeypatch):
    with Stand([*OPTIONS, "--rows=256", "--pbt.objective-episodes=4"]) as stand:
        stand.batch()
        sampler, read = stand.learner.sampler, []
        for module in (rounds, final_observations):  # on a CPU a look costs nothing
            monkeypatch.setattr(module, "nowhere", lambda _: False)
        fetch = torch.Tensor.cpu
        monkeypatch.setattr(
            torch.Tensor, "cpu", lambda x: (read.append(x.numel() * x.element_size()), fetch(x))[1]
        )
        with Counting() as counting:
            assert sampler.run_inference()
        assert counting.waits == 0
        assert len(read) == 1
        assert read[0] < POLICIES * 256


def test_episodes_come_as_rounds_with_their_count():
    with Stand(
        [*OPTIONS, f"--rows={ROWS}", "--env-option", "limit=4", "--pbt.objective-episodes=2"]
    ) as stand:
        episodes = [e for _ in range(3) for m in stand.batch() for e in getattr(m, "episodes", ())]
        assert {e.environment for e in episodes} == {0, 1}
        assert {e.member for e in episodes} == {0, 1}
        assert sum(e.count for e in episodes) == 3 * STEPS // 4 * POLICIES * ROWS
        assert {e.count for e in episodes} == {ROWS // 2}, "rounds of one rollout are told apart"
        assert all(e.length_steps == 4 for e in episodes)
        assert all(e.objective == pytest.approx(e.shaped_return, rel=1e-4) for e in episodes), (
            "default weights"
        )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--mode=async"], "--mode async .*sync or serial"),
        (["--actors=2"], "--actors 2 .*--rows"),
        (["--envs-per-vector-env=4"], "--envs-per-vector-env 4 .*--rows"),
        (["--algo=unreal"], "--algo unreal"),
        (["--algo=fun"], "--algo fun"),
        (["--model.last-action-reward=true"], "--model.last-action-reward"),
    ],
)
def test_what_cannot_work_is_refused_by_name(options, words):
    config = parse_train([*SIMULATOR, *options])
    with pytest.raises(ConfigError, match=words):
        ResolvedRun.resolve(config, Machine(4, 0))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s.reward.__setitem__(slice(ROWS, None), torch.nan), "finite .*member 1"),
        (lambda s: s.obs["obs"].fill_(torch.nan), "observation .*finite .*member 0"),
        (lambda s: (s.terminated.fill_(True), s.truncated.fill_(True)), "terminated and truncated"),
    ],
)
def test_wrong_values_end_the_run_by_the_members_name(monkeypatch, change, words):
    class Broken(Pendulum):
        def step(self, action):
            step = super().step(action)
            change(step)
            return step

    simulate(monkeypatch, Broken)
    with Stand() as stand, pytest.raises(ConfigError, match=words):
        stand.batch()


def test_an_engine_that_raises_is_one_error_with_its_own_lines(monkeypatch):
    class Broken(Pendulum):
        def step(self, action):
            raise OSError("the engine broke")

    simulate(monkeypatch, Broken)
    with Stand() as stand, pytest.raises(RunFailed, match="tensors/pendulum ") as caught:
        stand.batch()
    assert str(caught.value).endswith("OSError: the engine broke")
    assert "pbt_rl/learner" not in str(caught.value)


def test_actions_without_bounds_reach_the_simulator_as_they_were_drawn(monkeypatch):
    free = ActionSpec(low=(-inf,), high=(inf,))
    taken = []

    class Free(Pendulum):
        def step(self, action):
            taken.append(action.clone())
            return super().step(action)

    env = simulate(monkeypatch, Free)
    env.spec = replace(env.spec, action=free)
    with Stand(spec=lambda spec: replace(spec, action=free)) as stand:
        pack = stand.learner.pack
        for slot in range(POLICIES):
            state = stand.state(slot)
            weights = pack.weights_of(state)
            next(x for name, x in weights.items() if name.endswith("log_std")).fill_(3.0)
            pack.import_member(slot, state)
        pack.publish(tuple(range(POLICIES)))
        stand.batch()
        drawn = stand.learner.sampler.rollout.fields["action"]
    assert len(taken) == STEPS
    assert drawn.abs().max() > 20
    assert torch.equal(torch.stack(taken, 1), drawn.movedim(2, 1).reshape(POLICIES * ROWS, STEPS, 1))


def test_a_vector_env_of_it_plays_whole_first_episodes():
    spec = lookup.probe("tensors/pendulum", lookup.DEFAULTS)
    vector_env = SimulatorVectorEnv(Pendulum(spec, 3, "cpu", 0, limit=5), default_shaping_source(spec))
    out, total = private_step_arrays(spec, 3), np.zeros(3)
    vector_env.reset(out)
    assert out.first.all()
    for t in range(5):
        vector_env.step(np.zeros((3, 1), np.float32), out)
        total += out.reward
        assert out.truncated.all() == (t == 4)
    assert out.episode_done.all()
    assert np.allclose(out.objective, total, rtol=1e-5)
    assert (out.length == 5).all()
    vector_env.step(np.zeros((3, 1), np.float32), out)
    assert out.first.all()
    assert not out.reward.any()


@pytest.mark.parametrize(("core", "limit"), [("none", 4), ("gru", 4), ("gru", 2), ("none", 200)])
def test_a_limit_is_followed_by_the_value_of_its_final_observation(monkeypatch, core, limit):
    """Held to a loop over rows; an earlier limit of a row counts by what was seen before it."""
    steps = []

    class Noted(Pendulum):
        def step(self, action):
            step = super().step(action)
            steps.append(
                (step.truncated.clone(), step.final_obs["obs"].clone(), sampler._inference.state.clone())
            )
            return step

    env = simulate(monkeypatch, Noted, limit)
    env._steps[::3] += 1  # not all rows at once
    with Stand([*SIMULATOR, f"--model.core={core}"]) as stand:
        sampler = stand.learner.sampler
        for _ in range(2):
            steps.clear()
            assert sampler.run_inference()
            expected, by_final = sampler.rollout.fields["value"][:, :STEPS].clone(), 0
            for row in range(POLICIES * ROWS):
                at = [t for t, (truncated, _, _) in enumerate(steps) if truncated[row]][-1:]
                for t in at:
                    p, b = divmod(row, ROWS)
                    obs = {"obs": steps[t][1].view(POLICIES, ROWS, -1)}
                    first = torch.zeros(POLICIES, ROWS, dtype=torch.bool)
                    expected[p, t, b] = stand.learner.pack.act(obs, steps[t][2], first)[1][p, b]
                    by_final += 1
            assert torch.allclose(sampler.rollout.final_value, expected, atol=1e-6)
            assert by_final == (0 if limit == 200 else POLICIES * ROWS)
            differs = sampler.rollout.final_value != sampler.rollout.fields["value"][:, :STEPS]
            assert differs.any() == bool(by_final)
            batch = sampler.rollout.batch(np.ones(POLICIES, np.bool_))
            assert torch.equal(batch.final_value, sampler.rollout.final_value)
            stand.learner.shared.full.clear()


def test_a_final_observation_that_is_not_finite_counts_only_at_a_limit(monkeypatch):
    class Broken(Pendulum):
        def step(self, action):
            step = super().step(action)
            step.final_obs["obs"][~step.truncated | bad] = torch.nan
            return step

    for bad in (False, True):
        simulate(monkeypatch, Broken, 4)
        with Stand() as stand:
            if bad:
                with pytest.raises(ConfigError, match=r"observation .*finite"):
                    stand.batch()
            else:
                stand.batch()
                assert torch.isfinite(stand.state(0)["param"]).all()


def test_a_simulator_that_hangs_at_its_start_is_not_waited_for_for_ever(monkeypatch):
    class Hangs(Pendulum):
        def step(self, action):
            while not said:
                time.sleep(0.01)
            return super().step(action)

    said = []
    simulate(monkeypatch, Hangs)
    with Stand([*SIMULATOR, "--learner-timeout-seconds=0.01"]) as stand:
        monkeypatch.setattr(stand.learner.sampler, "_give_up", said.append)
        stand.batch()
        stand.batch()
    (text,) = said
    assert re.fullmatch(
        r"tensors/pendulum hangs: .*\b16 rows .*\b0\.3 s .*\b30 .*--learner-timeout-seconds\)", text
    )


def test_the_estimate_of_memory_knows_all_that_a_row_has():
    from pbt_rl.run.limits import pack_bytes

    with Stand([*OPTIONS, "--rows=512", "--model.core=gru"]) as stand:
        stand.batch()
        sampler, setup = stand.learner.sampler, stand.memory.learners[0]
        final_obs, counted, rollout = sampler._final_obs, sampler._inference.rounds, sampler.rollout
        tensors = [*rollout.fields.values(), *rollout.obs.values(), rollout.final_value]
        tensors += [*final_obs.obs.values(), final_obs._state, final_obs._at]
        tensors += [counted._stage, counted._goes_on, counted.sums, counted._spare]
        assert sum(x.nbytes for x in tensors) == pack_bytes(setup.config, setup.spec, setup.plan).rollouts
