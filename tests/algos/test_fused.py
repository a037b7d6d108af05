"""Adam as one kernel: the plain program's numbers, in Triton's interpreter."""

import os
import subprocess
import sys

import pytest
import torch

from pbt_rl.algos import fused
from pbt_rl.algos.optim import adam_on, adam_torch
from tests.helpers.runs import ROOT

SAME = """
import torch
from pbt_rl.algos import fused
from pbt_rl.algos.optim import ADAM_EPS, adam_torch

step = fused.make_adam(ADAM_EPS)
assert fused.same(step, adam_torch, torch.device("cpu"))
torch.manual_seed(1)
policies, numbers = 5, 2 * fused.BLOCK + 3
whole = torch.randn(4, policies + 2, numbers + 4)  # rows of a larger state, which begin at odd places
worst = 0.0
for number in range(4):
    scale, step_size, root = torch.rand(policies), torch.rand(policies) * 1e-3, 1 + torch.rand(policies) * 30
    scale[number] = 0.0
    betas = torch.rand(2, policies)
    state = [whole[i, 1:-1, 1:-3] for i in range(4)]
    state[3].abs_()
    state[1].normal_()
    before = whole.clone()
    other = [x.clone() for x in state]
    step(*state, scale, step_size, betas[0], betas[1], root)
    adam_torch(*other, scale, step_size, betas[0], betas[1], root)
    worst = max([worst, *(float((a - b).abs().max()) for a, b in zip(state, other))])
    assert all(torch.equal(x[number], before[i, 1 + number, 1:-3]) for i, x in enumerate(state))
    assert torch.equal(whole[:, 0], before[:, 0]) and torch.equal(whole[:, -1], before[:, -1])
    assert torch.equal(whole[:, :, :1], before[:, :, :1]) and torch.equal(whole[:, :, -3:], before[:, :, -3:])
print(worst)
"""


def test_it_equals_the_plain_program():
    pytest.importorskip("triton")
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [sys.executable, "-c", SAME], env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert float(ran.stdout) <= 1e-6


def test_what_computes_something_else_is_not_used():
    def wrong(param, *rest):
        adam_torch(param, *rest)
        param += 1e-3

    cpu = torch.device("cpu")
    assert fused.same(adam_torch, adam_torch, cpu)
    assert not fused.same(wrong, adam_torch, cpu)


@pytest.mark.parametrize(
    "error", [ImportError("no module triton"), RuntimeError("Failed to find C compiler")]
)
def test_where_it_cannot_be_made_the_plain_program_is_used(monkeypatch, error):
    def fails(_eps):
        raise error

    monkeypatch.setattr(fused, "make_adam", fails)
    step, said = adam_on(torch.device("cuda:5"))
    adam_on.cache_clear()
    assert step is adam_torch
    assert str(error) in said
    assert adam_on(torch.device("cpu"))[1] == ""
