"""Three copies of a pack's weights, and networks that view them.

    masters     float32                  written by the optimiser
    working     compute dtype            copied from the masters after each step; read by learning
    serving     compute dtype            published from the masters; read by acting (`Serving`)

If the compute dtype is float32, the working weights are the masters, and not a copy.

Heads stay float32. Learning reads the heads from the masters, and acting from a float32 copy.

The parameters of a network form one flat vector: body, then heads. Convolution weights are stored channels-last
(`NetLayout`).

A forward pass of acting must never mix layers of two versions of the weights, or of two members. One lock per slot
prevents this on a CPU. The locks also suffice on a device with a single stream, because a stream runs its work in
order. For separate streams, see pbt_rl/learner/cuda/streams.py.

Axes: P policies, G policies of one group (computed together), T time, B rows, D distribution parameters, S recurrent
state, N parameters of one policy (body first, then heads).
"""

from __future__ import annotations

import copy
import math
import threading
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn

from .kernels import Mark
from .models import PolicyNet
from .normalizers import Normalizers, of_normalizers
from .parts import Parts

ALIGNMENT = 32


@dataclass(frozen=True)
class Segment:
    """Position of one parameter in a flat vector."""

    name: str
    start: int
    shape: tuple[int, ...]
    learned: bool = True
    """True if the parameter has a gradient."""

    @property
    def stop(self) -> int:
        """Index after the last element."""
        return self.start + math.prod(self.shape)

    def view(self, flat: Tensor) -> Tensor:
        """Return this parameter as a view [..., *shape] of flat [..., N]."""
        part = flat[..., self.start : self.stop]
        if len(self.shape) != 4:
            return part.view((*flat.shape[:-1], *self.shape))  # one tuple, because a scalar has no axes
        out_channels, in_channels, height, width = self.shape
        part = part.view(*flat.shape[:-1], out_channels, height, width, in_channels)
        return part.movedim(-1, -3)


@dataclass(frozen=True)
class NetLayout:
    """Positions of all parameters of a network in one vector of `size` elements."""

    body: list[Segment]
    heads: list[Segment]
    body_size: int
    """Number of elements of the body. The first parameter of the heads has this position."""
    size: int

    @classmethod
    def of(cls, net: PolicyNet) -> NetLayout:
        """Return the layout of a network."""
        body = lay_out(net.body)
        body_size = aligned(max((s.stop for s in body), default=0))  # a custom encoder may have no parameters
        heads = lay_out(net.heads, body_size)
        return cls(body, heads, body_size, aligned(max((s.stop for s in heads), default=body_size)))

    @torch.no_grad()
    def write(self, net: PolicyNet, flat: Tensor) -> None:
        """Copy a network's parameters into `flat`, a vector of `size` elements."""
        for segments, module in ((self.body, net.body), (self.heads, net.heads)):
            for segment, parameter in zip(segments, module.parameters(), strict=True):
                segment.view(flat).copy_(parameter)

    def places(self) -> dict[str, Segment]:
        """Map parameter names of the network's `state_dict` to positions."""
        return {f"body.{s.name}": s for s in self.body} | {f"heads.{s.name}": s for s in self.heads}

    def named(self, flat: Tensor) -> Mapping[str, Tensor]:
        """Map parameter names of the network's `state_dict` to views of flat [..., size]."""
        return {name: segment.view(flat) for name, segment in self.places().items()}


def lay_out(module: nn.Module, start: int = 0) -> list[Segment]:
    """Return consecutive positions of the module's parameters, from `start` on."""
    segments = []
    for name, parameter in module.named_parameters():
        segments.append(Segment(name, start, tuple(parameter.shape), parameter.requires_grad))
        start = segments[-1].stop
    return segments


