"""A trained member as a file of ONNX or safetensors. Each is read back and compared before it is named."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from pbt_rl.errors import ConfigError
from pbt_rl.play.export.net import ExportedPolicy, interface

ROWS = 3
"""Of the example that a network is traced with; any number of rows works afterwards."""
TOLERANCE = 1e-4
"""Of logits, means and values: other programs add in another order."""
KEY = "pbt_rl.policy"
"""Metadata: the interface as JSON."""
Run = Callable[[Sequence[Tensor]], Sequence[np.ndarray[Any, Any]]]


def write_onnx(policy: ExportedPolicy, path: Path) -> None:
    """Write ONNX. Raises ConfigError if packages are missing or the network cannot be written so."""
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]
    if missing:
        raise ConfigError(f'this format needs {" and ".join(missing)}: pip install "pbt-rl[export]"')
    import onnx  # noqa: PLC0415 - an extra
    import onnxruntime  # noqa: PLC0415

    rows = torch.export.Dim("N")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about what torch does inside
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        try:
            program = torch.onnx.export(
                policy,
                tuple(port.zeros(ROWS) for port in policy.inputs),
                input_names=[port.name for port in policy.inputs],
                output_names=list(policy.outputs),
                dynamic_shapes=(tuple({0: rows} for _ in policy.inputs),),
                dynamo=True,
                verbose=False,
            )
        except RuntimeError as error:
            raise _no_form(path, error) from error
    assert program is not None
    model = program.model_proto
    onnx.helper.set_model_props(model, {KEY: json.dumps(interface(policy))})
    onnx.save(model, path)
    try:
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    except Exception as error:  # its errors have no common class
        path.unlink()
        raise _no_form(path, error) from error

    def run(arrays: Sequence[Tensor]) -> Sequence[np.ndarray[Any, Any]]:
        given = {port.name: x.numpy() for port, x in zip(policy.inputs, arrays, strict=True)}
        results: Sequence[np.ndarray[Any, Any]] = session.run(list(policy.outputs), given)
        return results

    check_same(policy, run, path)


def write_safetensors(policy: ExportedPolicy, path: Path) -> None:
    """Write the weights, by the names of the network's `state_dict`, and the normalisers."""
    tensors = {  # copies: the file cannot hold one tensor by two names
        f"net.{name}": x.clone(memory_format=torch.contiguous_format)
        for name, x in policy.net.state_dict().items()
    }
    tensors |= {f"statistics.{name}": x[0].contiguous() for name, x in policy.statistics().items()}
    save_file(tensors, path, metadata={KEY: json.dumps(interface(policy))})
    with safe_open(path, "pt") as file:
        assert all(torch.equal(file.get_tensor(name), x) for name, x in tensors.items())


FORMATS: Mapping[str, Callable[[ExportedPolicy, Path], None]] = {
    "onnx": write_onnx,
    "safetensors": write_safetensors,
}
"""Name -> writer of what needs the policy alone."""
SUFFIXES = {"onnx": ".onnx", "safetensors": ".safetensors", "rsl_rl": "_rsl_rl.pt"}
"""Name -> how its file's name ends."""


def check_same(policy: ExportedPolicy, run: Run, path: Path) -> None:
    """Compare what a file computes with the policy itself, on other numbers of rows. Raises ConfigError."""
    generator = torch.Generator().manual_seed(0)
    for rows in (1, 8):
        arrays = [port.random(rows, generator) for port in policy.inputs]
        with torch.no_grad():
            wanted = [x.numpy() for x in policy(*arrays)]
        try:
            given = run(arrays)
        except Exception as error:  # each format has errors of its own, such as for another number of rows
            path.unlink()
            raise _no_form(path, error) from error
        for name, has, should in zip(policy.outputs[1:], given[1:], wanted[1:], strict=True):
            if not np.allclose(has, should, rtol=TOLERANCE, atol=TOLERANCE):
                path.unlink()
                raise ConfigError(
                    f"{path} would give another {name} than the member (largest difference "
                    f"{np.abs(has - should).max():.2g}): its network does what this format has no form for"
                )


def _no_form(path: Path, error: Exception) -> ConfigError:
    why = next((line.strip() for line in str(error.__cause__ or error).splitlines() if line.strip()), "")
    return ConfigError(
        f"{path} cannot be written: its network does what this format has no form for ({type(error).__name__}: "
        f"{why:.200})"
    )
