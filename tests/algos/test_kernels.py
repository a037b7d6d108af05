"""Devices: the vendor of the processor."""

import subprocess
import sys

WITHOUT = """
from pathlib import Path

read = Path.read_text

def refuse(path, *arguments, **keywords):
    if str(path) == "/proc/cpuinfo":
        raise PermissionError(13, "Permission denied", str(path))
    return read(path, *arguments, **keywords)

Path.read_text = refuse
import torch

from pbt_rl.algos.encoders import tanh
from pbt_rl.algos.kernels import processor_is

assert not processor_is("AuthenticAMD")
assert torch.equal(tanh(torch.ones(3)), torch.tanh(torch.ones(3)))
"""


def test_networks_work_where_the_processor_is_not_told():
    subprocess.run([sys.executable, "-c", WITHOUT], check=True)
