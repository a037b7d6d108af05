"""Custom network modules: construction, calls, checks, and error messages.

Axes: T time, B rows, N samples, F features, S recurrent state.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from pbt_rl.errors import place_of
from pbt_rl.registry import load_object

from .cores import Core
from .encoders import Encoder, NetworkError, ObsShapes, channels_last, is_image, is_text


def make_own(part: str, path: str, *arguments: object) -> nn.Module:
    """Build a module by a user's factory.

    Raises ValueError if the factory cannot be imported, fails, or returns no module.

    part: name of the part in messages, such as "encoder".
    path: `module:factory`. arguments: arguments of the factory.
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
        raise ValueError(failed(name, error, " when constructed")) from error
    if isinstance(module, nn.Module):
        return module
    raise ValueError(f"{name} returned {type(module).__name__}: its factory must return a torch.nn.Module")


Module = TypeVar("Module", bound=nn.Module)


def copied(name: str, module: Module) -> Module:
    """Copy a module. Raises NetworkError if the module cannot be copied."""
    try:
        return copy.deepcopy(module)
    except Exception as error:  # custom modules may raise any exception
        raise NetworkError(
            f"{name} cannot be copied ({error}). Remove objects that copy.deepcopy cannot copy from its modules, such "
            "as locks, open files and writers. Detach tensors that forward keeps in a module"
        ) from error


@contextmanager
def constant_buffers(name: str, module: nn.Module) -> Iterator[None]:
    """Raise ValueError if code in this context changes a module's buffer.

    Policies share buffers, so a forward pass must not change buffers.
    """
    before = {key: buffer.clone() for key, buffer in module.named_buffers()}
    yield
    changed = [key for key, buffer in module.named_buffers() if not same(buffer, before[key])]
    if changed:
        raise ValueError(
            f"{name} changes its buffers {', '.join(changed)} in forward, but all policies share them: "
            "use a normalisation without running statistics, such as GroupNorm or LayerNorm"
        )


def same(a: Tensor, b: Tensor) -> bool:
    """Check whether two tensors have equal shapes and numbers. NaN equals NaN."""
    return a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all())


@contextmanager
def constant_inputs(name: str, inputs: Mapping[str, Tensor]) -> Iterator[None]:
    """Raise NetworkError if code in this context writes to an input, because others read the input afterwards."""
    before = {key: (version(x), x.clone()) for key, x in inputs.items()}
    yield
    changed = [
        key for key, x in inputs.items() if version(x) != before[key][0] or not torch.equal(x, before[key][1])
    ]
    if changed:
        raise NetworkError(
            f"{name} changes its input {', '.join(changed)} in place, but the learner reads the input again: use "
            "operations that return new tensors, such as x + 1 instead of x.add_(1) or x += 1, and layers with "
            "inplace=False"
        )


def version(x: Tensor) -> int:
    """Return the number of in-place writes to a tensor, which includes writes that change no value.

    Tensors of inference mode have no such number; the result is then 0.
    """
    return 0 if x.is_inference() else x._version  # noqa: SLF001 - torch has no public name


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
    """Call a custom module.

    Raises NetworkError for any exception of the module except OutOfMemoryError and KeyboardInterrupt. bfloat16 modules
    are called under torch.autocast, because some inputs are float32.

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
        half = "" if dtype == torch.float32 else "; for float32 weights use --learner.precision float32"
        raise NetworkError(f"{failed(name, error)}. Inputs: {described(inputs)}{half}") from error


def failed(name: str, error: BaseException, when: str = "") -> str:
    """Describe an exception of the user's code in one line. when: addition, such as " in the backward pass"."""
    text = (str(error).splitlines() or ["no message"])[0]
    return f"{name} raised {type(error).__name__}{place_of(error)}{when}: {text}"


