"""What is said and done about a GPU, with a CUDA that is made up."""

import mmap

import pytest
import torch

from pbt_rl.errors import ConfigError
from pbt_rl.learner import gpu

GPU = torch.device("cuda:1")


@pytest.fixture
def cuda(monkeypatch):
    """Answers of the calls that a learner makes: name -> exception to raise, or what was given."""
    answers = {}

    def call(name):
        def made_up(value=None, **_):
            if isinstance(answers.get(name), Exception):
                raise answers[name]
            answers[name] = value
            return torch.zeros(1)

        return made_up

    monkeypatch.setattr(torch.cuda, "set_device", call("set_device"))
    monkeypatch.setattr(torch, "ones", call("ones"))
    for flags, name in ((torch.backends.cudnn, "deterministic"), (torch.backends.cudnn, "benchmark")):
        monkeypatch.setattr(flags, name, getattr(flags, name))
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "mine")
    yield answers
    torch.use_deterministic_algorithms(False)


def test_a_learner_takes_its_own_gpu_and_is_reproducible_where_asked(cuda):
    gpu.prepare(torch.device("cpu"), reproducible=True)
    assert cuda == {}
    gpu.prepare(GPU, reproducible=False)
    assert cuda["set_device"] == GPU
    assert not torch.are_deterministic_algorithms_enabled()
    gpu.prepare(GPU, reproducible=True)
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.backends.cudnn.deterministic


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (
            "set_device",
            RuntimeError("The NVIDIA driver is too old\nmore"),
            "too old: choose another with --devices",
        ),
        (
            "ones",
            RuntimeError("no kernel image is available"),
            r"no kernel image is available.*--devices cpu",
        ),
        ("set_device", AssertionError("Torch not compiled with CUDA enabled"), "not compiled"),
        ("ones", torch.OutOfMemoryError("CUDA out of memory."), "too little memory.*--learner.batch"),
    ],
)
def test_a_gpu_that_cannot_be_used_is_one_clear_error(cuda, call, error, says):
    cuda[call] = error
    with pytest.raises(ConfigError, match=says) as raised:
        gpu.prepare(GPU, reproducible=False)
    assert str(raised.value).startswith("cuda:1 ")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("code", "locked"), [(0, True), (1, False)])
def test_memory_that_cannot_be_locked_is_noticed_and_leaves_no_error_behind(cuda, monkeypatch, code, locked):
    class Runtime:
        def cudaHostRegister(self, address, size, flags):
            assert (size, flags) == (4096, 0)
            assert address
            return code

    monkeypatch.setattr(torch.cuda, "cudart", Runtime)
    assert gpu.page_lock(mmap.mmap(-1, 4096)) is locked
    assert ("ones" in cuda) is not locked, "a launch, which takes the error away..."
    cuda["ones"] = RuntimeError("CUDA error: operation not supported")
    assert gpu.page_lock(mmap.mmap(-1, 4096)) is locked, "...by raising it"
    assert gpu.Stopwatch(torch.device("cpu")).seconds() is None
