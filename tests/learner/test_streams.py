"""Acting and learning on streams of their own: nothing is read before it is whole, or overwritten while it is read."""

import contextlib

import pytest
import torch

from tests.helpers.driven import DISCRETE, FRAMES, GAUSSIAN, VECTOR, DrivenLearner
from tests.helpers.order import watch
from tests.helpers.pretend import DEVICE, pretend_device

CASES = {
    "loop": {"packing": "loop"},
    "vmap": {"packing": "vmap"},
    "gru": {"packing": "vmap", "core": "gru"},
    "frames": {"packing": "loop", "obs": FRAMES},
    "normalised": {"packing": "loop", "normalize_observations": True, "action": GAUSSIAN},
}


@contextlib.contextmanager
def learner_on_streams(**options):
    with (
        pretend_device() as device,
        watch(device) as order,
        DrivenLearner(device=str(DEVICE), **options) as driven,
    ):
        yield driven, order


def live(driven, order, turns=40):
    """Act and learn as two threads would: updates and edits also between a forward and the wait for its actions."""
    learner, streams = driven.learner, driven.learner.pack.streams
    act, batches = learner.pack.act, 0

    def learn():
        nonlocal batches
        with order.stream("default"), streams.learning():
            if learner.trainer.has_batch:
                learner.trainer.learn()
                batches += 1
                driven.edit(member=batches % 2, donor=2) if batches % 3 == 0 else None
            learner.pack.publish((0, 1, 2))

    def act_and_learn(*arguments):
        answer = act(*arguments)
        learn()
        return answer

    learner.pack.act = act_and_learn
    for turn in range(turns):
        for actor in driven.actors:
            actor.advance()
        order.late = turn % 4 != 0
        learner.sampler.serve()
        learn() if turn % 2 else None
        learner._report() if turn % 5 == 0 else None
    assert batches >= 4


@pytest.mark.parametrize("case", CASES)
def test_no_stream_uses_what_another_has_not_finished(case):
    with learner_on_streams(**CASES[case]) as (driven, order):
        live(driven, order)
        assert {"acting", "learning"} <= order.given.keys()
    assert not order.found, "\n".join(f"{n} x {what}" for what, n in order.found.most_common())