def described(value: Any) -> str:
    """Describe shapes and dtypes of nested tensors, and types of other objects."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {described(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, tuple | list):
        return ", ".join(map(described, value)) or "nothing"
    return type(value).__name__


def refuse(name: str, returned: Any, given: Any, wanted: str) -> NoReturn:
    """Raise NetworkError for an invalid result of a custom module. wanted: description of a valid result."""
    raise NetworkError(f"{name} returned {described(returned)} for {described(given)}: return {wanted}")


def check_gradient(name: str, module: nn.Module, out: Tensor) -> None:
    """Raise NetworkError if a custom module has trainable weights, but its result `out` has no gradient."""
    trained = any(parameter.requires_grad for parameter in module.parameters())
    if trained and not out.requires_grad and not torch.is_inference_mode_enabled():
        raise NetworkError(
            f"{name} returns a tensor without gradient, so that its weights are never trained: remove detach, "
            "torch.no_grad and NumPy from forward"
        )


def check_backward(name: str, outputs: tuple[Tensor, ...]) -> None:
    """Run a backward pass. Raises NetworkError if the backward pass fails, for example after an in-place operation."""
    try:
        torch.autograd.backward([output.sum() for output in outputs if output.requires_grad])
    except Exception as error:  # custom modules may raise any exception
        raise NetworkError(failed(name, error, " in the backward pass")) from error


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

    Raises NetworkError if a result has NaN, or if the result for a sample depends on other samples. Random results are
    only checked for NaN.

    both: input of two samples. first: the first of these samples alone.
    """
    training = {module: module.training for module in part.modules()}
    part.eval()
    with torch.random.fork_rng(devices=[]):
        out, again, alone = part(both), part(both), part(first)
    for module, mode in training.items():
        module.training = mode
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
        self.name = f"encoder {path!r}"
        self.names = tuple(obs_shapes)
        self.images = frozenset(name for name, spec in obs_shapes.items() if is_image(*spec))
        self.texts = frozenset(name for name, spec in obs_shapes.items() if is_text(*spec))
        self.module = make_own("encoder", path, dict(obs_shapes))
        self.raw_pixels = bool(getattr(self.module, "raw_pixels", False))
        self._shapes = dict(obs_shapes)
        with constant_buffers(self.name, self.module):
            self._try()

    def example(self, seed: int) -> tuple[dict[str, Tensor]]:
        """Return example arguments of `forward`: observations of two samples, with random numbers 0 and 1.

        These numbers are valid even as indices of an embedding.
        """
        random = torch.Generator().manual_seed(seed)
        return (
            {
                name: torch.zeros((2, *shape), dtype=getattr(torch, dtype)).random_(0, 2, generator=random)
                for name, (shape, dtype) in self._shapes.items()
            },
        )

    def _try(self) -> None:
        """Determine the number of features (F) by a dry run on two observations.

        Raises NetworkError if the encoder fails, or breaks a requirement.
        """
        (obs,) = self.example(0)
        zeros = {name: torch.zeros_like(array) for name, array in obs.items()}
        with torch.enable_grad(), constant_inputs(self.name, zeros):
            out = self._features(zeros)
        if not (isinstance(out, Tensor) and out.ndim == 2 and len(out) == 2 and out.is_floating_point()):
            refuse(self.name, out, obs, "a float tensor [2, F]")
        check_gradient(self.name, self.module, out)
        self.size = int(out.shape[1])
        check_samples(self.name, self, obs, {name: array[:1] for name, array in obs.items()})

    def forward(self, obs: Mapping[str, Tensor]) -> Tensor:
        """Map name -> [N, ...] to [N, F] in the dtype of the weights.

        Raises NetworkError if the encoder fails, or returns no float tensor [N, F].
        """
        out = self._features(obs)
        size = (len(next(iter(obs.values()))), self.size)
        if not (isinstance(out, Tensor) and out.shape == size and out.is_floating_point()):
            refuse(self.name, out, obs, f"a float tensor {list(size)}")
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
        return call_own(self.name, self.module, ready)


