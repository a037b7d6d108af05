"""Locked memory, with a CUDA that is made up."""

import mmap

import pytest
import torch

from pbt_rl.learner.cuda.host_memory import PageLocks

GPU = torch.device("cuda:1")


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
        locks = PageLocks([mmap.mmap(-1, 4096), mmap.mmap(-1, 4096)], GPU)
        assert "ones" in cuda, "a launch takes the error away, by raising it"
        assert "page-lock" in capsys.readouterr().out
        locks.release()
    assert [one[0] for one in asked] == ["register"] * 2, "the others are not tried, and nothing is undone"


def test_locked_memory_is_let_go_before_it_is_unmapped(runtime, capsys, monkeypatch):
    asked, _ = runtime
    memories = [mmap.mmap(-1, 4096) for _ in range(2)]
    locks = PageLocks(memories, GPU)
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
    PageLocks(memories, GPU).release()
    assert [one[0] for one in asked[-2:]] == ["unregister"] * 2, (
        "and the error that ends the run stays the first"
    )
    del asked[3:]
    PageLocks(memories, torch.device("cpu")).release()
    assert len(asked) == 3, "nothing on a CPU"
