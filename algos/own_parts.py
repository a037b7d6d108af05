"""Custom network modules: construction, calls, and error messages.

Axes: T time, B rows, N samples, F features, S recurrent state.
"""

from __future__ import annotations

import copy
import inspect
import traceback
from collections.abc import Iterator, Mapping, ValuesView
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from pbt_rl.registry import load_object

from .cores import Core
from .encoders import Encoder, NetworkError, ObsShapes, channels_last, is_image, is_text

_TORCH = Path(torch.__file__).parent


def make_own(part: str, path: str, *arguments: object) -> nn.Module:
    """Build a module by a user's factory. Raises ValueError if the factory fails or returns no module.

    part: name of the part in messages, such as "encoder".
    """
    name = f"{part} {path!r}"
    try:
        factory = load_object(path, "factory")
    except ValueError as error:
        raise ValueError(f"{name} {error}") from error
    try:
        module = factory(*arguments) if callable(factory) else factory
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise ValueError(f"{name} raised {type(error).__name__} when constructed: {error}") from error
    if isinstance(module, nn.Module):
        return module
    raise ValueError(f"{name} returned {type(module).__name__}: its factory must return a torch.nn.Module")


@contextmanager
def constant_buffers(name: str, module: nn.Module) -> Iterator[None]:
    """Raise ValueError if code in this context changes a module's buffer.

    Policies share buffers, so a forward pass must not change buffers.
    """
    before = {key: buffer.clone() for key, buffer in module.named_buffers()}
    yield
    changed = [key for key, buffer in module.named_buffers() if not torch.equal(buffer, before[key])]
    if changed:
        raise ValueError(
            f"{name} changes its buffers {', '.join(changed)} in forward, but all policies share them: "
            "use a normalisation without running statistics, such as GroupNorm or LayerNorm"
        )


class _MixedNorms(TorchFunctionMode):
    """Mode that computes normalisation layers in float32, as autocast does on a GPU."""

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
    """Return the dtype of a module's weights; float32 for a module without weights."""
    weight = next(module.parameters(), None)
    return torch.float32 if weight is None else weight.dtype


def call_own(name: str, module: nn.Module, *inputs: Any) -> Any:
    """Call a custom module. Raises NetworkError for any exception of the module except OutOfMemoryError.

    bfloat16 modules are called under torch.autocast, because some inputs are float32.

    name: name of the module in messages, such as "encoder 'my_net:small'".
    """
    dtype = weights_dtype(module)
    try:
        if dtype == torch.float32:
            return module(*inputs)
        device = next(module.parameters()).device.type
        with torch.autocast(device, dtype, cache_enabled=False), _MixedNorms():
            return module(*inputs)
    except (torch.OutOfMemoryError, KeyboardInterrupt):
        raise
    except BaseException as error:  # custom modules may raise any exception
        text = str(error).splitlines()
        half = "" if dtype == torch.float32 else "; for float32 weights use --learner.precision float32"
        raise NetworkError(
            f"{name} raised {type(error).__name__}{place_of(error)}: {text[0] if text else 'no message'}. "
            f"Inputs: {described(inputs)}{half}"
        ) from error


def described(value: Any) -> str:
    """Describe shapes and dtypes of nested tensors."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {described(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, tuple | list):
        return ", ".join(map(described, value)) or "nothing"
    return type(value).__name__


def refuse(name: str, returned: Any, given: Any, wanted: str) -> NoReturn:
    """Raise NetworkError for an invalid result of a custom module."""
    raise NetworkError(f"{name} returned {described(returned)} for {described(given)}: return {wanted}")


def place_of(error: BaseException) -> str:
    """Return file and line of the user's code in a traceback, in parentheses; "" if unknown."""
    frames = traceback.extract_tb(error.__traceback__)[1:]
    files = [(Path(frame.filename), frame.lineno) for frame in frames]
    own = [(file, line) for file, line in files if _TORCH not in file.parents and file != Path(__file__)]
    return f" ({own[-1][0].name}, line {own[-1][1]})" if own else ""


def check_gradient(name: str, module: nn.Module, out: Tensor) -> None:
    """Raise NetworkError if weights of a custom module cannot be trained. out: result of a forward pass."""
    registered = {*map(id, module.modules()), *map(id, module.parameters())}

    def forgotten(value: object) -> bool:
        weights = value.parameters() if isinstance(value, nn.Module) else [value]
        trained = any(isinstance(one, nn.Parameter) and one.requires_grad for one in weights)
        return trained and id(value) not in registered

    for owner in module.modules():
        for attribute, value in vars(owner).items():
            inner = value.values() if isinstance(value, dict) and not attribute.startswith("_") else value
            if not isinstance(inner, list | tuple | ValuesView):
                continue
            if any(map(forgotten, inner)):
                raise NetworkError(
                    f"{name}: its attribute {attribute} is a {type(value).__name__} of modules or parameters, whose "
                    "weights are neither trained nor saved: use nn.ModuleList, nn.ModuleDict or nn.ParameterList"
                )
    trained = any(parameter.requires_grad for parameter in module.parameters())
    if trained and not out.requires_grad and not torch.is_inference_mode_enabled():
        raise NetworkError(
            f"{name} returns a tensor without gradient, so that its weights are never trained: remove detach, "
            "torch.no_grad and NumPy from forward"
        )