def aligned(size: int) -> int:
    """Round a size up to a multiple of ALIGNMENT (two cache lines). The padding stays 0."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def point(module: nn.Module, segments: list[Segment], flat: Tensor, grad: Tensor) -> None:
    """Replace a module's parameters by views of `flat`, and their gradients by views of `grad`.

    If `grad` is empty, the parameters get no gradients.
    """
    for segment, parameter in zip(segments, module.parameters(), strict=True):
        parameter.data = segment.view(flat)
        if grad.numel():
            parameter.grad = segment.view(grad)
        else:
            parameter.requires_grad_(False)


def stacked(prefix: str, segments: list[Segment], flat: Tensor, grad: Tensor) -> dict[str, Tensor]:
    """Map prefix + name to a parameter view [P, ...] of flat [P, N].

    The gradients of learned parameters are views of `grad` [P, N]. If `grad` is empty, parameters have no gradients.
    """
    views = {}
    for segment in segments:
        view = segment.view(flat).detach()
        if grad.numel() and segment.learned:
            view.requires_grad_()
            view.grad = segment.view(grad)
        views[prefix + segment.name] = view
    return views


# autograd warns because stacked views are not dense. Dense gradients would need a copy.
warnings.filterwarnings("ignore", message="grad and param do not obey the gradient layout contract")


class Weights:
    """Parameters and gradients of all policies of a pack, [P, N]. N: parameters of one policy.

    masters: float32 weights that the optimiser writes, part of the pack's state. Learning reads another copy, the
    working copy, and acting a third, the serving copy.
    one_by_one: True if slots learn one after another and share one gradient vector.
    """

    def __init__(
        self, layout: NetLayout, masters: Tensor, compute_dtype: torch.dtype, *, one_by_one: bool = False
    ) -> None:
        self.layout, self.masters = layout, masters
        policies, device = masters.shape[0], masters.device
        self._separate = compute_dtype != torch.float32
        body, heads = (policies, layout.body_size), (policies, layout.size - layout.body_size)
        self.working = torch.zeros(body, dtype=compute_dtype, device=device) if self._separate else masters
        learning = 1 if one_by_one else policies
        self.grad = torch.zeros_like(masters[:learning])
        self.working_grad = torch.zeros_like(self.working[:learning]) if self._separate else self.grad
        self._one_by_one = one_by_one
        self.serving = torch.zeros(body, dtype=compute_dtype, device=device)
        self.serving_heads = torch.zeros(heads, dtype=torch.float32, device=device)

    def collect_gradients(self, span: slice) -> Tensor:
        """Return the float32 gradients of the slots in `span`, [G, N].

        First, the gradients of the working copy (in the dtype of the computation) are copied into the float32
        gradients, and set to 0.
        """
        of_working, grad = self.gradients(span)
        if self._separate:
            grad[:, : self.layout.body_size].copy_(of_working)
            of_working.zero_()
        return grad

    def gradients(self, span: slice) -> tuple[Tensor, Tensor]:
        """Return two gradient buffers of the slots in `span`: of the working copy and of the master weights.

        Shapes: [G, parameters]. If the working copy is bf16, its buffer has only the body's parameters. Otherwise,
        both buffers are the same. If the slots learn one after another, all slots share one row, [1, parameters].
        """
        mine = slice(None) if self._one_by_one else span
        return self.working_grad[mine], self.grad[mine]

    def refresh_working(self, span: slice) -> None:
        """Copy the master weights of these slots to the working copy, which learning reads."""
        if self._separate:
            self.working[span].copy_(self.masters[span, : self.layout.body_size])

    @property
    def served(self) -> tuple[Tensor, Tensor]:
        """Weights that acting reads: body and heads, [P, ...] each."""
        return self.serving, self.serving_heads

    def to_serve(self, slots: int | slice) -> tuple[Tensor, Tensor]:
        """Return the float32 master weights of one or more slots, split into body and heads."""
        return self.masters[slots, : self.layout.body_size], self.masters[slots, self.layout.body_size :]

    def publish(self, slot: int) -> None:
        """Copy the master weights of a slot to the serving copy, which acting reads."""
        for served, source in zip(self.served, self.to_serve(slot), strict=True):
            served[slot].copy_(source)


class Group:
    """Policies that are computed in one forward pass.

    slots: consecutive slots of the policies.
    span: slice that selects `slots` from a [P, ...] tensor.
    alone: True with packing `loop`: the group is a single policy, whose network is called directly. Otherwise networks
    run under vmap over stacked parameters, or (with `branches`) each network runs on a side stream.
    branches: streams that provide the side streams. None: no side streams.
    stats, serving_stats: normaliser statistics for learning and for acting.
    parts: threads that compute `forward`. None: the calling thread.
    """

    def __init__(
        self,
        slots: tuple[int, ...],
        template: PolicyNet,
        weights: Weights,
        normalizers: Normalizers,
        stats: Mapping[str, Tensor],
        serving_stats: Mapping[str, Tensor],
        *,
        alone: bool,
        branches: Streams | None = None,
        parts: Parts | None = None,
    ) -> None:
        assert alone or parts is None, "vmap runs in one thread"
        self.slots, self._parts = slots, parts
        self.span = slice(slots[0], slots[-1] + 1)
        self._normalizers, self._stats, self._serving_stats = normalizers, stats, serving_stats
        self._alone = alone
        body, heads = weights.layout.body, weights.layout.heads
        serving_heads = [replace(s, start=s.start - weights.layout.body_size) for s in heads]
        none = torch.empty(0)
        working_grad, grad = weights.gradients(self.span)
        # Two networks, because two threads use them, and custom modules may have dropout in training mode.
        self._learning, self._acting = copy.deepcopy(template), copy.deepcopy(template).eval()
        if alone or branches is not None:
            learning = [self._learning, *(copy.deepcopy(template) for _ in slots[1:])]
            acting = [self._acting, *(copy.deepcopy(template).eval() for _ in slots[1:])]
            for i, slot in enumerate(slots):
                point(learning[i].body, body, weights.working[slot], working_grad[i])
                point(learning[i].heads, heads, weights.masters[slot], grad[i])
                point(acting[i].body, body, weights.serving[slot], none)
                point(acting[i].heads, serving_heads, weights.serving_heads[slot], none)
        self._learning_of_each: _OfEach
        self._acting_of_each: _OfEach
        if branches is not None:
            self._learning_of_each = _Branches(learning, branches)
            self._acting_of_each = _Branches(acting, branches)
        elif not alone:
            self._learning_of_each = _Stacked(
                self._learning,
                stacked("body.", body, weights.working, working_grad)
                | stacked("heads.", heads, weights.masters, grad),
            )
            self._acting_of_each = _Stacked(
                self._acting,
                stacked("body.", body, weights.serving, none)
                | stacked("heads.", serving_heads, weights.serving_heads, none),
            )

    def forward(
        self,
        obs_GTB: Mapping[str, Tensor],
        state_GBS: Tensor,
        first_GTB: Tensor,
        cut_GTB: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """Compute (params_GTBD, value_GTB normalised, state_GBS) with gradients, by the working weights.

        obs: name -> [G, T, B, ...], before normalisation. first: bool, the step starts an episode.
        cut: True at step t if no gradient of a recurrent core flows from step t back to step t - 1 (see cores.py).
        None: gradients stop only before the first step.
        """
        rows = (state_GBS, first_GTB) if cut_GTB is None else (state_GBS, first_GTB, cut_GTB)
        if self._parts is not None:
            return self._parts.forward(self._forward, obs_GTB, *rows)
        return self._forward(obs_GTB, *rows)

    def _forward(self, obs_GTB: Mapping[str, Tensor], *rows: Tensor) -> tuple[Tensor, ...]:
        learned: tuple[Tensor, ...] = self.of_each(_outputs, self.normalized(obs_GTB), *rows)
        return learned

    def infer(
        self, obs_GTB: Mapping[str, Tensor], state_GBS: Tensor, first_GTB: Tensor
    ) -> tuple[Tensor, ...]:
        """Compute the results of `forward` with the published weights, without gradients."""
        obs = self._normalizers.normalize_obs(self._serving_stats, self.span, obs_GTB)
        if self._alone:
            of_one = {k: v[0] for k, v in obs.items()}
            params, value, state = self._acting(of_one, state_GBS[0], first_GTB[0])
            return params.unsqueeze(0), value.unsqueeze(0), state.unsqueeze(0)
        served: tuple[Tensor, ...] = self._acting_of_each(_outputs, obs, state_GBS, first_GTB)
        return served

    def normalized(self, obs_GTB: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Normalise observations by the learning statistics."""
        return self._normalizers.normalize_obs(self._stats, self.span, obs_GTB)

    def of_each(self, function: Callable[..., Any], *inputs: Any) -> Any:
        """Call function(network, *inputs) for every policy, with gradients, by the working weights.

        inputs, results: [G, ...], possibly in dicts and tuples. The function receives and returns tensors without the
        axis G.
        """
        if not self._alone:
            return self._learning_of_each(function, *inputs)
        of_one = _mapped(lambda x: x[0], inputs)
        return _mapped(lambda x: x.unsqueeze(0), function(self._learning, *of_one))


