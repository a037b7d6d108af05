"""A learner records at its start, before it has a second thread, and says what it could not record."""

import threading
import time

import pytest
import torch

from pbt_rl.actors.messages import LearnerReady, LearnerReport
from pbt_rl.learner.cuda import recording
from pbt_rl.learner.cuda.device import CudaAcceleration
from tests.helpers.driven import FRAMES, DrivenLearner
from tests.helpers.pretend import PretendRecorder, pretend_device

MEMORY = {"core": "gru", "returns": "vtrace"}
IMAGES = {"obs": FRAMES, "num_policies": 2, "envs_per_unit": 8}
LEARNERS = {
    "one policy": {"packing": "vmap", "num_policies": 1, "envs_per_unit": 16},
    "eight": {"packing": "vmap", "num_policies": 8, "envs_per_unit": 4},
    "forty": {"packing": "vmap", "num_policies": 40, "envs_per_unit": 2, "batch": 24},
    "alone, memory": {"packing": "loop", **MEMORY},
    "images": {"packing": "bmm", **IMAGES},
    "unreal": {"env": "toy/treasure", "packing": "loop", "algo": "unreal", **IMAGES},
    "fun": {"packing": "vmap", "algo": "fun", "num_policies": 2, "envs_per_unit": 4, "rollout": 12},
}
LONG = {"forty", "unreal", "fun", "alone, memory"}
EACH = [pytest.param(k, id=name, marks=[pytest.mark.long] * (name in LONG)) for name, k in LEARNERS.items()]


@pytest.fixture
def device():
    with pretend_device() as device:
        yield device


@pytest.fixture
def recorder(device, monkeypatch):
    recorder = PretendRecorder(device)
    monkeypatch.setitem(recording.RECORDERS, "pretend", lambda _: recorder)
    return recorder


def live(driven, device, batches=3):
    """Act in this thread and learn in another, each on the device, as a learner does."""
    learner, failed = driven.learner, []

    def learn():
        try:
            with torch.autograd.set_multithreading_enabled(False), device.mode():
                learner.trainer.run(lambda: None)
        except Exception as error:  # noqa: BLE001 - shown below
            failed.append(error)

    thread = threading.Thread(target=learn)
    thread.start()
    end = time.monotonic() + 300
    while learner.shared.learning.updates[0] < batches and not failed and time.monotonic() < end:
        advanced = [actor.advance() for actor in driven.actors]
        if not any(advanced):
            time.sleep(0.002)  # a loop that only asks would take the interpreter from the trainer
        learner.sampler.serve()
        with learner.trainer.wake:
            learner.trainer.wake.notify()
    learner.trainer.stopping = True
    thread.join()
    assert not failed
    assert learner.shared.learning.updates[0] >= batches


@pytest.mark.parametrize("kind", EACH)
def test_nothing_is_recorded_once_there_are_two_threads(kind, device, recorder):
    with DrivenLearner(device="pretend:0", epochs=2, **kind) as driven:
        recorded = len(recorder.recorded)
        assert recorded >= 3, "turns of one and two units, and steps"
        recorder.seconds = 0.3
        live(driven, device)
        assert len(recorder.recorded) == recorded
        assert not device.faults
        turns, steps = (driven.learner.acceleration.report()[name] for name in ("turns", "steps"))
        assert steps.replayed == steps.of > 0
        assert turns.of - turns.replayed <= len(driven.actors), "a unit's first step alone goes call by call"


def test_a_recording_in_the_midst_of_a_run_meets_first_calls_of_the_other_thread(
    device, recorder, monkeypatch
):
    monkeypatch.setattr(CudaAcceleration, "record", lambda *_: "")
    with DrivenLearner(device="pretend:0", epochs=2, packing="vmap") as driven:
        recorder.seconds = 0.3
        live(driven, device)
        assert recorder.recorded
    assert device.faults, "a thread's first call while the other records"


@pytest.mark.parametrize("kind", EACH)
def test_recording_at_the_start_changes_not_one_bit(kind, device, recorder, monkeypatch):
    def begun():
        with DrivenLearner(device="pretend:0", epochs=2, **kind) as driven:
            sampler, trainer = driven.learner.sampler, driven.learner.trainer
            gradients = [float(group.abs().sum()) for group in (driven.learner.pack.weights.grad,)]
            rollouts = [x.cpu() for unit in sampler.units for x in unit.rollout.obs.values()]
            host = [torch.from_numpy(unit.rollout.reward) for unit in sampler.units]
            states = [x for p in range(driven.plan.slots) for x in driven.state(p).values()]
            chance = [sampler.generator.get_state(), trainer.generator.get_state()]
            return gradients, [*rollouts, *host, *states, *chance], trainer.members.current.host.all()

    gradients, after, current = begun()
    assert recorder.recorded
    monkeypatch.delitem(recording.RECORDERS, "pretend")
    _, before, _ = begun()
    assert not any(gradients)
    assert current
    for one, other in zip(after, before, strict=True):
        assert torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))


class Refuses(PretendRecorder):
    """CUDA refuses every recording."""

    def record(self, _program, _generators=()):
        raise RuntimeError("operation not permitted when stream is capturing\nmore")


def messages(driven):
    found = []
    while driven.ours.poll():
        found.append(driven.ours.recv())
    return found


@pytest.mark.filterwarnings("ignore:.*not recorded")
@pytest.mark.parametrize("kind", [PretendRecorder, Refuses])
def test_a_learner_says_what_is_replayed_and_why_the_rest_is_not(kind, device, monkeypatch):
    recorder = kind(device)
    monkeypatch.setitem(recording.RECORDERS, "pretend", lambda _: recorder)
    with DrivenLearner(device="pretend:0", packing="vmap") as driven:
        driven.batches(2)
        driven.learner._report()
        ready, report = messages(driven)
    assert isinstance(ready, LearnerReady)
    assert isinstance(report, LearnerReport)
    refused = kind is Refuses
    assert "Adam is many kernels, which costs speed: one kernel is made for CUDA alone" in ready.note
    assert ("turns are not replayed, which costs speed: operation not permitted" in ready.note) is refused
    assert ("optimiser steps are not replayed" in ready.note) is refused
    turns, steps = report.accelerated["turns"], report.accelerated["steps"]
    assert (steps.replayed, steps.of) == (0 if refused else 4, 4)
    assert turns.replayed == 0 if refused else turns.replayed >= turns.of - 2 > 0
    assert ("not permitted" in steps.why_not) is ("not permitted" in turns.why_not) is refused


def test_a_cpu_replays_nothing_and_says_nothing():
    with DrivenLearner(packing="vmap") as driven:
        driven.batches(1)
        driven.learner._report()
        ready, report = messages(driven)
    assert ready.note == ""
    assert report.accelerated == {}
