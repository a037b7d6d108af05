"""The three copies of a pack's weights, and the networks that are pointed at them, group by group.

    masters     float32                  written by the optimiser
    working     compute dtype (bf16)     refreshed from the masters after each update; learning reads it
    serving     compute dtype            published from the masters; acting reads it (see serving.py)

Axes: P policies, G policies of one group (computed together), T time, B rows, D distribution parameters,
S recurrent state, N parameters of one policy (body first, heads behind).
"""

from __future__ import annotations

import copy
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from .layout import NetLayout, moved, point, stacked
from .models import PolicyNet
from .normalizers import Normalizers

# The stacked views of a parameter matrix are never dense; autograd advises against that, at the price of a copy.
warnings.filterwarnings("ignore", message="grad and param do not obey the gradient layout contract")


class Weights:
    """Parameters and gradients of all policies of a pack, [P, N]. `masters` is memory of the pack's state.

    one_by_one: slots learn one after the other, so that one vector of gradients serves all of them.
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
        """Return the float32 gradients of these slots, [G, N], with what the working copy received."""
        of_working, grad = self.gradients(span)
        if self._separate:
            grad[:, : self.layout.body_size].copy_(of_working)
            of_working.zero_()
        return grad

    def gradients(self, span: slice) -> tuple[Tensor, Tensor]:
        """Where the gradients of these slots arrive, [G, N]: those of the working copy, and float32."""
        mine = slice(None) if self._one_by_one else span
        return self.working_grad[mine], self.grad[mine]

    def refresh_working(self, span: slice) -> None:
        """Bring the masters of these slots to learning."""
        if self._separate:
            self.working[span].copy_(self.masters[span, : self.layout.body_size])

    @property
    def served(self) -> tuple[Tensor, Tensor]:
        """What acting reads: body and heads, [P, ...]."""
        return self.serving, self.serving_heads

    def to_serve(self, slots: int | slice) -> tuple[Tensor, Tensor]:
        """Return the masters of one or more slots in the same two parts."""
        return self.masters[slots, : self.layout.body_size], self.masters[slots, self.layout.body_size :]

    def publish(self, slot: int) -> None:
        """Bring the masters of a slot to acting."""
        for served, source in zip(self.served, self.to_serve(slot), strict=True):
            served[slot].copy_(source)


class Group:
    """Policies that are computed in one forward: those of `slots`, `span` of every [P, ...] tensor.

    A group of several is computed by vmap over stacked parameters; one of a single policy as it is if `alone`.
    stats, serving_stats: statistics of the normalisers, for learning and for acting.
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
    ) -> None:
        self.slots = slots
        self.span = slice(slots[0], slots[-1] + 1)
        self._normalizers, self._stats, self._serving_stats = normalizers, stats, serving_stats
        self._alone = alone
        body, heads = weights.layout.body, weights.layout.heads
        serving_heads = moved(heads, -weights.layout.body_size)
        none = torch.empty(0)
        working_grad, grad = weights.gradients(self.span)
        # Two networks, because two threads use them, and a user's may drop numbers in learning.
        self._learning, self._acting = copy.deepcopy(template), copy.deepcopy(template).eval()
        if alone:
            (slot,) = slots
            point(self._learning.body, body, weights.working[slot], working_grad[0])
            point(self._learning.heads, heads, weights.masters[slot], grad[0])
            point(self._acting.body, body, weights.serving[slot], none)
            point(self._acting.heads, serving_heads, weights.serving_heads[slot], none)
        else:
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
        """(params_GTBD, value_GTB normalised, state_GBS) with gradients, by the working weights.

        cut: where gradients of a recurrent core end, see cores.py; None: at the first step.
        """
        obs = self.normalized(obs_GTB)
        if self._alone:
            return _single(self._learning, obs, state_GBS, first_GTB, cut_GTB)
        rows = (state_GBS, first_GTB) if cut_GTB is None else (state_GBS, first_GTB, cut_GTB)
        learned: tuple[Tensor, ...] = self._learning_of_each(_outputs, obs, *rows)
        return learned

    def serve(
        self, obs_GTB: Mapping[str, Tensor], state_GBS: Tensor, first_GTB: Tensor
    ) -> tuple[Tensor, ...]:
        """Compute the same by the published weights, without gradients."""
        obs = self._normalizers.normalize_obs(self._serving_stats, self.span, obs_GTB)
        if self._alone:
            return _single(self._acting, obs, state_GBS, first_GTB)
        served: tuple[Tensor, ...] = self._acting_of_each(_outputs, obs, state_GBS, first_GTB)
        return served

    def normalized(self, obs_GTB: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Normalise observations by the statistics for learning."""
        return self._normalizers.normalize_obs(self._stats, self.span, obs_GTB)

    def of_each(self, function: Callable[..., Any], *inputs: Any) -> Any:
        """Return function(network, *inputs) of every policy, with gradients, by the working weights.

        inputs, results: [G, ...], also in dicts and tuples; the function is called without that axis.
        """
        if not self._alone:
            return self._learning_of_each(function, *inputs)
        of_one = _mapped(lambda x: x[0], inputs)
        return _mapped(lambda x: x.unsqueeze(0), function(self._learning, *of_one))


class _Stacked:
    """A network computed for all policies at once, by vmap over stacked parameters that are put into it for each call.

    functional_call does the same, but looks for tied parameters in every call and puts the network's own ones back,
    which takes a seventh of the time of a small network. Nobody else uses this network.
    params: name in the network -> [G, ...].
    """

    def __init__(self, net: PolicyNet, params: Mapping[str, Tensor]) -> None:
        self._net, self._params = net, tuple(params.values())
        places: dict[int, list[tuple[dict[str, Any], str]]] = defaultdict(list)
        for module in net.modules():
            for name, parameter in module._parameters.items():  # noqa: SLF001 - where torch looks parameters up
                places[id(parameter)].append((module._parameters, name))  # noqa: SLF001 - the same
        named = dict(net.named_parameters())
        self._places = [places[id(named[name])] for name in params]

    def __call__(self, function: Callable[..., Any], *inputs: Any) -> Any:
        """Return function(network, *inputs) of every policy. inputs: [G, ...], also in dicts and tuples."""

        def of_one(params: tuple[Tensor, ...], *inputs: Any) -> Any:
            for places, parameter in zip(self._places, params, strict=True):
                for of_module, name in places:
                    of_module[name] = parameter
            return function(self._net, *inputs)

        return torch.func.vmap(of_one)(self._params, *inputs)


def _outputs(net: PolicyNet, *inputs: Any) -> Any:
    return net(*inputs)


def _single(
    net: PolicyNet, obs: Mapping[str, Tensor], state: Tensor, first: Tensor, cut: Tensor | None = None
) -> tuple[Tensor, ...]:
    cut_TB = None if cut is None else cut[0]
    params, value, state = net({k: v[0] for k, v in obs.items()}, state[0], first[0], cut_TB)
    return params.unsqueeze(0), value.unsqueeze(0), state.unsqueeze(0)


def _mapped(change: Callable[[Tensor], Tensor], tree: Any) -> Any:
    """Apply a function to all tensors in dicts and tuples."""
    if isinstance(tree, Tensor):
        return change(tree)
    if isinstance(tree, Mapping):
        return {name: _mapped(change, part) for name, part in tree.items()}
    parts = [_mapped(change, part) for part in tree]
    return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