_OfEach = Callable[..., Any]
"""Function that calls function(network, *inputs) for every policy. inputs, results: [G, ...], possibly in dicts and
tuples."""


class _Branches:
    """Networks of all policies, each computed on a side stream (a *branch*).

    Small kernels of one policy leave most of a GPU idle. Therefore kernels of several policies run at the same time.
    autograd runs each backward operation on the stream of its forward operation. After the last branch, the current
    stream waits for all branches (`Streams.join`).
    """

    def __init__(self, nets: Sequence[PolicyNet], streams: Streams) -> None:
        self._nets, self._streams = nets, streams

    def __call__(self, function: Callable[..., Any], *inputs: Any) -> Any:
        """Call function(network, *inputs) for every policy. inputs: [G, ...], possibly in dicts and tuples."""
        results = []
        for p, net in enumerate(self._nets):
            with self._streams.branch(p):
                results.append(function(net, *_mapped(itemgetter(p), inputs)))
        self._streams.join(len(self._nets))
        return _stacked_results(results)


class _Stacked:
    """Network of all policies, computed by vmap over stacked parameters.

    Each call inserts the parameters into the network. torch.func.functional_call is not used: it searches for tied
    parameters and restores the original parameters, which would take a seventh of the time of a small network.

    net: used by this class only.
    params: name in the network -> [G, ...].
    """

    def __init__(self, net: PolicyNet, params: Mapping[str, Tensor]) -> None:
        self._net, self._params = net, tuple(params.values())
        places: dict[int, list[tuple[dict[str, Any], str]]] = defaultdict(list)
        for module in net.modules():
            for name, parameter in module._parameters.items():  # noqa: SLF001 - torch reads parameters from here
                places[id(parameter)].append((module._parameters, name))  # noqa: SLF001 - the same
        named = dict(net.named_parameters())
        self._places = [places[id(named[name])] for name in params]

    def __call__(self, function: Callable[..., Any], *inputs: Any) -> Any:
        """Call function(network, *inputs) for every policy. inputs: [G, ...], possibly in dicts and tuples."""

        def of_one(params: tuple[Tensor, ...], *inputs: Any) -> Any:
            for places, parameter in zip(self._places, params, strict=True):
                for of_module, name in places:
                    of_module[name] = parameter
            return function(self._net, *inputs)

        return torch.func.vmap(of_one)(self._params, *inputs)


