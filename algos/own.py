"""Parts of a network that a user wrote, named by `module:factory`: loading, calling, and errors that name them."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from pbt_rl.extras import load_object

_TORCH = Path(torch.__file__).parent


class NetworkError(ValueError):
    """A user's part of a network raised, or returned what cannot be used. The message names part, place and shapes."""


def make_own(part: str, path: str, *arguments: object) -> nn.Module:
    """Return what the factory makes of these arguments. part: such as "encoder". Raises ValueError."""
    try:
        factory = load_object(path, "factory")
    except ValueError as error:
        raise ValueError(f"{part} {path!r} {error}") from error
    try:
        module = factory(*arguments) if callable(factory) else factory
    except Exception as error:
        raise ValueError(
            f"{part} {path!r} raised {type(error).__name__} when it was made: {error}"
        ) from error
    if not isinstance(module, nn.Module):
        raise ValueError(  # noqa: TRY004 - the user's option is wrong, not our call
            f"{part} {path!r} gave {type(module).__name__}: its factory must return a torch.nn.Module"
        )
    return module


@contextmanager
def constant_buffers(name: str, module: nn.Module) -> Iterator[None]:
    """Raise ValueError if what runs inside changes a buffer of the module: policies share them."""
    before = {key: buffer.clone() for key, buffer in module.named_buffers()}
    yield
    changed = [key for key, buffer in module.named_buffers() if not torch.equal(buffer, before[key])]
    if changed:
        raise ValueError(
            f"{name} changes its buffers {', '.join(changed)} in a forward; policies would "
            "share them: use a normalisation without running statistics, such as GroupNorm or LayerNorm"
        )


class _MixedNorms(TorchFunctionMode):
    """Compute normalisations of float32 numbers by bfloat16 weights in float32, which autocast does on a GPU only."""

    NORMS = frozenset({functional.layer_norm, functional.group_norm, torch.layer_norm, torch.group_norm})

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in self.NORMS:
            args = tuple(x.float() if isinstance(x, Tensor) else x for x in args)
            kwargs = {name: x.float() if isinstance(x, Tensor) else x for name, x in kwargs.items()}
        return func(*args, **kwargs)


def weights_dtype(module: nn.Module) -> torch.dtype:
    """Dtype of a module's weights; float32 if it has none."""
    weight = next(module.parameters(), None)
    return torch.float32 if weight is None else weight.dtype


def call_own(name: str, module: nn.Module, *inputs: Any) -> Any:
    """Call a user's module. name: such as "encoder 'my_net:small'".

    If its weights are bfloat16, matrix products, convolutions and normalisations take inputs of any float dtype
    (torch.autocast): some inputs are float32. Raises NetworkError for whatever it raises.
    """
    dtype = weights_dtype(module)
    try:
        if dtype == torch.float32:
            return module(*inputs)
        device = next(module.parameters()).device.type
        with torch.autocast(device, dtype, cache_enabled=False), _MixedNorms():
            return module(*inputs)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # the user's module may raise anything
        text = str(error).splitlines()
        half = "" if dtype == torch.float32 else "; --learner.precision float32 keeps its weights float32"
        raise NetworkError(
            f"{name} raised {type(error).__name__}{place_of(error)}: {text[0] if text else 'nothing said'}. "
            f"It got {described(inputs)}{half}"
        ) from error


def described(value: Any) -> str:
    """Return shapes and dtypes of tensors, however they are nested."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {described(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, tuple | list):
        return ", ".join(map(described, value)) or "nothing"
    return type(value).__name__


def place_of(error: Exception) -> str:
    """Return where in the user's code an error was raised, in parentheses; "" if that is not known."""
    frames = traceback.extract_tb(error.__traceback__)[1:]
    files = [(Path(frame.filename), frame.lineno) for frame in frames]
    own = [(file, line) for file, line in files if _TORCH not in file.parents and file != Path(__file__)]
    return f" ({own[-1][0].name}, line {own[-1][1]})" if own else ""
