"""What is said and done about a GPU, with a CUDA that is made up."""

import pytest
import torch

from pbt_rl.errors import ConfigError
from pbt_rl.learner import gpu

GPU = torch.device("cuda:1")


def test_a_learner_takes_its_own_gpu_and_is_reproducible_where_asked(cuda):
    gpu.prepare(torch.device("cpu"), reproducible=True)
    assert cuda == {}
    gpu.prepare(GPU, reproducible=False)
    assert cuda["set_device"] == GPU
    assert not torch.are_deterministic_algorithms_enabled()
    assert not torch.backends.cudnn.allow_tf32, "as for matrix products"
    assert not torch.backends.cuda.matmul.allow_tf32
    gpu.prepare(GPU, reproducible=True)
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.backends.cudnn.deterministic


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        ("set_device", RuntimeError("The NVIDIA driver is too old\nmore"), r"too old.*--devices"),
        ("ones", RuntimeError("no kernel image is available"), r"no kernel image.*--devices cpu"),
        ("set_device", AssertionError("Torch not compiled with CUDA enabled"), "compiled"),
        ("ones", torch.OutOfMemoryError("CUDA out of memory."), "memory.*--learner.batch"),
        ("set_device", RuntimeError("CUDA error: out of memory\nmore"), "memory.*--learner.batch"),
    ],
)
def test_a_gpu_that_cannot_be_used_is_one_clear_error(cuda, call, error, says):
    cuda[call] = error
    with pytest.raises(ConfigError, match=says) as raised:
        gpu.prepare(GPU, reproducible=False)
    assert str(raised.value).startswith("cuda:1 ")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("error", "ran_out"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)"), True),
        (RuntimeError("an illegal memory access was encountered"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_too_little_memory_is_known_by_whatever_says_so(error, ran_out):
    assert gpu.ran_out(error) is ran_out


def test_to_say_how_much_memory_there_is_needs_no_working_gpu(monkeypatch):
    def fails(_):
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(torch.cuda, "mem_get_info", fails)
    text = gpu.out_of_memory(GPU, RuntimeError("x"))
    assert "cuda:1 " in text
    assert "--learner.batch" in text