def _stacked_results(results: Sequence[Any]) -> Any:
    """Stack the trees of tensors of all policies. All trees have the same structure."""
    first = results[0]
    if isinstance(first, Tensor):
        return torch.stack(list(results))
    if isinstance(first, Mapping):
        return {name: _stacked_results([result[name] for result in results]) for name in first}
    parts = [_stacked_results(of_all) for of_all in zip(*results, strict=True)]
    return type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)


def _outputs(net: PolicyNet, *inputs: Any) -> Any:
    return net(*inputs)


def _mapped(change: Callable[[Tensor], Tensor], tree: Any) -> Any:
    """Apply a function to all tensors in dicts and tuples."""
    if isinstance(tree, Tensor):
        return change(tree)
    if isinstance(tree, Mapping):
        return {name: _mapped(change, part) for name, part in tree.items()}
    parts = [_mapped(change, part) for part in tree]
    return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)


class Serving:
    """Published weights and normaliser statistics (`stats`), [P, ...], copied from the pack's `state`.

    In this class, a lock per slot makes inference and publication mutually exclusive.
    """

    def __init__(self, weights: Weights, state: Mapping[str, Tensor]) -> None:
        self._weights, self._state = weights, state
        self.stats = {name: value.clone() for name, value in of_normalizers(state).items()}
        self._locks = [threading.Lock() for _ in range(weights.masters.shape[0])]

    def take(self) -> None:
        """Copy new publications to the acting weights. Acting calls this before an inference batch.

        Does nothing in this class, because `publish` writes the acting weights directly.
        """

    @contextmanager
    def held(self, slots: tuple[int, ...]) -> Iterator[None]:
        """Keep the published weights of these slots unchanged while an inference batch reads them."""
        with ExitStack() as stack:
            for p in slots:
                stack.enter_context(self._locks[p])
            yield

    def publish(self, slots: tuple[int, ...], *, exchanged: bool) -> None:  # noqa: ARG002 - immediate here
        """Publish the current weights and normalisers of these slots, after optimiser steps and changes of members.

        exchanged: True if the weights in the slots were replaced. Later inference batches must not use the former
        weights.
        """
        for p in slots:
            with self._locks[p]:
                self._weights.publish(p)
                for name, served in self.stats.items():
                    served[p].copy_(self._state[name][p])


class Streams:
    """Streams of a device. This base class has a single stream: work runs in order, and nothing waits."""

    def serving(self, weights: Weights, state: Mapping[str, Tensor]) -> Serving:
        """Create the `Serving` of a pack. state: state of the pack."""
        return Serving(weights, state)

    def acting(self) -> AbstractContextManager[object]:
        """Return a context that queues work on the acting stream."""
        return nullcontext()

    def learning(self) -> AbstractContextManager[object]:
        """Return a context that queues work on the learning stream."""
        return nullcontext()

    def branch(self, number: int) -> AbstractContextManager[object]:  # noqa: ARG002 - there is one stream
        """Return a context that queues work on side stream `number`, after all earlier work on the current stream."""
        return nullcontext()

    def join(self, number: int) -> None:
        """Make the current stream wait for the first `number` side streams."""

    def mark(self) -> Mark | None:
        """Return a mark after the work that is queued on the current stream. None: later work need not wait."""
        return None

    def after(self, mark: Mark | None) -> None:
        """Make the current stream wait for a mark. None: do nothing."""

    def fetch(self, source: Tensor, into: Tensor) -> None:
        """Copy a tensor to the host on the current stream, and wait for the copy."""
        into.copy_(source)

    def wait_for_work(self) -> None:
        """Wait for all work on the device. Call this method before the first use of the acting and learning streams."""
