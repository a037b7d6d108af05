"""Turns that are recorded once and replayed: the CPU's actions, every step in its place, and what the host pays."""

import warnings

import numpy as np
import pytest
import torch

from pbt_rl.algos.encoders import NetworkError
from pbt_rl.learner.cuda import recording
from tests.helpers.driven import FRAMES, GAUSSIAN, DrivenLearner
from tests.helpers.pretend import PretendRecorder, pretend_device

KINDS = {
    "loop": {"packing": "loop"},
    "vmap, memory": {"packing": "vmap", "core": "gru"},
    "images": {"packing": "bmm", "obs": FRAMES, "num_policies": 2, "envs_per_unit": 8},
    "images normalised": {
        "packing": "bmm",
        "obs": FRAMES,
        "num_policies": 2,
        "envs_per_unit": 8,
        "normalize_images": True,
    },
    "normalised, continuous": {"packing": "vmap", "normalize_observations": True, "action": GAUSSIAN},
    "bent into bounds": {
        "env": "gym/Pendulum-v1",
        "packing": "vmap",
        "action": GAUSSIAN,
        "action_bounds": "tanh",
    },
    "fun": {"packing": "vmap", "algo": "fun", "num_policies": 2, "envs_per_unit": 4, "rollout": 12},
}
UNITS = {"actors": 4, "envs_per_unit": 6, "batch": 48}


@pytest.fixture
def device():
    with pretend_device() as device:
        yield device


@pytest.fixture
def recorder(device, monkeypatch):
    recorder = PretendRecorder(device)
    monkeypatch.setitem(recording.RECORDERS, "pretend", lambda _: recorder)
    return recorder


def live(where, kind):
    with DrivenLearner(device=where, **kind) as driven:
        driven.batches(2)
        driven.edit(1, donor=0, learning_rate=1e-3)
        driven.batches(1)
        return driven.actions, [driven.state(p) for p in range(driven.plan.slots)]


@pytest.mark.parametrize(
    "kind",
    [pytest.param(k, id=name, marks=[pytest.mark.long] * (name != "images")) for name, k in KINDS.items()],
)
def test_recorded_turns_act_as_the_cpu_does(kind, monkeypatch):
    actions, states = live("cpu", kind)
    with pretend_device() as device:
        recorder = PretendRecorder(device)
        monkeypatch.setitem(recording.RECORDERS, "pretend", lambda _: recorder)
        theirs, their_states = live("pretend:0", kind)
    assert len(actions) > 20
    for mine, other in zip(actions, theirs, strict=True):
        np.testing.assert_allclose(other, mine, rtol=0, atol=1e-5 if "action" in kind else 0)
    for mine, other in zip(states, their_states, strict=True):
        for name, part in mine.items():
            torch.testing.assert_close(other[name], part, rtol=1e-5, atol=1e-5, msg=name)


def turn(driven, units):
    """Let these units take a step and be served."""
    for number in units:
        assert driven.actors[number].advance()
    assert driven.learner.sampler.serve()


def give_back(driven):
    """Let full rollouts be filled again."""
    shared = driven.learner.shared
    while shared.full:
        shared.free.give(shared.full.popleft())


@pytest.mark.parametrize(
    "obs", [pytest.param({}, marks=pytest.mark.long), {"obs": FRAMES}], ids=["vectors", "images"]
)
def test_every_step_is_in_its_place_however_many_units_a_turn_has(recorder, obs):
    with DrivenLearner(device="pretend:0", packing="vmap", **UNITS, **obs) as driven:
        sampler = driven.learner.sampler
        seen = [[] for _ in sampler.units]
        turn(driven, range(4))
        for units in [[2], [0, 3], [1, 2, 3], [0, 1, 2, 3], [3]] * 3:
            for number in units:
                assert driven.actors[number].advance()
                seen[number].append(driven.actors[number]._box.step.obs["obs"].copy())
            driven.learner.sampler.serve()
            for number in units:
                unit = sampler.units[number]
                at = unit.t - 1 + unit.rollout.layouts["obs"].history
                kept = unit.rollout.obs["obs"].cpu().numpy()[at]
                np.testing.assert_array_equal(kept, seen[number][-1])
                drawn = unit.rollout.action.cpu().numpy()[unit.t - 1]
                np.testing.assert_array_equal(unit.box.action, drawn)
                assert torch.isfinite(unit.rollout.value.cpu()[: unit.t]).all()
                assert torch.isfinite(unit.rollout.log_prob.cpu()[: unit.t]).all()
            while driven.learner.shared.full:
                full = driven.learner.shared.full.popleft()
                assert torch.isfinite(full.value.cpu()).all()
                driven.learner.shared.free.give(full)
    assert len(recorder.recorded) == 4, "of one, two and four units, and an optimiser step, all at the start"