def check_numbers(name: str, out: Tensor) -> None:
    """Raise NetworkError if a result of a custom module has NaN. out: result for valid inputs and initial weights."""
    if out.isnan().any():
        raise NetworkError(
            f"{name} returns NaN for example inputs with its initial weights: look for a logarithm or square root of a "
            "negative number, or a division by 0"
        )


@torch.no_grad()
def check_samples(name: str, part: nn.Module, both: Any, first: Any) -> None:
    """Check the results of a custom module in evaluation mode.

    Raises NetworkError if a result has NaN, or if the result for a sample depends on other samples.

    both: input of two samples. first: its first sample alone.
    """
    training = {module: module.training for module in part.modules()}
    part.eval()
    with torch.random.fork_rng(devices=[]):
        out, again, alone = part(both), part(both), part(first)
    for module, mode in training.items():
        module.training = mode
    if alone.shape != out[:1].shape:
        refuse(name, alone, first, f"a float tensor {list(out[:1].shape)}")
    check_numbers(name, out)
    if torch.equal(out, again) and not _close((out[:1],), (alone,)):
        raise NetworkError(
            f"{name} computes another result for a sample alone than for the same sample beside another: a result may "
            "depend only on its own sample"
        )


class UserEncoder(Encoder):
    """Custom encoder, named by `module:factory` (docs/reference/network.md).

    factory(obs_shapes) returns an nn.Module that maps name -> [N, ...] to [N, F]. A dry run determines F. Images are
    scaled to [0, 1] in the dtype of the weights, or are uint8 if the module's attribute `raw_pixels` is true. Texts are
    int32, other inputs are float32.

    The module may have constant buffers. A forward pass must not change buffers, because all policies share them.
    Therefore the module cannot contain batch normalisation with running statistics.
    """

    def __init__(self, path: str, obs_shapes: ObsShapes) -> None:
        super().__init__()
        self._name = f"encoder {path!r}"
        self.names = tuple(obs_shapes)
        self.images = frozenset(name for name, spec in obs_shapes.items() if is_image(*spec))
        self.texts = frozenset(name for name, spec in obs_shapes.items() if is_text(*spec))
        self.module = make_own("encoder", path, dict(obs_shapes))
        self.raw_pixels = bool(getattr(self.module, "raw_pixels", False))
        with constant_buffers(self._name, self.module):
            self.size = self._try(obs_shapes)

    def _try(self, obs_shapes: ObsShapes) -> int:
        """Determine F by a dry run on two observations. Raises NetworkError."""
        obs = {n: torch.zeros((2, *shape), dtype=getattr(torch, d)) for n, (shape, d) in obs_shapes.items()}
        with torch.enable_grad():
            out = self._features(obs)
        if not (isinstance(out, Tensor) and out.ndim == 2 and len(out) == 2 and out.is_floating_point()):
            refuse(self._name, out, obs, "a float tensor [2, F]")
        check_gradient(self._name, self.module, out)
        random = torch.Generator().manual_seed(0)
        for array in obs.values():
            array.random_(0, 2, generator=random)  # 0 and 1 are legal even as indices of an embedding
        check_samples(self._name, self, obs, {name: array[:1] for name, array in obs.items()})
        return int(out.shape[1])

    def forward(self, obs: Mapping[str, Tensor]) -> Tensor:
        """Map name -> [N, ...] to [N, F] in the dtype of the weights. Raises NetworkError."""
        out: Tensor = self._features(obs)
        return out.to(weights_dtype(self.module))

    def _features(self, obs: Mapping[str, Tensor]) -> Any:
        dtype = weights_dtype(self.module)
        ready = {}
        for name in self.names:
            if name in self.images:
                x = obs[name]
                ready[name] = x if self.raw_pixels else channels_last(x.to(dtype)) / 255
            else:
                ready[name] = obs[name] if name in self.texts else obs[name].float()
        return call_own(self._name, self.module, ready)


