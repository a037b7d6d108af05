"""Pack: the policies of one device, with all their state stacked as `[P, ...]`.

The parameters of a policy are one flat float32 vector. Every weight tensor is a view of this vector or of a copy of it.
Therefore copying or optimising a policy takes a few operations for any network. A user's `nn.Module` works unchanged,
because its parameters become such views (see weights.py).

Axes: P policies, G policies of one group (computed together), T time, B rows, D distribution parameters, S recurrent
state. A slot is an index of the P axis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from .encoders import compute_by_products
from .kernels import for_upload
from .models import PolicyNet
from .normalizers import Normalizers, return_scale
from .optim import Gradients, Optimizer, grad_scale
from .parts import Parts, learned_at_once
from .weights import Group, NetLayout, Streams, Weights

Packing = Literal["loop", "vmap", "bmm", "streams"]
"""Way to compute the policies. `loop`: one by one. `vmap`: together, by vmap. `bmm`: by vmap, with convolutions as
matrix products. `streams`: at the same time, on separate CUDA streams."""


class Pack:
    """The policies of one device.

    state: name -> [P, ...] tensor, the complete state of the policies except hyperparameters.
    hypers: name -> [P] float32 tensor on the device, read by loss and optimiser at every update.
    streams: device streams of acting and learning.
    idle[p]: True if slot p has no member. With packing `loop`, acting skips this slot.
    parts: threads for learning, with packing `loop` on a CPU. None: the calling thread learns all policies.

    Further arguments:

    make_net: function that returns a network with newly initialised weights.
    hypers: name -> initial values, one per policy.
    compute_dtype: dtype of the body in forward and backward passes. The optimiser uses float32.
    normalized_obs: name of a normalised observation -> elements per row.
    normalize_returns: True if values are divided by the running scale of returns.
    """

    def __init__(
        self,
        make_net: Callable[[], PolicyNet],
        num_policies: int,
        hypers: Mapping[str, list[float]],
        *,
        device: torch.device,
        compute_dtype: torch.dtype,
        packing: Packing,
        optimizer: Optimizer,
        normalized_obs: Mapping[str, int],
        normalize_returns: bool,
        streams: Streams | None = None,
        parts: Parts | None = None,
    ) -> None:
        self.streams = Streams() if streams is None else streams
        self.num_policies, self.device = num_policies, device
        self.packing, self.optimizer, self.parts = packing, optimizer, parts
        self._make_net = make_net
        template = make_net()
        self.state_size = template.state_size
        self._param_size = template.param_size
        self._layout = NetLayout.of(template)
        self._normalizers = Normalizers(dict(normalized_obs), normalize_returns, compute_dtype)

        self.state = self._empty_state(num_policies, device)
        self.hypers = {k: torch.tensor(v, dtype=torch.float32, device=device) for k, v in hypers.items()}
        self._hypers_of: dict[tuple[int, int], dict[str, Tensor]] = {}
        slots, alone = range(num_policies), packing == "loop"
        one_by_one = alone and parts is None
        self.weights = Weights(self._layout, self.state["param"], compute_dtype, one_by_one=one_by_one)
        self._serving = self.streams.serving(self.weights, self.state)
        self.idle = [False] * num_policies
        self._template = template.to(device)
        if packing == "bmm":
            compute_by_products(self._template)
        shared = (self._template, self.weights, self._normalizers, self.state, self._serving.stats)
        together: list[tuple[int, ...]] = [(p,) for p in slots] if alone else [tuple(slots)]
        branches = self.streams if packing == "streams" else None
        self._groups = [
            Group(of_group, *shared, alone=alone, branches=branches, parts=parts) for of_group in together
        ]
        for p in range(num_policies):
            self.set_fresh(p, template if p == 0 else make_net())

    def _empty_state(self, policies: int, device: torch.device) -> dict[str, Tensor]:
        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros((policies, *shape), dtype=dtype, device=device)

        moments = {name: zeros(self._layout.size) for name in self.optimizer.moments}
        rest = {
            "optimizer_steps": zeros(dtype=torch.float64),
            "lr_factor": zeros() + 1,
            **self._normalizers.empty(zeros),
        }
        assert not moments.keys() & {"param", *rest}, (
            "an optimiser moment has the name of another state entry"
        )
        return {"param": zeros(self._layout.size), **moments, **rest}

    def groups(self) -> list[Group]:
        """Return the groups of policies that are computed together: all policies, or one each with packing `loop`."""
        return self._groups

    def learned_at_once(self, groups: Sequence[Group]) -> list[list[Group]]:
        """Divide groups into lists. The lists learn one after another.

        The groups of a list learn at the same time, one thread of `parts` each. A group that is alone in its list
        uses all threads.
        """
        threads = 1 if self.parts is None else self.parts.number
        return [[groups[i] for i in indices] for indices in learned_at_once(len(groups), threads)]

    # -- acting ---------------------------------------------------------------------------------------------

    @torch.no_grad()
    def act(
        self,
        obs_PB: Mapping[str, Tensor],
        state_PBS: Tensor,
        first_PB: Tensor,
        before_each: Callable[[], object] = lambda: None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Run inference for one step. Return (params_PBD float32, value_PB float32 in reward units, state_PBS).

        D: distribution parameters. S: size of the recurrent state.

        obs: name -> [P, B, ...], network inputs before normalisation.
        first: bool, True where the observation is the first of an episode.
        before_each: called before each group. This callback may change members.
        """
        self.take_published()
        return self.infer(obs_PB, state_PBS, first_PB, before_each)

    def take_published(self) -> None:
        """Copy published weights to the weights that `infer` reads, if this needs a copy (`Serving.take`)."""
        self._serving.take()

    @torch.no_grad()
    def infer(
        self,
        obs_PB: Mapping[str, Tensor],
        state_PBS: Tensor,
        first_PB: Tensor,
        before_each: Callable[[], object] = lambda: None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute `act` without `take_published`. A CUDA graph can capture this for built-in networks."""
        params, values, states = [], [], []
        for group in self._groups:
            before_each()
            span = group.span
            if len(group.slots) == 1 and self.idle[group.slots[0]]:
                batch = first_PB.shape[1]
                flat = torch.zeros((1, batch, self._param_size), device=self.device)
                params.append(self._template.mask(flat, {k: v[span] for k, v in obs_PB.items()}))
                values.append(torch.zeros((1, batch), device=self.device))
                states.append(state_PBS[span])
                continue
            with self._serving.held(group.slots):
                obs = {k: v[span].unsqueeze(1) for k, v in obs_PB.items()}
                params_GTBD, value_GTB, state_GBS = group.infer(
                    obs, state_PBS[span], first_PB[span].unsqueeze(1)
                )
                value_GB = value_GTB.squeeze(1) * return_scale(self._serving.stats, span).unsqueeze(1)
            params.append(params_GTBD.squeeze(1))
            values.append(value_GB)
            states.append(state_GBS)
        return _joined(params), _joined(values), _joined(states)

    @torch.no_grad()
    def publish(self, slots: tuple[int, ...]) -> None:
        """Publish the current weights and normalisers of these slots to acting.

        On a GPU, this does not wait. On a CPU, it waits for a running inference of these slots.
        """
        self._serving.publish(slots, exchanged=False)

    # -- learning -------------------------------------------------------------------------------------------

    def step(self, group: Group, factor_P: Tensor, active_G: Tensor) -> tuple[Tensor, Tensor]:
        """Apply a group's gradients and refresh its working weights; return gradient norms and learning rates, [G].

        An inactive policy is skipped, because momentum would change its weights without samples. A policy with a
        non-finite gradient is skipped, because one bad batch must not destroy a member.

        active_G: bool, False for an inactive policy.
        factor_P: factors of the learning rate schedule. The learning rate is hyperparameter * `lr_factor` (adaptive) *
        factor.
        """
        span, state, hypers = group.span, self.state, self.hypers_of(group.span)
        grad = self.weights.collect_gradients(span)
        norm_G, scale_G = grad_scale(grad, hypers["max_grad_norm"])
        scale_G = torch.where(active_G, scale_G, 0.0)
        rate_G = hypers["learning_rate"] * state["lr_factor"][span] * factor_P[span]
        with torch.no_grad():
            steps_G = state["optimizer_steps"][span].add_(scale_G > 0).clamp(min=1)
            moments = [state[name][span] for name in self.optimizer.moments]
            self.optimizer.step(
                Gradients(state["param"][span], grad, scale_G, rate_G, steps_G), moments, hypers
            )
            grad.zero_()
            self.weights.refresh_working(span)
        return norm_G, rate_G

    def hypers_of(self, span: slice) -> Mapping[str, Tensor]:
        """Return the hyperparameters of the slots in `span`, [G], as views, which show later changes."""
        key = span.start, span.stop
        if key not in self._hypers_of:
            self._hypers_of[key] = {name: column[span] for name, column in self.hypers.items()}
        return self._hypers_of[key]

    def normalize_value(self, value_GTB: Tensor, span: slice) -> Tensor:
        """Divide values in reward units by the running root mean square of returns.

        The scale is not the std, because the std approaches 0 if a policy always earns the same return. All learned
        values would then be wrong by a large factor (on CartPole, members at 500 fell to 20). The mean is not
        subtracted, because a drifting mean would change the target of every state.
        """
        return value_GTB / self.return_scale(span)[:, None, None]

    def denormalize_value(self, value_GTB: Tensor, span: slice) -> Tensor:
        """Convert normalised values [G, T, B] of the policies of `span` to reward units."""
        return value_GTB * self.return_scale(span)[:, None, None]

    def return_scale(self, span: slice) -> Tensor:
        """Return the scale of normalised values, [G]; see `normalizers.return_scale`."""
        return return_scale(self.state, span)

    def observe_returns(self, span: slice, target_GTB: Tensor, valid_GTB: Tensor) -> None:
        """Update the statistics of returns; see `Normalizers.observe_returns`."""
        self._normalizers.observe_returns(self.state, span, target_GTB, valid_GTB)

    def observe_obs(self, span: slice, obs_GTB: Mapping[str, Tensor], valid_GTB: Tensor) -> None:
        """Update the statistics of observations; see `Normalizers.observe_obs`."""
        self._normalizers.observe_obs(self.state, span, obs_GTB, valid_GTB)

    # -- members --------------------------------------------------------------------------------------------

    @torch.no_grad()
    def copy_member(self, source: int, target: int) -> None:
        """Copy the state of slot `source` to slot `target`, without hyperparameters (see `set_hypers`)."""
        for stacked in self.state.values():
            stacked[target].copy_(stacked[source])
        self._refresh(target)

    @torch.no_grad()
    def export_member(self, slot: int) -> dict[str, Tensor]:
        """Return a copy of a slot's state on the CPU: name -> [...], without the axis P. Uses one transfer."""
        parts = {name: stacked[slot] for name, stacked in self.state.items()}
        if self.device.type == "cpu":
            return {name: part.clone() for name, part in parts.items()}
        return downloaded(parts)

    @torch.no_grad()
    def import_member(self, slot: int, state: Mapping[str, Tensor]) -> None:
        """Load a state from `export_member` of any pack with the same network, optimiser and normalisers."""
        assert state.keys() == self.state.keys()
        for name, stacked in self.state.items():
            stacked[slot].copy_(for_upload(state[name], self.device), non_blocking=True)
        self._refresh(slot)

    def set_fresh(self, slot: int, net: PolicyNet | None = None) -> None:
        """Reset a slot: initialised weights, initial moments and statistics. net: see `fresh_state`."""
        self.import_member(slot, self.fresh_state(net))

    @torch.no_grad()
    def fresh_state(self, net: PolicyNet | None = None) -> dict[str, Tensor]:
        """Return the state of an untrained policy, in the format of `export_member`.

        net: the policy's network. None: build a network with `make_net`.
        """
        fresh = self._empty_state(1, torch.device("cpu"))
        self._layout.write(self._make_net() if net is None else net, fresh["param"][0])
        return {name: stacked[0] for name, stacked in fresh.items()}

    def set_hypers(self, slot: int, values: Mapping[str, float]) -> None:
        """Write all hyperparameters of a slot in place, without waiting for the device.

        A slice is filled, because assigning a number to an element waits for all queued GPU work.
        """
        for name, column in self.hypers.items():
            column[slot : slot + 1].fill_(values[name])

    def hypers_in_force(self, slot: int) -> dict[str, float]:
        """Read a slot's hyperparameters from the tensors that loss and optimiser read."""
        values = torch.stack([column[slot] for column in self.hypers.values()]).cpu().tolist()
        return dict(zip(self.hypers, values, strict=True))

    @torch.no_grad()
    def bit_sums(self, slot: int) -> list[int]:
        """Return a checksum of each tensor of a slot's state, in the order of `state`.

        A change of a single bit changes the checksum.
        """
        return bit_sums([stacked[slot] for stacked in self.state.values()])

    def named_weights(self, slot: int) -> dict[str, Tensor]:
        """Return a slot's float32 weights on the CPU, with the names of the network's `state_dict`."""
        return self.weights_of({"param": self.state["param"][slot].to("cpu")})

    def weights_of(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the weights in a state of `export_member`, with the names of the network's `state_dict`."""
        return dict(self._layout.named(state["param"]))

    def _refresh(self, slot: int) -> None:
        self.weights.refresh_working(slice(slot, slot + 1))
        self._serving.publish((slot,), exchanged=True)


def downloaded(parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy device tensors to the CPU in one transfer."""
    # Sorted by element size, because each part must be aligned.
    names = sorted(parts, key=lambda name: -parts[name].element_size())
    flat = [parts[name].reshape(-1).view(torch.uint8) for name in names]
    pieces = torch.cat(flat).cpu().split([part.numel() for part in flat])
    host = dict(zip(names, pieces, strict=True))
    return {name: host[name].view(part.dtype).view(part.shape) for name, part in parts.items()}


def bit_sums(tensors: Iterable[Tensor]) -> list[int]:
    """Sum the memory of each tensor as integers. The sums of all tensors need one synchronisation."""
    sums = []
    for tensor in tensors:
        data = tensor.reshape(-1).view(torch.uint8)
        whole = data.numel() % 8 == 0 and data.storage_offset() % 8 == 0
        sums.append(data.view(torch.int64 if whole else torch.int32).sum())
    found: list[int] = torch.stack(sums).cpu().tolist()
    return found


def _joined(of_groups: list[Tensor]) -> Tensor:
    return of_groups[0] if len(of_groups) == 1 else torch.cat(of_groups)
