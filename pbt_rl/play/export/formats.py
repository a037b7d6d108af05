"""Export of a trained member as ONNX or safetensors. Each file is read back and compared with the member."""

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
"""Batch size of the inputs with which the network is traced. The exported network accepts any batch size."""
TOLERANCE = 1e-4
"""Relative and absolute tolerance of the outputs. (Other programs add floats in another order.)"""
KEY = "pbt_rl.policy"
"""Key of the file's metadata under which inputs and outputs are described as JSON."""
Run = Callable[[Sequence[Tensor]], Sequence[np.ndarray[Any, Any]]]


def write_onnx(policy: ExportedPolicy, path: Path) -> None:
    """Write an ONNX file. Raises ConfigError if packages are missing or the network cannot be exported."""
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]
    if missing:
        raise ConfigError(f'--format onnx needs {" and ".join(missing)}: pip install "pbt-rl[export]"')
    import onnx  # noqa: PLC0415 - an extra
    import onnxruntime  # noqa: PLC0415

    rows = torch.export.Dim("N")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about torch internals
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
    """Write a safetensors file with the weights (named as in the network's `state_dict`) and the normalisers."""
    tensors = {  # copies, because the file cannot contain one tensor under two names
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
"""Format -> writer, for the formats that need only the policy."""
SUFFIXES = {"onnx": ".onnx", "safetensors": ".safetensors", "rsl_rl": "_rsl_rl.pt"}
"""Format -> suffix of the file name."""


def check_same(policy: ExportedPolicy, run: Run, path: Path) -> None:
    """Compare the outputs (except `action`) of an exported file and of the policy.

    If they differ, remove the file and raise ConfigError.
    run: function from inputs to the outputs of the file. Inputs are random batches of 1 and 8 observations.
    """
    generator = torch.Generator().manual_seed(0)
    for rows in (1, 8):
        arrays = [port.random(rows, generator) for port in policy.inputs]
        with torch.no_grad():
            wanted = [x.numpy() for x in policy(*arrays)]
        try:
            given = run(arrays)
        except Exception as error:  # error types depend on the format, for example for another number of rows
            path.unlink()
            raise _no_form(path, error) from error
        for name, has, should in zip(policy.outputs[1:], given[1:], wanted[1:], strict=True):
            if not np.allclose(has, should, rtol=TOLERANCE, atol=TOLERANCE):
                path.unlink()
                raise ConfigError(
                    f"{path} cannot be written: {name} of the file differs from the member's by up to "
                    f"{np.abs(has - should).max():.2g}; the format does not support an operation of this network"
                )


def _no_form(path: Path, error: Exception) -> ConfigError:
    why = next((line.strip() for line in str(error.__cause__ or error).splitlines() if line.strip()), "")
    return ConfigError(
        f"{path} cannot be written: the format does not support an operation of this network "
        f"({type(error).__name__}: {why:.200})"
    )