class UserCore(Core):
    """Custom recurrent core, named by `module:factory` (docs/reference/network.md).

    factory(features) returns an nn.Module with the attribute `state_size`, the size S of the core's state (0: none).
    The module's forward(x [T, B, F], state [B, S] float32, first [T, B] bool) returns (features [T, B, G], state [B,
    S]). G is the width of the returned features. forward must zero the state where a step is `first`. If forward has a
    fourth parameter `cut` ([T, B] bool), forward must truncate gradients before the steps in `cut`. Otherwise gradients
    flow back to the first step.

    A dry run determines G. The dry run also checks that the state is reset at `first`, and that one call for several
    steps gives the same features as one call per step.
    """

    def __init__(self, path: str, size: int) -> None:
        super().__init__()
        self._name = f"core {path!r}"
        self.module = make_own("core", path, size)
        width = getattr(self.module, "state_size", None)
        if not isinstance(width, int | np.integer) or isinstance(width, bool) or width < 0:
            raise ValueError(
                f"{self._name} has state_size {width!r}: set it to the size of its state, 0 for none"
            )
        self.state_size = int(width)
        self._cuts = "cut" in inspect.signature(self.module.forward).parameters
        with constant_buffers(self._name, self.module):
            self.size = self._try(size)

    def forward(
        self, x_TBF: Tensor, state_BS: Tensor, first_TB: Tensor, cut_TB: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Compute features and the next state. Raises NetworkError."""
        more = (cut_TB,) if self._cuts else ()
        given = (x_TBF, state_BS, first_TB)
        answer = call_own(self._name, self.module, *given, *more)
        steps, rows = first_TB.shape
        match answer:
            case (Tensor() as out, Tensor() as after) if out.is_floating_point() and (
                (out.shape[:-1], after.shape) == (first_TB.shape, state_BS.shape)
            ):
                return out.to(weights_dtype(self.module)), after.float()
        wanted = f"(float features [{steps}, {rows}, G], state {list(state_BS.shape)})"
        refuse(self._name, answer, given, wanted)

    @torch.no_grad()
    def _try(self, size: int) -> int:
        """Check the core by a dry run and return G. Raises ValueError."""
        random = torch.Generator().manual_seed(0)
        x = torch.randn(4, 2, size, generator=random)
        state, other = torch.randn(2, 2, self.state_size, generator=random)
        first = torch.zeros(4, 2, dtype=torch.bool)
        first[2] = True
        with torch.enable_grad():  # in training mode, because some modules change buffers only in it
            check_gradient(self._name, self.module, self(x, state, first)[0])
        tried = copy.deepcopy(self).eval()
        out, last = tried(x, state, first)
        check_numbers(self._name, out)
        steps = []
        for t in range(4):
            one, state = tried(x[t : t + 1], state, first[t : t + 1])
            steps.append(one)
        if not _close((out, last), (torch.cat(steps), state)):
            raise ValueError(
                f"{self._name} computes different features for 4 steps in one call and in 4 calls: a step may depend "
                "only on the state and on earlier steps"
            )
        again, last_again = tried(x, other, first)
        if not _close((out[2:], last), (again[2:], last_again)):
            raise ValueError(
                f"{self._name} does not reset its state at a `first` step: zero the state there, with "
                "torch.where(first[t].unsqueeze(-1), 0.0, state)"
            )
        return int(out.shape[-1])


def _close(some: tuple[Tensor, ...], others: tuple[Tensor, ...]) -> bool:
    return all(torch.allclose(a, b, rtol=1e-3, atol=1e-4) for a, b in zip(some, others, strict=True))


class UserHead(nn.Module):
    """Custom head, named by `module:factory` (docs/reference/network.md).

    factory(features, outputs) returns an nn.Module that maps [N, features] to [N, outputs], both float32.
    logits: True if all outputs are logits of discrete actions.
    """

    def __init__(self, part: str, path: str, size: int, outputs: int, *, logits: bool) -> None:
        super().__init__()
        self._name, self._outputs = f"{part} {path!r}", outputs
        self.module = make_own(part, path, size, outputs)
        with constant_buffers(self._name, self.module), torch.enable_grad():
            check_gradient(self._name, self.module, self(torch.zeros(2, size)))
        features = torch.randn(2, size, generator=torch.Generator().manual_seed(0))
        check_samples(self._name, self, features, features[:1])
        if logits and outputs > 1:
            self._check_logits(self(features))

    def _check_logits(self, out: Tensor) -> None:
        """Raise NetworkError if a result looks like the output of a softmax. out: [N, outputs]."""
        if (out >= 0).all() and torch.allclose(out.sum(-1), torch.ones(len(out)), atol=1e-3):
            raise NetworkError(
                f"{self._name} returns probabilities, whose softmax would be nearly uniform: return logits, without "
                "softmax"
            )

    def forward(self, features: Tensor) -> Tensor:
        """Map [..., F] to [..., outputs]. Raises NetworkError."""
        rows = features.flatten(0, -2)
        out = call_own(self._name, self.module, rows)
        size = (len(rows), self._outputs)
        if not (isinstance(out, Tensor) and out.shape == size and out.is_floating_point()):
            refuse(self._name, out, rows, f"a float tensor {list(size)}")
        shaped: Tensor = out.float().unflatten(0, features.shape[:-1])
        return shaped
