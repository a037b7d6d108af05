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
    for name in ("deterministic", "benchmark", "allow_tf32"):
        monkeypatch.setattr(torch.backends.cudnn, name, getattr(torch.backends.cudnn, name))
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "mine")
    yield answers
    torch.use_deterministic_algorithms(False)


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
        ("set_device", RuntimeError("CUDA error: out of memory\nmore"), "too little memory.*--learner.batch"),
    ],
)
def test_a_gpu_that_cannot_be_used_is_one_clear_error(cuda, call, error, says):
    cuda[call] = error
    with pytest.raises(ConfigError, match=says) as raised:
        gpu.prepare(GPU, reproducible=False)
    assert str(raised.value).startswith("cuda:1 ")
    assert "\n" not in str(raised.value)


@pytest.fixture
def runtime(monkeypatch):
    """A CUDA runtime that answers `code` to a registration: (what was asked of it, the answer)."""
    asked, answer = [], {"code": 0}

    class Runtime:
        def cudaHostRegister(self, address, size, flags):
            assert address
            asked.append(("register", address, size, flags))
            return answer["code"]

        def cudaHostUnregister(self, address):
            asked.append(("unregister", address))

    monkeypatch.setattr(torch.cuda, "cudart", Runtime)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: asked.append(("wait",)))
    return asked, answer


def test_memory_that_cannot_be_locked_is_noticed_and_leaves_no_error_behind(cuda, runtime, capsys):
    asked, answer = runtime
    answer["code"] = 1
    for error in (None, RuntimeError("CUDA error: operation not supported")):
        cuda.pop("ones", None)
        if error:
            cuda["ones"] = error
        locks = gpu.PageLocks([mmap.mmap(-1, 4096), mmap.mmap(-1, 4096)], GPU)
        assert "ones" in cuda, "a launch takes the error away, by raising it"
        assert "cannot lock" in capsys.readouterr().out
        locks.release()
    assert [one[0] for one in asked] == ["register"] * 2, "the others are not tried, and nothing is undone"
    assert gpu.Stopwatch(torch.device("cpu")).seconds() is None


def test_locked_memory_is_let_go_before_it_is_unmapped(runtime, capsys, monkeypatch):
    asked, _ = runtime
    memories = [mmap.mmap(-1, 4096) for _ in range(2)]
    locks = gpu.PageLocks(memories, GPU)
    assert [(one[0], *one[2:]) for one in asked] == [("register", 4096, 0)] * 2
    registered = {one[1] for one in asked}
    del asked[:]
    locks.release()
    locks.release()
    assert asked[0] == ("wait",), "a copy may be under way"
    assert sorted(asked[1:]) == sorted(("unregister", address) for address in registered)
    assert capsys.readouterr().out == ""

    def failed():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "synchronize", failed)
    gpu.PageLocks(memories, GPU).release()
    assert [one[0] for one in asked[-2:]] == ["unregister"] * 2, (
        "and the error that ends the run stays the first"
    )
    del asked[3:]
    gpu.PageLocks(memories, torch.device("cpu")).release()
    assert len(asked) == 3, "nothing on a CPU"


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
    assert "cuda:1 has too little memory for this run: use fewer" in gpu.out_of_memory(GPU, RuntimeError("x"))
