"""A pretend device, and one that records, for the tests of what a GPU does."""

import pytest

from pbt_rl.learner.cuda import recording
from tests.helpers.pretend import PretendRecorder, pretend_device


@pytest.fixture
def device():
    with pretend_device() as device:
        yield device


@pytest.fixture
def recorder(device, monkeypatch):
    recorder = PretendRecorder(device)
    monkeypatch.setitem(recording.RECORDERS, "pretend", lambda _: recorder)
    return recorder
