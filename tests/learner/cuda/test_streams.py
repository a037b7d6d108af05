"""Acting and learning on streams of their own: nothing is read before it is whole, or overwritten while it is read."""

import contextlib
import re
from unittest import mock

import pytest
import torch

from pbt_rl.algos import kernels as streams
from pbt_rl.algos.weights import Streams
from tests.helpers.driven import FRAMES, GAUSSIAN, DrivenLearner
from tests.helpers.order import PretendStreams, watch
from tests.helpers.pretend import DEVICE, pretend_device

CASES = {
    "loop": {"packing": "loop", "normalize_observations": True, "action": GAUSSIAN},
    "vmap": {"packing": "vmap", "core": "gru"},
    "bmm": {"packing": "bmm", "obs": FRAMES},
    "streams": {"packing": "streams", "obs": FRAMES},
    "replay": {
        "env": "toy/treasure",
        "algo": "unreal",
        "packing": "loop",
        "obs": FRAMES,
        "envs_per_vector_env": 4,
    },
}


SHORT = {"rollout": 3, "unroll": 3, "batch": 24, "minibatches": 1}


@contextlib.contextmanager
def learner_on_streams(**options):
    with (
        pretend_device() as device,
        watch(device) as order,
        DrivenLearner(device=str(DEVICE), **SHORT, **options) as driven,
    ):
        yield driven, order


def live(driven, order, turns=8):
    """Act and learn as two threads would: updates and edits also between a forward and the wait for its actions."""
    learner, streams = driven.learner, driven.learner.pack.streams
    act, batches = learner.pack.act, 0

    def learn():
        nonlocal batches
        with order.stream("default"), streams.learning():
            if learner.trainer.has_batch:
                learner.trainer.learn()
                batches += 1
                driven.edit(member=batches % 2, donor=2)
            learner.pack.publish((0, 1, 2))

    def act_and_learn(*arguments):
        answer = act(*arguments)
        learn()
        return answer

    learner.pack.act = act_and_learn
    for batch in range(turns):
        for actor in driven.actors:
            actor.advance()
        order.late = batch % 4 != 0
        learner.sampler.run_inference()
        learner.send_report()
    assert batches >= 2


@pytest.mark.parametrize(
    "case", [pytest.param(name, marks=[pytest.mark.long] * (name == "replay")) for name in CASES]
)
def test_no_stream_uses_what_another_has_not_finished(case):
    with learner_on_streams(**CASES[case]) as (driven, order):
        live(driven, order)
        assert {"acting", "learning"} <= order.given.keys()
    assert not order.found, "\n".join(f"{n} x {what}" for what, n in order.found.most_common())


def test_without_marks_values_and_weights_are_found_to_be_used_too_early():
    with mock.patch.object(PretendStreams, "after"), learner_on_streams(packing="vmap") as (driven, order):
        live(driven, order)
    found = "\n".join(order.found)
    assert re.search(r"read .*: learning at algos/batch\.py", found), "the last value of a rollout"
    assert re.search(r"write .*: learning at cuda/streams\.py", found), "weights that are being taken"
    assert re.search(r"read .*: acting at cuda/streams\.py", found), "weights that are being staged"


def test_branches_that_are_not_joined_are_found():
    with mock.patch.object(PretendStreams, "join"), learner_on_streams(**CASES["streams"]) as (driven, order):
        live(driven, order)
    assert any("learning, branch 0" in what for what in order.found)


def test_with_locks_alone_weights_are_found_to_be_overwritten_while_a_forward_reads_them():
    with (
        mock.patch.object(PretendStreams, "serving", Streams.serving),
        learner_on_streams(packing="vmap") as (driven, order),
    ):
        live(driven, order)
    assert any(re.match(r"write .*: learning at algos/weights\.py", what) for what in order.found)


@pytest.mark.parametrize("packing", ["loop", "vmap"])
def test_learning_never_waits_for_a_turn_in_flight(packing):
    with learner_on_streams(packing=packing) as (driven, order):
        take, before, turns = driven.learner.pack.take_published, 0, 0

        def begin_batch():
            nonlocal before, turns
            known = order._known["learning"]["acting"]
            assert known <= before, "learning waited for calls of the turn that has just ended"
            before, turns = order.given["acting"], turns + 1
            take()

        driven.learner.pack.take_published = begin_batch
        live(driven, order)
        assert turns == 8


def test_a_publication_is_taken_when_it_is_whole_and_an_exchange_at_the_next_turn():
    with learner_on_streams(packing="vmap") as (driven, order):
        pack = driven.learner.pack

        def values():
            with pack.streams.acting():
                first, state = torch.zeros((3, 2), dtype=torch.bool), torch.zeros((3, 2, 0))
                return pack.act(
                    {"obs": torch.ones((3, 2, 5)).to(DEVICE)}, state.to(DEVICE), first.to(DEVICE)
                )[1].cpu()

        before = values()
        order.late = True
        with pack.streams.learning():
            pack.state["param"] += 0.1
            pack.publish((0, 1, 2))
        assert torch.equal(values(), before), "the device has not come to it, and acting does not wait"
        order.late = False
        after = values()
        assert not torch.isclose(after, before).any()
        order.late = True
        with pack.streams.learning():
            pack.copy_member(0, 1)
        copied = values()
        assert torch.equal(copied[1], copied[0])
        assert torch.equal(copied[[0, 2]], after[[0, 2]])
    assert not order.found


OF_LOCKED_MEMORY = ("algos/rollout.py", "cuda/recorded_sampler.py", "algos/observations.py")
"""They upload from mailboxes and buffers that are page-locked once (learner/cuda/host_memory.py)."""


@pytest.mark.parametrize(
    "kind", [{"packing": "loop"}, {"env": "toy/treasure", "algo": "unreal", "obs": FRAMES}]
)
def test_what_nobody_waits_for_is_uploaded_from_memory_that_stays(kind, monkeypatch):
    locked, found = {}, []

    def lock(host):
        copied = host.clone()
        locked[copied.data_ptr()] = copied
        return copied

    def look(call):
        if call.kind != "upload" or call.waits or call.site.startswith(OF_LOCKED_MEMORY):
            return
        source = call.args[1 if call.name == "copy_" else 0]
        if source.numel() and source.data_ptr() not in locked:
            found.append(call.site)

    monkeypatch.setitem(streams.LOCKED, DEVICE.type, lock)
    with pretend_device() as device:
        device.observers.append(look)
        with DrivenLearner(device=str(DEVICE), **SHORT, **kind) as driven:
            driven.batches(1)
            driven.edit(member=1, donor=0)
            driven.edit(1, "fresh")
            driven.batches(1)
    assert locked
    assert not found