def test_a_turn_is_a_few_calls_and_one_wait(recorder, device):
    with DrivenLearner(device="pretend:0", packing="loop", core="gru", **UNITS) as driven:
        for _ in range(4):
            for units in ([0], [0, 1], range(4)):
                turn(driven, units)
                give_back(driven)
        costs = {}
        for units in ([2], [2, 3], [1, 2, 3], range(4)):
            t = [unit.t for unit in driven.learner.sampler.units]
            device.counts.reset()
            turn(driven, units)
            calls = sum(device.counts.total(kind) for kind in ("launch", "upload", "download"))
            costs[tuple(units)] = calls
            assert device.counts.total("sync") == 1, device.counts.listing("sync")
            assert calls <= 12 + 3 * len(units), t
        assert costs[(2,)] <= 4


@pytest.mark.usefixtures("recorder")
def test_every_turn_takes_what_was_published_before_it():
    with DrivenLearner(device="pretend:0", packing="vmap", **UNITS) as driven:
        pack, taken = driven.learner.pack, []
        pack.take_published = lambda: taken.append(None)
        for _ in range(5):
            turn(driven, [1, 2])
        assert driven.learner.sampler.replays.replayed == 4, "all but the first, in which the units begin"
    assert len(taken) == 5, "in replayed turns, too"


def test_a_rollouts_end_is_a_few_calls_more(recorder, device):
    with DrivenLearner(device="pretend:0", packing="vmap", obs=FRAMES, core="gru", **UNITS) as driven:
        sampler, full, ends = driven.learner.sampler, driven.learner.shared.full, 0
        for _ in range(20):
            for actor in driven.actors:
                actor.advance()
            taken = sum(unit.taken for unit in sampler.units)
            device.counts.reset()
            sampler.serve()
            served = sum(unit.taken for unit in sampler.units) - taken
            if full and ends:
                assert device.counts.total("sync") == 1
                calls = sum(device.counts.total(kind) for kind in ("launch", "upload", "download"))
                assert calls <= 12 + 3 * served
            ends += len(full)
            give_back(driven)
    assert ends >= 8


@pytest.mark.long
def test_slots_without_a_holder_are_left_out_as_before(recorder):
    with DrivenLearner(device="pretend:0", packing="loop") as driven:
        driven.batches(2)
        driven.hand_over(2, leaves=2, enters=None)
        recorded = len(recorder.recorded)
        driven.batches(1)
        assert not driven.learner.sampler.recorded.possible
        driven.hand_over(2, leaves=None, enters=2)
        driven.batches(1)
        assert driven.learner.sampler.recorded.possible
        assert len(recorder.recorded) == recorded


@pytest.mark.parametrize("error", [RuntimeError, NetworkError])
def test_what_cannot_be_recorded_goes_call_by_call(device, monkeypatch, error):
    class Refuses:
        def carry_out(self, program, *, watched):
            program()

        def record(self, _program, _generators=()):
            raise error("operation not permitted when stream is capturing")

    monkeypatch.setitem(recording.RECORDERS, "pretend", lambda _: Refuses())
    with (
        warnings.catch_warnings(record=True) as said,
        DrivenLearner(device="pretend:0", packing="vmap") as driven,
    ):
        warnings.simplefilter("always")
        driven.batches(2)
        assert not driven.learner.sampler.recorded.possible
    assert any("turns are not recorded" in str(one.message) for one in said)