class UserCore(Core):
    """Custom recurrent core, named by `module:factory` (docs/reference/network.md).

    factory(features) returns an nn.Module with the attribute `state_size`, the size S of the core's state (0: none).
    The module's forward(x [T, B, F], state [B, S] float32, first [T, B] bool) returns (features [T, B, G], state [B,
    S]). G is the width of the returned features. forward must zero the state where a step is `first`. If forward has a
    fourth parameter `cut` ([T, B] bool or None), forward must truncate gradients before the steps in `cut`. Otherwise
    gradients flow back to the first step.

    A dry run determines G. The dry run also checks that the state is reset at `first`, and that one call for several
    steps gives the same features as one call per step.
    """

    def __init__(self, path: str, size: int) -> None:
        super().__init__()
        self.name = f"core {path!r}"
        self.module = make_own("core", path, size)
        width = getattr(self.module, "state_size", None)
        if not isinstance(width, int | np.integer) or isinstance(width, bool) or width < 0:
            raise ValueError(
                f"{self.name} has state_size {width!r}: set it to the size of its state, 0 for none"
            )
        self.state_size = int(width)
        self._cuts = "cut" in inspect.signature(self.module.forward).parameters
        self._features = size
        with constant_buffers(self.name, self.module):
            self.size = self._try()

    def example(self, seed: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return random arguments (x, state, first) of `forward`: four steps of two rows.

        Row 0 starts an episode at step 2, counted from 0.
        """
        random = torch.Generator().manual_seed(seed)
        first = torch.zeros(4, 2, dtype=torch.bool)
        first[2, 0] = True
        return (
            torch.randn(4, 2, self._features, generator=random),
            torch.randn(2, self.state_size, generator=random),
            first,
        )

    def forward(
        self, x_TBF: Tensor, state_BS: Tensor, first_TB: Tensor, cut_TB: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return (features [T, B, size] in the weights' dtype, next state [B, S] float32).

        Raises NetworkError if the core fails, or returns other types or shapes.
        """
        more = (cut_TB,) if self._cuts else ()
        given = (x_TBF, state_BS, first_TB)
        answer = call_own(self.name, self.module, *given, *more)
        steps, rows = first_TB.shape
        match answer:
            case (Tensor() as out, Tensor() as after) if out.is_floating_point() and (
                (out.shape, after.shape)
                == ((steps, rows, getattr(self, "size", out.shape[-1])), state_BS.shape)
            ):
                return out.to(weights_dtype(self.module)), after.float()
        wanted = f"(float features [{steps}, {rows}, G], state {list(state_BS.shape)})"
        refuse(self.name, answer, given, wanted)

    @torch.no_grad()
    def _try(self) -> int:
        """Check the core by a dry run. Return G, the number of features that it returns.

        Raises ValueError if the core breaks a requirement.
        """
        x, state, first = self.example(0)
        other = self.example(1)[1]
        # in training mode, because some modules change buffers only in it
        with torch.enable_grad(), constant_inputs(self.name, {"state": state, "first": first}):
            out = self(x.clone(), state, first)[0]
        check_gradient(self.name, self.module, out)
        evaluated = copied(self.name, self).eval()

        def tried(x: Tensor, state: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
            # a core may write to the features
            answer: tuple[Tensor, Tensor] = evaluated(x.clone(), state, first)
            return answer

        out, last = tried(x, state, first)
        check_numbers(self.name, out)
        steps, after = [], state
        for t in range(4):
            one, after = tried(x[t : t + 1], after, first[t : t + 1])
            steps.append(one)
        if not _close((out, last), (torch.cat(steps), after)):
            raise ValueError(
                f"{self.name} computes different features for 4 steps in one call and in 4 calls: a step may depend "
                "only on the given state and on earlier steps of the call"
            )
        alone, last_alone = tried(x[:, 1:], state[1:], first[:, 1:])
        if not _close((out[:, 1:], last[1:]), (alone, last_alone)):
            raise ValueError(
                f"{self.name} computes another result for a row alone than for the same row beside another: a row may "
                "depend only on its own features, state and `first`"
            )
        again, last_again = tried(x, other, first)
        if not _close((out[2:, :1], last[:1]), (again[2:, :1], last_again[:1])):
            raise ValueError(
                f"{self.name} does not reset its state at a `first` step: zero the state there, with "
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
        self.name, self._features, self._outputs = f"{part} {path!r}", size, outputs
        self.module = make_own(part, path, size, outputs)
        (features,) = self.example(0)
        with (
            constant_buffers(self.name, self.module),
            constant_inputs(self.name, {"features": features}),
            torch.enable_grad(),
        ):
            check_gradient(self.name, self.module, self(features))
        check_samples(self.name, self, features, features[:1])
        if logits and outputs > 1:
            with torch.no_grad():
                self._check_logits(self(features))

    def example(self, seed: int) -> tuple[Tensor]:
        """Return example arguments of `forward`: random features of two samples."""
        return (torch.randn(2, self._features, generator=torch.Generator().manual_seed(seed)),)

    def _check_logits(self, out: Tensor) -> None:
        """Raise NetworkError if a result looks like the output of a softmax. out: [N, outputs]."""
        if (out >= 0).all() and torch.allclose(out.sum(-1), torch.ones(len(out)), atol=1e-3):
            raise NetworkError(
                f"{self.name} returns probabilities, whose softmax would be nearly uniform: return logits, without "
                "softmax"
            )

    def forward(self, features: Tensor) -> Tensor:
        """Map [..., F] to [..., outputs].

        Raises NetworkError if the head fails, or returns no float tensor [N, outputs].
        """
        rows = features.flatten(0, -2)
        out = call_own(self.name, self.module, rows)
        size = (len(rows), self._outputs)
        if not (isinstance(out, Tensor) and out.shape == size and out.is_floating_point()):
            refuse(self.name, out, rows, f"a float tensor {list(size)}")
        shaped: Tensor = out.float().unflatten(0, features.shape[:-1])
        return shaped


Own = UserEncoder | UserCore | UserHead
NAMED = 4
"""Maximum number of weights that a warning names."""


def check_again(net: nn.Module, again: nn.Module) -> list[str]:
    """Check that custom modules compute only with weights, buffers and inputs. Return warnings.

    The warnings name weights without gradient. Raises NetworkError if a module computes with any other tensor.

    again: second network that was built with the options of `net`.
    """
    parts, others = ([one for one in built.modules() if isinstance(one, Own)] for built in (net, again))
    warnings: list[str] = []
    for part, other in zip(parts, others, strict=True):
        warnings += _check_gradients(copy.deepcopy(part))
        _check_reproducible(copy.deepcopy(part), other)
    return warnings


def _check_gradients(part: Own) -> Iterator[str]:
    """Yield a warning if parameters get no gradient.

    Raises NetworkError if a tensor that needs a gradient is not a parameter.
    """
    parameters = {id(one): one for one in part.parameters()}
    with torch.enable_grad():
        learning, acting = _outputs(part, 0), _outputs(part.eval(), 1)
    # A tensor in only one of the graphs was created in forward. All tensors still exist, so that each `id` is unique.
    first, second = ({id(leaf): leaf for leaf in _leaves(outputs)} for outputs in (learning, acting))
    lost = sorted(
        str(list(leaf.shape)) for key, leaf in first.items() if key in second.keys() - parameters.keys()
    )
    if lost:
        raise NetworkError(
            f"{part.name} computes with weights that are neither trained nor saved (shapes {', '.join(lost)}), because "
            "they are not parameters of the module: use nn.ModuleList, nn.ModuleDict and nn.Parameter, or "
            "requires_grad=False for weights that every construction makes equal. In a copy of a module, lambdas and "
            "torch.jit modules still compute with the weights of the original: use methods instead"
        )
    check_backward(part.name, (*learning, *acting))
    named = [(name, one) for name, one in part.module.named_parameters() if one.requires_grad]
    unused = [name for name, one in named if one.grad is None]
    if unused:
        more = f" and {len(unused) - NAMED} more" if len(unused) > NAMED else ""
        yield (
            f"{part.name}: with example inputs, no gradient reaches {len(unused)} of {len(named)} weights "
            f"({', '.join(unused[:NAMED])}{more}). If no other input uses them, they are never trained: remove detach "
            "and torch.no_grad, or set requires_grad=False if they are unused or fixed"
        )


def _leaves(outputs: tuple[Tensor, ...]) -> Iterator[Tensor]:
    """Yield the tensors to which a backward pass from `outputs` adds gradients."""
    nodes = {output.grad_fn for output in outputs if output.grad_fn is not None}
    seen = {*nodes}
    while nodes:
        node = nodes.pop()
        if type(node).__name__ == "AccumulateGrad":
            yield node.variable  # type: ignore[attr-defined] # only this type of node has a variable
        new = {before for before, _ in node.next_functions if before is not None} - seen
        seen |= new
        nodes |= new


def _check_reproducible(part: Own, other: Own) -> None:
    """Raise NetworkError if equal weights and inputs do not give equal results.

    other: second construction of `part`. Both get the same changed weights.

    Modules whose results are random in spite of a seeded torch generator are not checked.
    """
    drawn = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for mine, others in zip(part.parameters(), other.parameters(), strict=True):
            if mine.requires_grad:  # a weight of 0 may hide what is multiplied by it
                mine.add_(torch.randn(mine.shape, generator=drawn), alpha=0.01)
            others.copy_(mine)
    once, twice = _results(part, 1)
    seeded = _same(once, _results(part, 1)[0])
    if seeded and not _same(once, _results(part, 2)[0]):
        raise NetworkError(
            f"{part.name} computes other results for an input if other inputs preceded it: forward may keep nothing in "
            "the module that a later result depends on. For memory within an episode, use the state of a core"
        )
    if seeded and _same(once, twice) and not _same(once, _results(other, 1)[0]):
        raise NetworkError(
            f"{part.name} computes other results if its weights are loaded into a new construction of it, as "
            "evaluation and resumed runs do: it has random tensors that are neither parameters nor buffers. Make them "
            "nn.Parameter (with requires_grad=False if they are not learned)"
        )


def _results(part: Own, earlier: int) -> list[list[Tensor]]:
    """Return two lists of results for the same input, computed one after the other by a copy of a part.

    Each list has the results in training mode, followed by those in evaluation mode. The lists differ if the part has
    its own generator of random numbers.

    earlier: seed of another input. In each mode, its results are computed first and dropped.
    """
    part, found = copy.deepcopy(part), list[list[Tensor]]([[], [], []])
    for learning in (True, False):
        if not learning:
            part.eval()
        for seed, results in zip((earlier, 0, 0), found, strict=True):
            with torch.random.fork_rng(devices=[]), torch.set_grad_enabled(learning):
                torch.default_generator.manual_seed(0)
                results += [one.detach() for one in _outputs(part, seed)]
    return found[1:]


def _outputs(part: Own, seed: int) -> tuple[Tensor, ...]:
    outputs = part(*part.example(seed))
    return outputs if isinstance(outputs, tuple) else (outputs,)


def _same(some: list[Tensor], others: list[Tensor]) -> bool:
    """True if results of the same operations are equal. Threads may round differently."""
    pairs = zip(some, others, strict=True)
    return all(torch.allclose(a, b, rtol=1e-5, atol=1e-6, equal_nan=True) for a, b in pairs)
