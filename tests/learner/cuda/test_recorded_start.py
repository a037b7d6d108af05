"""A learner records at its start, before it has a second thread, and says what it could not record."""

import threading
import time

import pytest
import torch

from pbt_rl.actors.messages import LearnerReady, LearnerReport
from pbt_rl.learner.cuda import recording
from tests.helpers.driven import FRAMES, DrivenLearner
from tests.helpers.pretend import PretendRecorder

IMAGES = {"obs": FRAMES, "num_policies": 2, "envs_per_vector_env": 8}
LEARNERS = {
    "one policy": {"packing": "vmap", "num_policies": 1, "envs_per_vector_env": 16},
    "eight": {"packing": "vmap", "num_policies": 8, "envs_per_vector_env": 4},
    "images": {"packing": "bmm", **IMAGES},
    "unreal": {"env": "toy/treasure", "packing": "loop", "algo": "unreal", **IMAGES},
}
EACH = [
    pytest.param(k, id=name, marks=[pytest.mark.long] * (name == "unreal")) for name, k in LEARNERS.items()
]


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
        learner.sampler.run_inference()
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
        assert recorded >= 3, "turns of one and two vector envs, and steps"
        recorder.seconds = 0.3
        live(driven, device)
        assert len(recorder.recorded) == recorded
        assert not device.faults
        turns, steps = (driven.learner.acceleration.report()[name] for name in ("turns", "steps"))
        assert steps.replayed == steps.of > 0
        assert turns.of - turns.replayed <= len(driven.actors), (
            "a vector env's first step alone goes call by call"
        )


class Refuses(PretendRecorder):
    """CUDA refuses every recording."""

    def record(self, _program, _generators=()):
        raise RuntimeError("operation not permitted when stream is capturing\nmore")


def messages(driven):
    found = []
    while driven.ours.poll():
        found.append(driven.ours.recv())
    return found


@pytest.mark.filterwarnings("ignore:.*not captured")
@pytest.mark.parametrize("kind", [PretendRecorder, Refuses])
def test_a_learner_says_what_is_replayed_and_why_the_rest_is_not(kind, device, monkeypatch):
    recorder = kind(device)
    monkeypatch.setitem(recording.RECORDERS, "pretend", lambda _: recorder)
    with DrivenLearner(device="pretend:0", packing="vmap") as driven:
        driven.batches(2)
        driven.learner.send_report()
        ready, report = messages(driven)
    assert isinstance(ready, LearnerReady)
    assert isinstance(report, LearnerReport)
    refused = kind is Refuses
    assert "Adam" in ready.note
    assert "CUDA device" in ready.note
    for what in ("inference batches", "operation not permitted", "optimiser steps"):
        assert (what in ready.note) is refused
    turns, steps = report.accelerated["turns"], report.accelerated["steps"]
    assert (steps.replayed, steps.of) == (0 if refused else 4, 4)
    assert turns.replayed == 0 if refused else turns.replayed >= turns.of - 2 > 0
    assert ("not permitted" in steps.why_not) is ("not permitted" in turns.why_not) is refused


def test_a_cpu_replays_nothing_and_says_nothing():
    with DrivenLearner(packing="vmap") as driven:
        driven.batches(1)
        driven.learner.send_report()
        ready, report = messages(driven)
    assert ready.note == ""
    assert report.accelerated == {}
