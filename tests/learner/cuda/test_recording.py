"""Recording: what is found before it breaks a recording, and what is mended after; with a CUDA that is made up."""

import contextlib
from types import SimpleNamespace

import pytest
import torch

from pbt_rl.algos.encoders import NetworkError
from pbt_rl.learner.cuda import recording
from tests.helpers.pretend import DEVICE, pretend_device

GPU = torch.device("cpu:1")
"""In place of one with CUDA: calls on it are seen in rehearsals."""


def refusal(work, *, device=DEVICE):
    """Rehearse a program; return why it is refused."""
    with pretend_device():
        x = torch.arange(6.0, device=device).view(2, 3)
        mask, order = x > 2, torch.tensor([1, 0], device=device)
        with recording.Rehearsal(DEVICE.type) as rehearsal:
            work(x, mask, order)
    return rehearsal.refusal


REFUSED = {
    "a branch by value": lambda x, mask, _: x if mask.any() else -x,
    "a number": lambda x, *_: float(x.sum()),
    "a mask": lambda x, mask, _: x[mask],
    "writing by a mask": lambda x, mask, _: x.index_put_((mask,), x.sum()),
    "places": lambda _, mask, __: mask.nonzero(),
    "an index of the host": lambda x, *_: x[torch.tensor([1, 0])],
    "a download": lambda x, *_: x.to("cpu", non_blocking=True),
    "an upload": lambda x, *_: x + torch.ones(3).to(x.device),
    "a copy of the host's": lambda x, *_: x.copy_(torch.ones(2, 3), non_blocking=True),
    "numbers made on the host": lambda x, *_: x + x.new_tensor([1.0, 2.0, 3.0]),
}
TAKEN = {
    "arithmetic": lambda x, mask, _: torch.where(mask, x, 0.0).softmax(-1).sum(),
    "an index of the device": lambda x, _, order: x[order].index_select(0, order),
    "memory of its own": lambda x, *_: torch.zeros(2, 3, device=x.device).copy_(x) + torch.full_like(x, 2.0),
    "numbers of the host alone": lambda *_: float(torch.ones(3).sum()),
    "together": lambda x, *_: torch.func.vmap(lambda row: row.sin().sum())(x),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_recorded_is_found_in_a_rehearsal(name):
    assert "captured" in refusal(REFUSED[name])


@pytest.mark.parametrize("name", TAKEN)
def test_what_can_be_recorded_is_not_refused(name):
    assert refusal(TAKEN[name]) == ""


def test_torch_brings_a_list_to_a_device_by_a_call_that_a_rehearsal_sees():
    with recording.Rehearsal("cpu") as rehearsal:
        torch.tensor([1.0, 2.0])
    assert "lift_fresh" in rehearsal.refusal


def test_gradients_are_watched_too():
    class Looks(torch.autograd.Function):
        @staticmethod
        def forward(_ctx, x):
            return x * 2

        @staticmethod
        def backward(_ctx, grad):
            return grad if float(grad.sum()) else grad * 0

    def learn(x, *_):
        Looks.apply(x.requires_grad_()).sum().backward()

    assert "_local_scalar_dense" in refusal(learn)


class Stream:
    def __init__(self, name, cuda):
        self.name, self._cuda = name, cuda

    def wait_stream(self, other):
        self._cuda.did.append(f"{self.name} after {other.name}")


class Cuda:
    """Streams, random states and graphs. `refuses`: recordings are refused in the midst."""

    def __init__(self):
        self.did, self.refuses, self.open = [], False, 0
        self.default, self.current = Stream("default", self), None
        self.current = self.default
        self.generators = [self.generator("0"), self.generator("1")]
        self.rng = torch.zeros(16, dtype=torch.uint8)

    def generator(self, name):
        def set_state(state):
            assert state == name + " again"
            self.did.append(f"generator {name} is set")

        return SimpleNamespace(clone_state=lambda: name + " again", graphsafe_set_state=set_state)

    @contextlib.contextmanager
    def stream(self, stream):
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    @contextlib.contextmanager
    def graph(self, graph, pool, stream, *, capture_error_mode):
        """As torch's: if a recording cannot be ended, the present stream stays the recording's."""
        assert capture_error_mode == "thread_local"
        self.current, self.open = stream, self.open + 1
        try:
            yield
        finally:
            if self.refuses:
                raise RuntimeError("CUDA error: operation failed due to a previous error during capture")
            graph.ended, self.open = True, self.open - 1
            self.current = self.default

    def end_allocation(self, device, pool):
        assert (device, pool) == (1, "pool")
        self.did.append("memory is had as before")
        self.open -= 1


@pytest.fixture
def cuda(monkeypatch):
    cuda = Cuda()

    class Graph:
        ended = False

        def register_generator_state(self, generator):
            cuda.did.append("registered")

        def pool(self):
            if not self.ended:
                raise RuntimeError("called pool() without a preceding successful capture")

        def replay(self):
            cuda.did.append("replayed")

    made_up = {
        "CUDAGraph": Graph,
        "graph": cuda.graph,
        "graph_pool_handle": lambda: "pool",
        "Stream": lambda _: Stream("side", cuda),
        "stream": cuda.stream,
        "current_stream": lambda _: cuda.current,
        "default_stream": lambda _: cuda.default,
        "default_generators": cuda.generators,
        "get_rng_state": lambda _: cuda.rng.clone(),
    }
    for name, value in made_up.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", cuda.end_allocation, raising=False)
    monkeypatch.setattr(recording, "_BROKEN", [])
    monkeypatch.setattr(recording, "ONE_RANDOM_STATE", True)
    monkeypatch.setattr(recording, "REGISTERED", True)
    return cuda


def test_a_program_is_warmed_up_where_it_will_be_recorded_then_watched_then_replayed(cuda):
    recorder, on = recording.CudaRecorder(GPU), []
    program = recording.Recording(lambda: on.append(cuda.current.name), [cuda.generator("mine")])
    for _ in range(4):
        program.run(recorder)
    assert on == ["side"] * 3, "nothing can be recorded on the default stream"
    between = ["side after default", "default after side"]
    assert cuda.did == [*between * 2, "registered", "replayed", "replayed"]
    assert cuda.current is cuda.default


def test_a_torch_that_finds_generators_out_itself_is_told_of_none(cuda, monkeypatch):
    """From 2.14 on the call does nothing, and is on its way out."""
    monkeypatch.setattr(recording, "REGISTERED", False)
    monkeypatch.delattr(torch.cuda.CUDAGraph, "register_generator_state")
    program = recording.Recording(lambda: None, [cuda.generator("mine")])
    for _ in range(3):
        program.run(recording.CudaRecorder(GPU))
    assert cuda.did[-1] == "replayed"


def test_a_recording_that_is_refused_in_the_midst_is_mended_and_is_the_last(cuda):
    recorder, runs = recording.CudaRecorder(GPU), []

    def program():
        runs.append(cuda.open)
        if cuda.open:
            cuda.refuses = True
            raise NetworkError("encoder 'mine:net' raised RuntimeError: operation not permitted")

    mine = recording.Recording(program, [cuda.generator("mine")])
    mine.run(recorder)
    mine.run(recorder)
    with pytest.raises(recording.NotRecordedError, match="encoder 'mine:net' raised"):
        mine.run(recorder)
    assert cuda.current is cuda.default
    assert cuda.open == 0
    assert cuda.did[-3:] == ["memory is had as before", "generator mine is set", "generator 1 is set"]
    mine.run(None)
    assert runs == [0, 0, 1, 0]
    with pytest.raises(RuntimeError, match="be ended"):
        recording.CudaRecorder(GPU).record(program)
    assert runs == [0, 0, 1, 0], "another one would fail where nobody expects it"


def test_a_program_that_raises_by_itself_breaks_nothing(cuda):
    def program():
        raise NetworkError("wrong shape")

    for _ in range(2):
        with pytest.raises(NetworkError, match="wrong shape"):
            recording.CudaRecorder(GPU).record(program)
    assert cuda.did == []


def test_what_draws_from_the_default_generator_is_not_recorded_by_a_torch_that_has_one_state_for_all(
    cuda, monkeypatch
):
    def draw():
        cuda.rng += 1
        torch.nn.functional.dropout(torch.ones(3))

    def record(program):
        recorder = recording.CudaRecorder(GPU)
        for watched in (False, True):
            recorder.carry_out(program, watched=watched)
        recorder.record(program)()

    with pytest.raises(RuntimeError, match="default generator"):
        record(draw)
    assert "registered" not in cuda.did
    record(lambda: cuda.rng.add_(1))  # somebody else drew meanwhile
    record(lambda: torch.rand(3, generator=torch.Generator()))
    monkeypatch.setattr(recording, "ONE_RANDOM_STATE", False)
    record(draw)
    assert cuda.did.count("replayed") == 3
